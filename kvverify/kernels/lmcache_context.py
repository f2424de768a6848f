"""LMCache's cache context over an arena: layers lent in place of another process's, one chunk's object over each host row.

The multiprocess server builds the same from the engine's registration and its allocator. What a transfer needs beyond the
context, block ids for each kernel group and the memory objects, is made here for CPU and CUDA alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvverify.kernels.lmcache_groups import chunk_tokens, register

if TYPE_CHECKING:
    import torch

    from kvverify.kernels.contract import ArenaView
    from kvverify.kernels.lmcache_library import Library

MOST_OBJECTS = 4  # objects a call: pointers the block op takes, and buffers a cache context stages through


@dataclass(frozen=True, slots=True)
class _Lent:
    """A tensor of the arena in the place of LMCache's IPC wrapper, which would map it from another process."""

    tensor: torch.Tensor

    def to_tensor(self) -> torch.Tensor:
        return self.tensor

    def close(self) -> None:
        """Nothing was mapped."""


class ChunkContext:
    """A cache context and the memory objects of its chunks; chunk ``j`` of a group lies in host slot ``j``.

    An object is ``[kv, layer, token, head * content]`` of one kernel group after the other, from the start of the row.
    """

    def __init__(self, lib: Library, arena: ArenaView, blocks_per_slot: int) -> None:
        registration = register(lib, arena.layout, arena.layers, blocks_per_slot)
        self._lib = lib
        self._blocks_per_slot = blocks_per_slot
        self.block_tokens = arena.layout.groups[0].block_tokens
        self.context = lib.context(
            [_Lent(view) for view in arena.layers],
            lmcache_tokens_per_chunk=chunk_tokens(arena.layout, blocks_per_slot),
            layout_hints=registration.hints,
            engine_group_infos=registration.infos,
            engine_type=lib.vllm,
            separate_object_groups=True,
        )
        manager = self.context.kv_layer_groups_manager
        self._objects: dict[int, list[Any]] = {}  # engine group -> [host slot] TensorMemoryObj
        self._object_groups: dict[int, int] = {}
        for number, object_group in enumerate(manager.object_groups):
            indices = object_group.kernel_group_indices
            group = manager.kernel_groups[indices[0]].engine_group_idx
            self._object_groups[group] = number
            self._objects[group] = [self._memory_object(indices, row) for row in arena.host]

    def _memory_object(self, kernel_groups: Sequence[int], row: torch.Tensor) -> Any:
        """One chunk's object over a host row, described as the server's allocator would."""
        chunk = self.context.lmcache_tokens_per_chunk
        shapes, dtypes = zip(*(self.context.get_kernel_group_shape_dtype(chunk, g) for g in kernel_groups), strict=True)
        size = sum(shape.numel() * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True))
        memory = self._lib.memory
        metadata = memory.MemoryObjMetadata(
            shape=shapes[0],
            dtype=dtypes[0],
            address=row.storage_offset(),
            phy_size=size,
            ref_count=1,
            fmt=memory.MemoryFormat.KV_2LTD,
            shapes=list(shapes),
            dtypes=list(dtypes),
        )
        return memory.TensorMemoryObj(row[:size], metadata, parent_allocator=None)

    def object_group(self, group: int) -> int:
        """LMCache's number of the object group that holds the layers of ``group``."""
        return self._object_groups[group]

    def objects(self, group: int, slots: Sequence[int]) -> list[Any]:
        """The memory objects over host rows ``slots``."""
        return [self._objects[group][slot] for slot in slots]

    def stage(self, ids: Sequence[int], group: int) -> tuple[list[Any], list[list[int]]]:
        """Put block ids where the transfer reads them; return them as staged tensors and as lists, one a kernel group."""
        kernel_groups = self.context.kv_layer_groups_manager.kernel_groups
        per_group = [list(ids) if g.engine_group_idx == group else [] for g in kernel_groups]
        if len(ids) % self._blocks_per_slot == 0:
            return self._lib.transfer.downsample_and_stage_block_ids(self.context, per_group), per_group
        # a part that ends before its chunk does is nothing the server asks for: staged without the server's check
        return self.context.stage_block_ids(per_group), per_group

    def close(self) -> None:
        """Drop the objects, then the context."""
        self._objects = {}
        self.context.close()
