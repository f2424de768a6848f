"""Adapter over LMCache's copy-engine path, which moves whole blocks by batched asynchronous memcpy and runs no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.lmcache_cuda import LMCacheCudaTransfer
from kvverify.kernels.lmcache_groups import Registration, unsupported

if TYPE_CHECKING:
    from kvverify.layout.placement import Layout

_OP = "execute_direct_copy_transfer"


class LMCacheDirectCopy(LMCacheCudaTransfer):
    """``transfer_kv_per_object_group`` with host block ids: ``execute_direct_copy_transfer`` between pages and pinned rows.

    Stream and events are those of the staged path. It is what the server of a release that has it does on CUDA 12.8 and later
    for every layout whose blocks are one run each.
    """

    name = "lmcache-direct"

    def __init__(self) -> None:
        super().__init__()
        ops, version = self.lib.ops, self.lib.version
        if not hasattr(ops, _OP):
            raise EnvironmentProblem(f"LMCache {version} has no {_OP}; the adapter knows it from 0.5.6")
        if not ops.batch_memcpy_supported():
            raise EnvironmentProblem(
                f"LMCache {version}: batched memcpy is not usable here; {_OP} needs runtime and driver of CUDA 12.8 or later, "
                f"or ROCm with LMCACHE_ROCM_ENABLE_BATCH_MEMCPY=1"
            )

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return unsupported(self.lib, layout, self.blocks_per_slot, self._limits) or True

    def _limits(self, registration: Registration) -> str | None:
        for group in registration.manager.kernel_groups:
            if not self.lib.ops.direct_copy_format_supported(group.engine_kv_format):
                return (
                    f"format {group.engine_kv_format.name}: LMCache copies directly only token-major layouts whose block is "
                    f"one contiguous run (direct_copy_format_supported)"
                )
        return None

    def _path_options(self, block_ids: list[list[int]]) -> Mapping[str, Any]:
        """Host block ids make LMCache take the direct path, for the formats that ``supports`` lets through."""
        return {"block_ids_host": block_ids}

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self.lib.provenance(f"transfer_kv_per_object_group over lent layers, direct: {_OP}")
