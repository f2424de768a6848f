"""The arena: one real device allocation and one real host allocation around a layout, and the views a kernel receives.

    device mapping   [no access | guard | engine buffer | guard | no access]
    host mapping     [no access | guard | slot 0 | guard | slot 1 | guard | ... | no access]

A sparse buffer is mapped with windows around its usable blocks only, and again at the places where their addresses would land
if an offset were cut to 32 bits: a wrapped write is then seen as a damaged guard instead of a lost process.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from kvverify.arena.geometry import block_start, content_runs, padding_runs
from kvverify.arena.memory import (
    PAGE,
    BorrowedMemory,
    Bytes,
    Mapping,
    Memory,
    Window,
    merge_windows,
    page_ceil,
    page_floor,
)
from kvverify.errors import ContractError
from kvverify.layout.placement import Layer, Layout

if TYPE_CHECKING:
    import torch

GUARD = PAGE
MARGIN = (
    1 << 20
)  # address space without access at both ends, so that a write a little further out meets no other mapping
_FAR = 1 << 30
_WRAPS = (1 << 32, 1 << 33)  # a byte offset, or an offset in 2-byte elements, cut to 32 bits


class Arena:
    """Memory for one layout. ``layers``, ``group_layers``, ``host``, ``stream``, ``rank`` and ``world_size`` are the contract's.

    Args:
        layout: where every byte lies.
        host_slots: number of host slots.
        blocks_per_slot: blocks that one slot holds.
        rank: this process among those that share the model.
        world_size: their number.

    Raises:
        MemoryError: the system refuses the address space.
    """

    stream: Any = None

    def __init__(
        self, layout: Layout, host_slots: int, blocks_per_slot: int = 1, *, rank: int = 0, world_size: int = 1
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self.layout = layout
        self.host_slots = host_slots
        self.blocks_per_slot = blocks_per_slot
        self.base, size, windows = _device_windows(layout)
        self.device: Memory = Mapping(size, windows)
        self.slot_bytes = page_ceil(layout.host_slot_bytes() * blocks_per_slot)
        # beside a sparse buffer the host rows lie far apart too: the third begins beyond 2^31 bytes
        self.slot_stride = self.slot_bytes + GUARD + (_FAR if layout.usable_blocks is not None else 0)
        self.host_base, host_size, windows = host_windows(self.slot_bytes, self.slot_stride, host_slots)
        self.host_memory: Mapping | BorrowedMemory = Mapping(host_size, windows)

    @property
    def mapping(self) -> Mapping:
        """The device side as memory of this process."""
        if not isinstance(self.device, Mapping):
            raise TypeError("the engine's buffer is on a GPU")
        return self.device

    @property
    def buffer(self) -> Bytes:
        """The engine's buffer, uint8 [size_bytes]; index it by positions of the layout."""
        return self.mapping.array[self.base : self.base + self.layout.size_bytes]

    def slot(self, index: int) -> Bytes:
        """One host slot, uint8 [slot_bytes]."""
        start = self.host_base + index * self.slot_stride
        return self.host_memory.array[start : start + self.slot_bytes]

    def current(self) -> AbstractContextManager[None]:
        """Make the arena's stream the current one; the CPU has none."""
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until the stream has done all that was enqueued; the CPU has none."""

    def spin(self, milliseconds: int) -> None:
        """Keep the stream busy; the CPU has none."""

    def storage(self) -> torch.Tensor:
        """The whole allocation, guards included, uint8 [size]."""
        import torch

        return torch.frombuffer(self.mapping.array, dtype=torch.uint8)

    @functools.cached_property
    def layers(self) -> list[torch.Tensor]:
        """The view of each layer, in the order of ``layout.layers``."""
        storage = self.storage()
        return [self._view(storage, layer) for layer in self.layout.layers]

    @functools.cached_property
    def group_layers(self) -> list[list[torch.Tensor]]:
        """The views of each layer group."""
        return [[self.layers[i] for i in self.layout.group_layers(g.index)] for g in self.layout.groups]

    @functools.cached_property
    def host(self) -> torch.Tensor:
        """uint8 [host_slots, slot_bytes], rows 4,096-aligned with a guard after each."""
        import torch

        storage = torch.frombuffer(self.host_memory.array, dtype=torch.uint8)
        return storage.as_strided((self.host_slots, self.slot_bytes), (self.slot_stride, 1), self.host_base)

    def adopt_host(self, rows: torch.Tensor) -> None:
        """Take the host tier that a library owns, uint8 [slots, bytes], in place of the arena's own.

        Where ranks share a tier, each returns its own part of every slot; what lies between its rows is the others'.

        Raises:
            ContractError: it is not such a tensor, or parts of two ranks share a page of 4,096 bytes.
        """
        import torch

        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[0] < self.host_slots or rows.stride(1) != 1:
            raise ContractError(
                f"prepare returned a tensor {tuple(rows.shape)} of {rows.dtype} with strides {rows.stride()}; "
                f"expected uint8 [{self.host_slots} slots or more, bytes] with dense rows"
            )
        span = rows.stride(0) * (rows.shape[0] - 1) + rows.shape[1]
        flat = rows.as_strided((span,), (1,), rows.storage_offset())
        self.host_memory = BorrowedMemory(flat.numpy(), self._own_parts(rows))
        self.host_base, self.slot_stride, self.slot_bytes = 0, rows.stride(0), rows.shape[1]

    def _own_parts(self, rows: torch.Tensor) -> tuple[Window, ...]:
        """Windows of a shared tier that are this rank's; none where all of it is."""
        (slots, width), stride = rows.shape, rows.stride(0)
        if self.world_size == 1 or stride == width:
            return ()
        if rows.data_ptr() % PAGE or stride % PAGE or width % PAGE:
            raise ContractError(
                f"prepare returned rows of {width} bytes, {stride} apart, from a tier that {self.world_size} ranks share; expected "
                f"every rank's part to begin and end at a multiple of {PAGE} bytes"
            )
        return tuple((slot * stride, slot * stride + width) for slot in range(slots))

    def _view(self, storage: torch.Tensor, layer: Layer) -> torch.Tensor:
        import torch

        size = layer.element_bytes
        strides = (layer.row_stride, *layer.strides)
        if any(s % size for s in (*strides, layer.offset)):
            raise ValueError(
                f"layer {layer.name}: strides {strides} or offset {layer.offset} not a multiple of {size} bytes"
            )
        shape = (self.layout.num_blocks * layer.rows_per_block, *layer.shape)
        typed = storage.view(getattr(torch, layer.element))
        return typed.as_strided(shape, tuple(s // size for s in strides), (self.base + layer.offset) // size)


def host_windows(slot_bytes: int, stride: int, slots: int) -> tuple[int, int, tuple[Window, ...]]:
    """Return the position of slot 0 in the mapping, the mapping's size and its windows."""
    far = stride >= _FAR
    base = MARGIN + GUARD + (_WRAPS[0] if far else 0)
    size = base + (slots - 1) * stride + slot_bytes + GUARD + MARGIN
    if not far:
        return base, size, ((MARGIN, size - MARGIN),)
    offsets = [slot * stride for slot in range(slots)]
    wrapped = [(o + (1 << 31)) % (1 << 32) - (1 << 31) for o in offsets] + [o % (1 << 32) for o in offsets]
    windows = merge_windows((base + o - GUARD, base + o + slot_bytes + GUARD) for o in (*offsets, *wrapped))
    return base, size, windows


def _device_windows(layout: Layout) -> tuple[int, int, tuple[Window, ...]]:
    """Return the position of the buffer in the mapping, the mapping's size and its windows."""
    if layout.usable_blocks is None:
        base = MARGIN + GUARD
        stop = page_ceil(base + layout.size_bytes) + GUARD
        return base, stop + MARGIN, ((MARGIN, stop),)
    base = MARGIN + GUARD + max(_WRAPS)
    stop = page_ceil(base + layout.size_bytes) + GUARD
    windows = [(base - GUARD, base), (stop - GUARD, stop)]
    for layer in layout.layers:
        for block in layout.usable_blocks:
            for start, length in (*content_runs(layer), *padding_runs(layer)):
                first = base + block_start(layer, block) + start
                aliases = (first - wrap for wrap in (0, *_WRAPS) if first - wrap >= GUARD + MARGIN)
                windows.extend((page_floor(a - GUARD), page_ceil(a + length + GUARD)) for a in aliases)
    return base, stop + MARGIN, merge_windows(windows)
