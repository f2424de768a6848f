"""The installed LMCache on a GPU: what of it the CUDA adapters call, and proof that its compiled ops are bound.

LMCache stays on pure torch, with one warning, where its extension cannot be imported; a report would then name code that never
ran. So loading fails unless every op that an adapter may call is compiled code.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import types
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.lmcache_library import TRANSFER_KEY, Library, known_version
from kvverify.kernels.provenance import file_digests

_COMPILED_OPS = ("multi_layer_kv_transfer", "multi_layer_block_kv_transfer", "execute_object_group_transfer")
_WORKERS = (
    "lmcache.v1.gpu_connector.gpu_ops",
    "lmcache.v1.gpu_connector.kv_format.contiguity",
    "lmcache.v1.gpu_connector.kv_format.detectors.vllm",
    "lmcache.v1.gpu_connector.utils",
    "lmcache.v1.kv_layer_groups",
    "lmcache.v1.platform.base.cache_context",
)


@dataclass(frozen=True, slots=True)
class _Release:
    """Where a release keeps what the adapters need."""

    extension: str  # module of the compiled ops
    built_for: str  # what its wheel was built for
    enums: str  # module of TransferDirection and EngineKVFormat
    transfer: str  # module of transfer_kv_per_object_group
    context: str  # module of GPUCacheContext
    transfer_options: Mapping[str, Any]
    slot_op_takes_block_stride: bool


_RELEASES: Mapping[str, _Release] = {
    "0.5.3": _Release(
        extension="lmcache.c_ops",
        built_for="torch 2.11 with CUDA 13, CPython 3.12",
        enums="lmcache.c_ops",
        transfer="lmcache.v1.multiprocess.modules.lmcache_driven_transfer",
        context="lmcache.v1.platform.cuda.cache_context",
        transfer_options={},
        slot_op_takes_block_stride=False,
    ),
    "0.5.6": _Release(
        extension="lmcache.cuda_ops",
        built_for="torch 2.13 with CUDA 13",
        enums="lmcache.lmcache_native",
        transfer="lmcache.v1.multiprocess.object_group_transfer",
        context="lmcache.v1.platform.devices.cuda.cache_context",
        transfer_options=TRANSFER_KEY,
        slot_op_takes_block_stride=True,
    ),
}
KNOWN_VERSIONS = tuple(_RELEASES)


@dataclass(frozen=True, slots=True)
class CudaLibrary(Library):
    """:class:`Library` with the compiled ops; ``ops`` is LMCache's device object, to which they are bound."""

    extension: str = ""  # module name of the compiled ops
    extension_file: str = ""

    def provenance(self, entry: str) -> dict[str, Any]:
        """Library, versions, digests of the extension and of the modules that plan for it, and the path that ``entry`` takes."""
        modules = [importlib.import_module(name) for name in (*_WORKERS, self.context.__module__)]
        files = [self.extension_file, self.transfer.__file__, *(module.__file__ for module in modules)]
        return {
            "library": "lmcache",
            "version": self.version,
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name(),
            "path": f"{entry} of {self.extension} (compiled ops)",
            "files": file_digests(files),
        }


@functools.cache
def load() -> CudaLibrary:
    """Import LMCache for the GPU.

    Raises:
        EnvironmentProblem: not installed, a version that no adapter knows, no GPU, built for another torch, or a package that
            it needs is missing.
    """
    version = known_version(KNOWN_VERSIONS)
    release = _RELEASES[version]
    if not torch.cuda.is_available():
        raise EnvironmentProblem(
            f"LMCache {version}: torch {torch.__version__} sees no GPU, and its compiled ops need one; they are built for "
            f"{release.built_for}"
        )
    root = _module("lmcache", version)
    if root.torch_device_type != "cuda":
        raise EnvironmentProblem(
            f"LMCache {version} chose the device {root.torch_device_type!r}, expected 'cuda': unset DEVICE_TYPE and "
            f"LMCACHE_DEVICE_BACKEND, which force another"
        )
    ops = _module("lmcache.v1.platform", version).resolve_device_ops("cuda")
    extension_file = _bound_extension(version, release, root, ops)
    return CudaLibrary(
        version=version,
        ops=ops,
        native=_module(release.enums, version),
        transfer=_module(release.transfer, version),
        connector=_module("lmcache.v1.gpu_connector.utils", version),
        groups=_module("lmcache.v1.kv_layer_groups", version),
        memory=_module("lmcache.v1.memory_management", version),
        group_info=_module("lmcache.v1.multiprocess.group_view", version).EngineGroupInfo,
        context=_module(release.context, version).GPUCacheContext,
        vllm_order=_vllm_order(version),
        vllm=_module("lmcache.utils", version).EngineType.VLLM,
        transfer_options=release.transfer_options,
        extension=release.extension,
        extension_file=extension_file,
        slot_op_takes_block_stride=release.slot_op_takes_block_stride,
    )


def require_cupy(version: str) -> None:
    """Check for the package that LMCache's GPU cache context wraps its stream with.

    Raises:
        EnvironmentProblem: it cannot be imported.
    """
    try:
        importlib.import_module("cupy")
    except ImportError as error:
        raise EnvironmentProblem(
            f"LMCache {version}: its GPU cache context needs cupy, which cannot be imported ({error}); install cupy-cuda13x, "
            f"or the cupy of this machine's CUDA or ROCm"
        ) from error


def _module(name: str, version: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"LMCache {version}: {name} cannot be imported: {error}; install what is missing beside it"
        ) from error


def _bound_extension(version: str, release: _Release, root: types.ModuleType, ops: Any) -> str:
    """Return the file of the extension whose functions ``ops`` holds.

    LMCache's own fallbacks are Python functions; what is bound from an extension is not.

    Raises:
        EnvironmentProblem: an op is missing or still a fallback.
    """
    spec = importlib.machinery.PathFinder.find_spec(release.extension, root.__path__)
    python = (types.FunctionType, types.MethodType, types.NoneType)
    fallbacks = [name for name in _COMPILED_OPS if isinstance(getattr(ops, name, None), python)]
    if spec is not None and spec.origin is not None and not fallbacks:
        return spec.origin
    raise EnvironmentProblem(
        f"LMCache {version}: {release.extension} is not in use, so it would run on its torch fallback: {_why_not(spec)}; "
        f"here is torch {torch.__version__}, and its wheel is built for {release.built_for}"
    )


def _why_not(spec: importlib.machinery.ModuleSpec | None) -> str:
    """Say why LMCache could not use its extension; it swallowed the reason."""
    if spec is None or spec.origin is None:
        return "the installed package has no such extension for this Python"
    name = Path(spec.origin).name
    try:
        importlib.util.module_from_spec(spec)
    except ImportError as error:
        return f"{name} does not load: {error}"
    return f"{name} loads, but LMCache did not bind {', '.join(_COMPILED_OPS)} from it"


def _vllm_order(version: str) -> Any:
    """Return the translation of vLLM's name for a physical order into LMCache's hint."""
    if version == "0.5.3":
        return _order_before_names
    return _module("lmcache.integration.vllm.utils", version).translate_vllm_kv_cache_layout


def _order_before_names(order: str) -> str:
    """0.5.3 knows NHD and HND, the two orders that vLLM had then (``try_get_vllm_kv_cache_layout``).

    Raises:
        NotImplementedError: any other order.
    """
    names = {"LBNHC": "NHD", "LBHNC": "HND"}
    if order not in names:
        raise NotImplementedError(
            f"LMCache 0.5.3 knows the KV cache layouts NHD (LBNHC) and HND (LBHNC) only, not {order}"
        )
    return names[order]
