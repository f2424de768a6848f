"""Asynchronous copies of raw memory by the GPU's own driver or runtime, called through ctypes.

Three calls with one signature: the batch of the CUDA driver, the batch of the HIP runtime, and a loop of single copies. Sources
are read and destinations written in the order of the stream, whatever the driver would be allowed to do with a stable source.
The arrays of addresses are read during the call.
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.memcpy_runs import Words

_CUDA_VERSION_OF_BATCH = "12.8 (driver 570)"
_ROCM_VERSION_OF_BATCH = "7.1"
_ORDER_STREAM = 1  # CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
_MEMCPY_DEFAULT = 4  # cudaMemcpyDefault, hipMemcpyDefault: the direction follows from the addresses
_NOWHERE = 2**64 - 1  # what failIdx holds where no single copy is to blame


class CopyCall(Protocol):
    """Enqueue copies on a stream, given as a raw handle.

    Raises:
        RuntimeError: the driver refused; names its error and the number of it.
    """

    name: str  # of the entry point that is called
    library: str
    version: str

    def __call__(self, destinations: Words, sources: Words, sizes: Words, stream: int) -> None:
        """Copy ``sizes[i]`` bytes from ``sources[i]`` to ``destinations[i]``: uint64 [copies], the copies in any order."""
        ...


class _Location(ctypes.Structure):
    """CUmemLocation; all zero is no hint."""

    _fields_: ClassVar = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes of CUDA 12.8 and later."""

    _fields_: ClassVar = [
        ("source_access_order", ctypes.c_int),
        ("source_hint", _Location),
        ("destination_hint", _Location),
        ("flags", ctypes.c_uint),
    ]


_LISTS = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)  # destinations, sources, sizes, count
_ATTRIBUTES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)  # attributes, index of the first copy of each, count


def cuda_driver_version(driver: ctypes.CDLL | None = None) -> int:
    """Return the version of CUDA that the driver is of, such as 13000 for 13.0."""
    version = ctypes.c_int()
    (driver or ctypes.CDLL("libcuda.so.1")).cuDriverGetVersion(ctypes.byref(version))
    return version.value


class CudaBatch:
    """``cuMemcpyBatchAsync``, in the form of CUDA 13 where the driver has it, else in that of CUDA 12.8.

    One attribute entry holds for all copies, so its index array is [0]: an entry per attribute, not per copy.

    Raises:
        EnvironmentProblem: the driver has neither.
    """

    library = "CUDA driver"

    def __init__(self, driver: ctypes.CDLL) -> None:
        self._driver = driver
        version = cuda_driver_version(driver)
        self.version = f"{version // 1000}.{version % 1000 // 10}"
        self.name = next((n for n in ("cuMemcpyBatchAsync_v2", "cuMemcpyBatchAsync") if hasattr(driver, n)), "")
        if not self.name:
            raise EnvironmentProblem(
                f"the driver here is of CUDA {self.version} and has no cuMemcpyBatchAsync, which came with CUDA "
                f"{_CUDA_VERSION_OF_BATCH}: update the driver, or take memcpy-async"
            )
        self._says_which = not self.name.endswith("_v2")  # the form of 12.8 has failIdx before the stream
        self._function = getattr(driver, self.name)
        self._function.restype = ctypes.c_int
        fail_index = (ctypes.c_void_p,) if self._says_which else ()
        self._function.argtypes = [*_LISTS, *_ATTRIBUTES, *fail_index, ctypes.c_void_p]

    def __call__(self, destinations: Words, sources: Words, sizes: Words, stream: int) -> None:
        """Enqueue the copies as one batch."""
        attributes, first_copy = _Attributes(source_access_order=_ORDER_STREAM), ctypes.c_size_t(0)
        failed = ctypes.c_size_t(_NOWHERE)
        arguments = [*_lists(destinations, sources, sizes), ctypes.byref(attributes), ctypes.byref(first_copy), 1]
        if self._says_which:
            arguments.append(ctypes.byref(failed))
        code = self._function(*arguments, stream)
        if code:
            word = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(word))
            raise RuntimeError(_failure(self.name, word.value, code, sizes, failed.value))


class HipBatch:
    """``hipMemcpyBatchAsync``, without attributes (HIP 7 knows none or refuses them) and in pieces.

    vLLM reports that a call with more than 8,192 copies faults on gfx950 (vllm/v1/simple_kv_offload/cuda_mem_ops.py, 0.32).

    Raises:
        EnvironmentProblem: the runtime has no such call.
    """

    library = "HIP runtime"
    name = "hipMemcpyBatchAsync"
    most = 8192

    def __init__(self, runtime: ctypes.CDLL) -> None:
        self._runtime = runtime
        self.version = _hip_version(runtime)
        if not hasattr(runtime, self.name):
            raise EnvironmentProblem(
                f"the HIP runtime here is {self.version} and has no {self.name}, which came with ROCm "
                f"{_ROCM_VERSION_OF_BATCH}: update ROCm, or take memcpy-async"
            )
        self._function = getattr(runtime, self.name)
        self._function.restype = ctypes.c_int
        self._function.argtypes = [*_LISTS, *_ATTRIBUTES, ctypes.c_void_p, ctypes.c_void_p]

    def __call__(self, destinations: Words, sources: Words, sizes: Words, stream: int) -> None:
        """Enqueue the copies, at most ``most`` in a call."""
        for first in range(0, len(sizes), self.most):
            piece = slice(first, first + self.most)
            lists = destinations[piece], sources[piece], sizes[piece]
            failed = ctypes.c_size_t(_NOWHERE)
            code = self._function(*_lists(*lists), None, None, 0, ctypes.byref(failed), stream)
            if code:
                raise RuntimeError(
                    _failure(self.name, _error_name(self._runtime, "hip", code), code, lists[2], failed.value)
                )


class AsyncLoop:
    """``cudaMemcpyAsync`` or ``hipMemcpyAsync``, once for each copy.

    Args:
        runtime: the runtime library that torch uses.
        prefix: ``cuda`` or ``hip``.
    """

    def __init__(self, runtime: ctypes.CDLL, prefix: str) -> None:
        self._runtime = runtime
        self._prefix = prefix
        self.library = f"{prefix.upper()} runtime"
        self.version = _hip_version(runtime) if prefix == "hip" else _cuda_runtime_version(runtime)
        self.name = f"{prefix}MemcpyAsync"
        self._function = getattr(runtime, self.name)
        self._function.restype = ctypes.c_int
        self._function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]

    def __call__(self, destinations: Words, sources: Words, sizes: Words, stream: int) -> None:
        """Enqueue the copies one after the other."""
        triples = zip(destinations.tolist(), sources.tolist(), sizes.tolist(), strict=True)
        for number, (destination, source, size) in enumerate(triples):
            code = self._function(destination, source, size, _MEMCPY_DEFAULT, stream)
            if code:
                name = _error_name(self._runtime, self._prefix, code)
                raise RuntimeError(_failure(self.name, name, code, sizes, number))


def _lists(destinations: Words, sources: Words, sizes: Words) -> tuple[int, int, int, int]:
    for words in (destinations, sources, sizes):
        assert words.dtype == np.uint64
        assert words.flags.c_contiguous
        assert len(words) == len(sizes)
    return destinations.ctypes.data, sources.ctypes.data, sizes.ctypes.data, len(sizes)


def _failure(function: str, name: bytes | None, code: int, sizes: Words, failed: int) -> str:
    which = f", copy {failed} of {int(sizes[failed])} bytes" if failed < len(sizes) else ""
    return f"{function} with {len(sizes)} copies: {(name or b'unknown error').decode()} ({code}){which}"


def _error_name(runtime: ctypes.CDLL, prefix: str, code: int) -> bytes | None:
    getattr(runtime, f"{prefix}GetLastError")()  # forget it, or torch finds it after its next launch
    function = getattr(runtime, f"{prefix}GetErrorName")
    function.restype = ctypes.c_char_p
    word: bytes | None = function(code)
    return word


def _hip_version(runtime: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    runtime.hipRuntimeGetVersion(ctypes.byref(version))
    return f"{version.value // 10_000_000}.{version.value // 100_000 % 100}.{version.value % 100_000}"


def _cuda_runtime_version(runtime: ctypes.CDLL) -> str:
    version = ctypes.c_int()
    runtime.cudaRuntimeGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def batch_call() -> tuple[CopyCall, Path]:
    """Return the batched copy of this machine's driver, and the library file that holds it.

    Raises:
        EnvironmentProblem: no GPU, or a driver without it.
    """
    _require_gpu()
    if torch.version.hip:
        runtime, path = _loaded("libamdhip64")
        return HipBatch(runtime), path
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise EnvironmentProblem(f"the CUDA driver's libcuda.so.1 cannot be opened: {error}") from error
    driver, path = _loaded("libcuda")
    return CudaBatch(driver), path


def async_call() -> tuple[CopyCall, Path]:
    """Return the loop of single copies over the runtime that torch uses, and the library file that holds it.

    Raises:
        EnvironmentProblem: no GPU, or torch has its runtime inside another library.
    """
    _require_gpu()
    runtime, path = _loaded("libamdhip64" if torch.version.hip else "libcudart")
    return AsyncLoop(runtime, "hip" if torch.version.hip else "cuda"), path


def _require_gpu() -> None:
    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            f"copies between GPU and host memory need a GPU, and torch {torch.__version__} sees none: "
            f"run it on a machine with a CUDA or ROCm GPU, with torch built for that"
        )


def _loaded(stem: str) -> tuple[Any, Path]:
    """Open the library ``stem`` that this process has mapped already; no second copy beside it."""
    pattern = re.compile(rf"/{stem}[-.][^/]*so[^/]*$")  # wheels put a hash into the name: libcudart-9335f6a2.so.12
    paths = {line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/" in line}
    found = sorted(path for path in paths if pattern.search(path))
    if not found:
        raise EnvironmentProblem(f"torch {torch.__version__} has loaded no {stem}; is the runtime linked into it?")
    return ctypes.CDLL(found[0]), Path(found[0])
