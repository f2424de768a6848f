"""The installed LMCache: what of it the adapters call, which version it is, and which of its code paths really runs."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.provenance import file_digests, library_version

KNOWN_VERSIONS = ("0.5.6",)
TRANSFER_KEY = {"transfer_key": "kvverify"}  # what 0.5.6 asks transfer_kv_per_object_group to tag its timings with
_WORKERS = (
    "lmcache.lmcache_native",
    "lmcache.v1.multiprocess.object_group_transfer",
    "lmcache.v1.platform.devices.cpu.cache_context",
    "lmcache.v1.platform.devices.cpu.device_ops",
    "lmcache.v1.platform.torch_ops.mp_mem_kernels",
    "lmcache.v1.platform.torch_ops._tensor_from_ptr",
    "lmcache.v1.gpu_connector.gpu_ops",
    "lmcache.v1.gpu_connector.kv_format.contiguity",
    "lmcache.v1.gpu_connector.kv_format.detectors.vllm",
    "lmcache.v1.gpu_connector.utils",
    "lmcache.v1.kv_layer_groups",
)


@dataclass(frozen=True, slots=True)
class Library:
    """Modules and names of LMCache, as it spells them."""

    version: str
    ops: Any  # lmcache.device_ops
    native: Any  # lmcache.lmcache_native: enums and format predicates
    transfer: Any  # lmcache.v1.multiprocess.object_group_transfer
    connector: Any  # lmcache.v1.gpu_connector.utils
    groups: Any  # lmcache.v1.kv_layer_groups
    memory: Any  # lmcache.v1.memory_management
    group_info: Any  # EngineGroupInfo
    context: Any  # CPUCacheContext or GPUCacheContext
    vllm_order: Any  # vLLM's name of a physical order -> LMCache's, NotImplementedError where it has none
    vllm: Any  # EngineType.VLLM
    transfer_options: Mapping[str, Any] = field(default_factory=dict)  # keywords of this release's transfer call
    slot_op_takes_block_stride: bool = True

    @property
    def has_compiled_ops(self) -> bool:
        """Did ``lmcache.device_ops`` bind the compiled extension, or stay on torch without a word?"""
        return hasattr(self.ops, "execute_object_group_transfer")

    def provenance(self, entry: str) -> dict[str, Any]:
        """Library, version, digests of the modules that do the work, and the path that ``entry`` takes here."""
        backend = type(self.ops).__name__
        how = "compiled extension" if self.has_compiled_ops else "torch fallback, no compiled kernel ran"
        modules = [importlib.import_module(name) for name in _WORKERS]
        return {
            "library": "lmcache",
            "version": self.version,
            "path": f"{entry} on {backend} ({how})",
            "files": file_digests(module.__file__ for module in modules),
        }


@functools.cache
def load() -> Library:
    """Import LMCache.

    Raises:
        EnvironmentProblem: not installed, or a version that no adapter knows.
    """
    version = known_version(KNOWN_VERSIONS)
    root = importlib.import_module("lmcache")
    if root.torch_device_type != "cpu":
        raise EnvironmentProblem(
            f"LMCache chose the device {root.torch_device_type}; these adapters drive its CPU path, which needs "
            f"LMCACHE_DEVICE_BACKEND=cpu before it is imported"
        )
    of = importlib.import_module
    return Library(
        version=version,
        ops=root.device_ops,
        native=of("lmcache.lmcache_native"),
        transfer=of("lmcache.v1.multiprocess.object_group_transfer"),
        connector=of("lmcache.v1.gpu_connector.utils"),
        groups=of("lmcache.v1.kv_layer_groups"),
        memory=of("lmcache.v1.memory_management"),
        group_info=of("lmcache.v1.multiprocess.group_view").EngineGroupInfo,
        context=of("lmcache.v1.platform.devices.cpu.cache_context").CPUCacheContext,
        vllm_order=of("lmcache.integration.vllm.utils").translate_vllm_kv_cache_layout,
        vllm=of("lmcache.utils").EngineType.VLLM,
        transfer_options=TRANSFER_KEY,
    )


def known_version(known: Sequence[str]) -> str:
    """Return the version of the installed LMCache.

    Raises:
        EnvironmentProblem: not installed, or none of ``known``.
    """
    version = library_version("lmcache")
    if version == "unknown":
        raise EnvironmentProblem("LMCache is not installed here; `nox -s stacks` makes an environment that has it")
    if version not in known:
        raise EnvironmentProblem(
            f"LMCache {version} is installed, the adapter knows {', '.join(known)}: its transfer calls change "
            f"from release to release; install lmcache=={known[-1]}"
        )
    return version
