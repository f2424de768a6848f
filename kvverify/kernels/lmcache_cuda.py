"""Adapters over the GPU transfers of LMCache's multiprocess mode: its server's staged plan, and the block op by itself.

Both go through LMCache's own entry points with its own layer groups. Host memory is ``arena.host``: a slot is the object of
one chunk of ``blocks_per_slot`` blocks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.lmcache_chunks import ChunkKernel
from kvverify.kernels.lmcache_context import ChunkContext
from kvverify.kernels.lmcache_cuda_library import load, require_cupy
from kvverify.kernels.lmcache_groups import Registration, unsupported
from kvverify.kernels.lmcache_ops import BlockOp

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

_MOST_HEADS = 32  # threads of the y dimension; 0.5.6 checks it, 0.5.3 fails to launch


def block_op_limits(registration: Registration) -> str | None:
    """Return what ``multi_layer_block_kv_transfer`` itself says it cannot copy of this registration, or None."""
    for group in registration.manager.kernel_groups:
        desc = group.shape_desc
        head_bytes = desc.hs * desc.element_size
        if head_bytes % 2:
            return f"heads of {head_bytes} bytes: multi_layer_block_kv_transfer copies units of 2 bytes at least"
        if desc.nh > _MOST_HEADS:
            return f"{desc.nh} heads: multi_layer_block_kv_transfer has one warp for each head, {_MOST_HEADS} at most"
    return None


class LMCacheCudaTransfer(ChunkKernel):
    """What the multiprocess server does for a store and a retrieve: ``transfer_kv_per_object_group`` on a cache context.

    Without host block ids, as called here, the transfer is the staged plan: ``execute_object_group_transfer`` copies between
    pinned objects and the context's GPU buffers, and the block kernel between those and the pages. The layers are lent to the
    context in place of IPC wrappers; nothing else of it is replaced.

    All of it runs on the context's own stream. The contract between engine and server is an event: the engine records one on
    its current stream before the request, and the server makes the context's stream wait for it before it copies. The adapter
    does the same with ``arena.stream``, so that neither side asks its caller to synchronise. The other way round the server
    hands back an event of its stream, for which the engine waits on the host; here that is ``wait``, and ``done`` asks for it.
    """

    name = "lmcache"

    def __init__(self) -> None:
        super().__init__(load())
        require_cupy(self.lib.version)
        self._chunks: ChunkContext | None = None
        self._stream: Any = None
        self._finished: Any = None  # the event that the server would hand back

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return unsupported(self.lib, layout, self.blocks_per_slot, block_op_limits) or True

    def prepare(self, arena: ArenaView) -> None:
        """Make a cache context over the arena's layers, and one memory object a slot and group over ``arena.host``."""
        self._stream = arena.stream
        self._chunks = ChunkContext(self.lib, arena, self.blocks_per_slot)
        torch.cuda.synchronize()  # the context's pointer tables came over this stream, and are read on the context's

    def transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """Let the server's function copy: one object a batch as it stores, as many as the context stages as it loads.

        It skips by ``skip_first_n_tokens``.
        """
        assert self._chunks is not None
        context = self._chunks.context
        stores = way == self.lib.native.TransferDirection.D2H
        producer = self._event()
        producer.record(self._stream)
        with torch.cuda.stream(context.stream):
            staged, lists = self._chunks.stage(ids, group)
            producer.wait(context.stream)
            self.lib.transfer.transfer_kv_per_object_group(
                context,
                staged,
                self._chunks.objects(group, slots),
                self._chunks.object_group(group),
                1 if stores else context.max_batch_size,
                skip_blocks * self._chunks.block_tokens,
                way,
                **self.lib.transfer_options,
                **self._path_options(lists),
            )
            self._finished = self._event()
            self._finished.record(context.stream)

    @staticmethod
    def _event() -> Any:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def _path_options(self, block_ids: list[list[int]]) -> Mapping[str, Any]:
        """Keywords that choose LMCache's path; without host block ids it takes the staged plan."""
        del block_ids
        return {}

    def wait(self) -> None:
        """Block the host until the context's stream has done everything issued so far."""
        if self._chunks is not None:
            self._chunks.context.stream.synchronize()

    def done(self) -> bool:
        """Has the event passed that follows the last copy?"""
        return self._finished is None or bool(self._finished.query())

    def close(self) -> None:
        """Wait, then drop the context and the memory objects."""
        self.wait()
        if self._chunks is not None:
            self._chunks.close()
        self._chunks = self._stream = self._finished = None

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self.lib.provenance(
            "transfer_kv_per_object_group over lent layers, staged: execute_object_group_transfer"
        )


class LMCacheCudaBlockOp(BlockOp):
    """The block op by itself, between pages and pinned host rows, as LMCache's engine-driven transfers call it.

    It runs on torch's current stream, which is ``arena.stream``: producers, copies and readers are ordered by it.
    """

    name = "lmcache-block"
    entry = "multi_layer_block_kv_transfer over pinned rows"
    ordered = True

    def __init__(self) -> None:
        super().__init__(load())

    def limits(self, registration: Registration) -> str | None:
        """Even heads, and at most 32."""
        return block_op_limits(registration)
