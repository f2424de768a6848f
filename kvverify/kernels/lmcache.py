"""Adapters over the two CPU paths of LMCache's multiprocess mode.

Both go through LMCache's own entry points with its own layer groups. Host memory is ``arena.host``: a slot is the object of
one chunk, ``[kv, layer, token, head * content]`` of one kernel group after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.lmcache_groups import Registration, chunk_tokens, register, unsupported
from kvverify.kernels.lmcache_library import load

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

_MOST_OBJECTS = 4  # objects a call: pointers the block op takes, and buffers a cache context stages through


@dataclass(frozen=True, slots=True)
class _Lent:
    """A tensor of the arena in the place of LMCache's shared-memory wrapper, which would map it from another process."""

    tensor: torch.Tensor

    def to_tensor(self) -> torch.Tensor:
        return self.tensor


class LMCacheTransfer:
    """The multiprocess server's own path: ``downsample_and_stage_block_ids`` and ``transfer_kv_per_object_group``."""

    name = "lmcache"
    groups = True
    blocks_per_slot = 2

    def __init__(self) -> None:
        self._lib = load()
        self._context: Any = None
        self._objects: list[list[Any]] = []  # [object group][host slot] TensorMemoryObj
        self._block_tokens = 0

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return unsupported(self._lib, layout, self.blocks_per_slot) or True

    def prepare(self, arena: ArenaView) -> None:
        """Make a cache context over the arena's layers, and one memory object a slot and group over ``arena.host``."""
        lib, layout = self._lib, arena.layout
        registration = register(lib, layout, arena.layers, self.blocks_per_slot)
        self._block_tokens = layout.groups[0].block_tokens
        self._context = lib.context(
            [_Lent(view) for view in arena.layers],
            lmcache_tokens_per_chunk=chunk_tokens(layout, self.blocks_per_slot),
            layout_hints=registration.hints,
            engine_group_infos=registration.infos,
            engine_type=lib.vllm,
            separate_object_groups=True,
        )
        self._objects = [
            [self._memory_object(group.kernel_group_indices, row) for row in arena.host]
            for group in self._context.kv_layer_groups_manager.object_groups
        ]

    def _memory_object(self, kernel_groups: Sequence[int], row: torch.Tensor) -> Any:
        """One chunk's object over a host row, described as the server's allocator would."""
        chunk = self._context.lmcache_tokens_per_chunk
        shapes, dtypes = zip(
            *(self._context.get_kernel_group_shape_dtype(chunk, g) for g in kernel_groups), strict=True
        )
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

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks of blocks to host slots."""
        self._transfer(block_ids, host_slots, group, 0, self._lib.native.TransferDirection.D2H)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks from host slots to blocks."""
        self._transfer(block_ids, host_slots, group, 0, self._lib.native.TransferDirection.H2D)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy what follows sub-block ``first``, through ``skip_first_n_tokens``.

        LMCache is given ids for the skipped blocks too, as it is when the engine's prefix cache holds them; here they repeat
        the first destination.
        """
        ids = [block_ids[0]] * first + list(block_ids)
        self._transfer(ids, [slot], group, first * self._block_tokens, self._lib.native.TransferDirection.H2D)

    def _transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_tokens: int, way: Any) -> None:
        context, transfer = self._context, self._lib.transfer
        kernel_groups = context.kv_layer_groups_manager.kernel_groups
        per_group = [list(ids) if g.engine_group_idx == group else [] for g in kernel_groups]
        full = len(ids) % self.blocks_per_slot == 0
        # a part that ends before its chunk does is nothing the server asks for: staged without the server's check
        staged = (
            transfer.downsample_and_stage_block_ids(context, per_group) if full else context.stage_block_ids(per_group)
        )
        transfer.transfer_kv_per_object_group(
            context,
            staged,
            [self._objects[group][slot] for slot in slots],
            group,
            min(_MOST_OBJECTS, context.max_batch_size),
            skip_tokens,
            way,
            transfer_key="kvverify",
        )

    def wait(self) -> None:
        """On the CPU a call returns when its copies are done."""

    def close(self) -> None:
        """Drop the context and the memory objects."""
        self._objects = []
        if self._context is not None:
            self._context.close()
            self._context = None

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self._lib.provenance("transfer_kv_per_object_group, block op through a staging buffer")


class LMCacheBlockOp:
    """``device_ops.multi_layer_block_kv_transfer`` called for each kernel group, with pointers into the host rows."""

    name = "lmcache-block"
    groups = True
    blocks_per_slot = 2

    def __init__(self) -> None:
        self._lib = load()
        self._registration: Registration | None = None
        self._host: torch.Tensor | None = None
        self._pointers: list[torch.Tensor] = []  # per kernel group: int64 [layer]

    def supports(self, layout: Layout) -> bool | str:
        """True, or LMCache's own reason."""
        return unsupported(self._lib, layout, self.blocks_per_slot) or True

    def prepare(self, arena: ArenaView) -> None:
        """Register the layers and keep their pointers."""
        self._registration = register(self._lib, arena.layout, arena.layers, self.blocks_per_slot)
        self._host = arena.host
        self._pointers = [
            torch.tensor(
                self._lib.connector.get_group_data_ptrs(
                    self._registration.tensors, group.engine_kv_format, group.layer_indices
                )
            )
            for group in self._registration.manager.kernel_groups
        ]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks of blocks to host slots."""
        self._transfer(block_ids, host_slots, group, 0, self._lib.native.TransferDirection.D2H)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks from host slots to blocks."""
        self._transfer(block_ids, host_slots, group, 0, self._lib.native.TransferDirection.H2D)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy what follows sub-block ``first``, through ``skip_prefix_n_blocks``."""
        ids = [block_ids[0]] * first + list(block_ids)
        self._transfer(ids, [slot], group, first, self._lib.native.TransferDirection.H2D)

    def _transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        k = self.blocks_per_slot
        for start in range(0, len(slots), _MOST_OBJECTS):
            batch = slots[start : start + _MOST_OBJECTS]
            self._transfer_batch(ids[start * k : (start + _MOST_OBJECTS) * k], batch, group, skip_blocks, way)

    def _transfer_batch(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        assert self._registration is not None and self._host is not None  # noqa: PT018 - set together by prepare
        offset = 0
        for pointers, kernel_group in zip(self._pointers, self._registration.manager.kernel_groups, strict=True):
            if kernel_group.engine_group_idx != group:
                continue
            desc = kernel_group.shape_desc
            chunk_slots = self.blocks_per_slot * desc.bs
            self._lib.ops.multi_layer_block_kv_transfer(
                pointers,
                [self._host[slot].data_ptr() + offset for slot in slots],
                torch.tensor(ids),
                torch.device("cpu"),
                way,
                desc,
                chunk_slots,
                kernel_group.engine_kv_format,
                skip_blocks,
            )
            offset += (
                desc.kv_size
                * kernel_group.num_layers
                * chunk_slots
                * kernel_group.hidden_dim_size
                * kernel_group.dtype.itemsize
            )

    def wait(self) -> None:
        """On the CPU a call returns when its copies are done."""

    def close(self) -> None:
        """Drop the arena's tensors."""
        self._registration = self._host = None
        self._pointers = []

    def provenance(self) -> dict[str, Any]:
        """Library, version, digests and the path that runs here."""
        return self._lib.provenance("multi_layer_block_kv_transfer")
