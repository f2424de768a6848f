"""Adapters over the two CPU paths of LMCache's multiprocess mode.

Both go through LMCache's own entry points with its own layer groups. Host memory is ``arena.host``: a slot is the object of
one chunk, ``[kv, layer, token, head * content]`` of one kernel group after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kvverify.kernels.lmcache_chunks import ChunkKernel
from kvverify.kernels.lmcache_context import MOST_OBJECTS, ChunkContext
from kvverify.kernels.lmcache_groups import Registration, known_defect, refused_by_fallback, unsupported
from kvverify.kernels.lmcache_library import load
from kvverify.kernels.lmcache_ops import BlockOp

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.kernels.lmcache_library import Library
    from kvverify.layout.placement import Layout


def _unsupported(lib: Library, layout: Layout, blocks_per_slot: int) -> str | None:
    reason = unsupported(lib, layout, blocks_per_slot, refused_by_fallback)
    if reason is None and (defect := known_defect(layout)) is not None:
        return f"known defect of LMCache 0.5.6, see results/findings.md: {defect}"
    return reason


class LMCacheTransfer(ChunkKernel):
    """The multiprocess server's own path: ``downsample_and_stage_block_ids`` and ``transfer_kv_per_object_group``."""

    name = "lmcache"

    def __init__(self) -> None:
        super().__init__(load())
        self._chunks: ChunkContext | None = None

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return _unsupported(self.lib, layout, self.blocks_per_slot) or True

    def prepare(self, arena: ArenaView) -> None:
        """Make a cache context over the arena's layers, and one memory object a slot and group over ``arena.host``."""
        self._chunks = ChunkContext(self.lib, arena, self.blocks_per_slot)

    def transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """Let the server's function copy, which skips by ``skip_first_n_tokens``."""
        assert self._chunks is not None
        context = self._chunks.context
        staged, _ = self._chunks.stage(ids, group)
        self.lib.transfer.transfer_kv_per_object_group(
            context,
            staged,
            self._chunks.objects(group, slots),
            self._chunks.object_group(group),
            min(MOST_OBJECTS, context.max_batch_size),
            skip_blocks * self._chunks.block_tokens,
            way,
            **self.lib.transfer_options,
        )

    def wait(self) -> None:
        """On the CPU a call returns when its copies are done."""

    def close(self) -> None:
        """Drop the context and the memory objects."""
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self.lib.provenance("transfer_kv_per_object_group, block op through a staging buffer")


class LMCacheBlockOp(BlockOp):
    """``device_ops.multi_layer_block_kv_transfer`` called for each kernel group, with pointers into the host rows."""

    name = "lmcache-block"
    entry = "multi_layer_block_kv_transfer"

    def __init__(self) -> None:
        super().__init__(load())

    def limits(self, registration: Registration) -> str | None:
        """What the torch fallback says that it cannot do."""
        return refused_by_fallback(registration)

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return _unsupported(self.lib, layout, self.blocks_per_slot) or True
