"""Which contiguous runs of memory a block has: the pages that vLLM's offload code copies.

    canonical   what vLLM's connectors hand to a copy backend (``CanonicalKVCaches``): one tensor [block, bytes] for each run
                of a layer, padding of the block included; where the block axis lies outside the layer axis (orders BL*), one
                packed page with all layers of a block
    separate    one page for each layer, without the padding

Addresses and strides come from the registered views, as vLLM's do; the layout only says how many rows a block has and
whether pages are packed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layer, Layout

_ALIGNMENT = 16  # bytes: where the area of a layer begins in a host slot (plug-in contract, rule 4)


@dataclass(frozen=True, slots=True)
class Run:
    """Contiguous bytes that every block has: ``size`` of them from ``start + block * stride`` on, from the view's begin."""

    start: int
    stride: int
    size: int


@dataclass(frozen=True, slots=True)
class Page:
    """A run at its machine address, and its place in a host slot.

    ``room`` is what one sub-block of it takes in a slot; sub-block j of k begins at ``slot_offset + j * room``.
    """

    address: int
    stride: int
    size: int
    room: int
    slot_offset: int


def layer_runs(layer: Layer) -> list[Run]:
    """Return the runs of one block of ``layer``, in order of their start."""
    return _runs(layer.shape, layer.strides, layer.element_bytes, layer.row_stride, layer.rows_per_block)


def view_runs(view: torch.Tensor, rows_per_block: int) -> list[Run]:
    """Return the runs of one block of a registered view, in order of their start."""
    size = view.element_size()
    strides = [stride * size for stride in view.stride()]
    return _runs(tuple(view.shape[1:]), strides[1:], size, strides[0], rows_per_block)


def _runs(
    shape: Sequence[int], strides: Sequence[int], element_bytes: int, row_stride: int, rows_per_block: int
) -> list[Run]:
    size = element_bytes
    outer: list[tuple[int, int]] = []  # (stride, extent) of the axes whose steps leave the run
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent > 1 and not outer and stride == size:
            size *= extent
        elif extent > 1:
            outer.append((stride, extent))
    if rows_per_block > 1 and row_stride == size:
        size *= rows_per_block
    elif rows_per_block > 1:
        outer.append((row_stride, rows_per_block))
    steps = itertools.product(*([i * stride for i in range(extent)] for stride, extent in outer))
    return [Run(start, row_stride * rows_per_block, size) for start in sorted(map(sum, steps))]


def is_packed(layout: Layout) -> bool:
    """Does one block hold the pages of all layers side by side, so that vLLM copies it as one page?"""
    return layout.order.startswith("B")


def canonical_runs(layout: Layout) -> list[list[tuple[int, Run]]]:
    """Return (buffer offset of the layer, run) of every canonical page, for each group.

    A packed page is one run from the first layer's byte on, padding included.
    """
    if is_packed(layout):
        first = min(layout.layers, key=lambda layer: layer.offset)
        whole = Run(0, first.block_stride, first.block_stride)
        return [[(first.offset, whole)] for _ in layout.groups]
    return [
        [(layer.offset, run) for layer in layout.layers if layer.group == g.index for run in layer_runs(layer)]
        for g in layout.groups
    ]


def canonical_pages(arena: ArenaView, blocks_per_slot: int = 1) -> list[list[Page]]:
    """Return the canonical pages of each group; ``room`` is the stride, as vLLM's host pages are padded like its device's."""
    layout = arena.layout
    if is_packed(layout):
        view, layer = min(zip(arena.layers, layout.layers, strict=True), key=lambda pair: pair[0].data_ptr())
        stride = view.stride(0) * view.element_size() * layer.rows_per_block
        return [[Page(view.data_ptr(), stride, stride, stride, 0)] for _ in layout.groups]
    return [_lay_out(_group_runs(arena, group.index), blocks_per_slot, padded=True) for group in arena.layout.groups]


def separate_pages(arena: ArenaView) -> list[list[Page]]:
    """Return one page for each run of each layer of each group, whatever lies between two blocks of it."""
    return [_lay_out(_group_runs(arena, group.index), 1, padded=False) for group in arena.layout.groups]


def _group_runs(arena: ArenaView, group: int) -> Iterable[tuple[int, list[Run]]]:
    """Address and runs of each layer of ``group``."""
    positions = arena.layout.group_layers(group)
    for position, view in zip(positions, arena.group_layers[group], strict=True):
        yield view.data_ptr(), view_runs(view, arena.layout.layers[position].rows_per_block)


def _lay_out(layers: Iterable[tuple[int, list[Run]]], blocks_per_slot: int, *, padded: bool) -> list[Page]:
    """Place the areas of the layers one after the other in a slot, each from a multiple of 16 bytes on."""
    pages = []
    offset = 0
    for address, runs in layers:
        for run in runs:
            room = run.stride if padded else run.size
            pages.append(Page(address + run.start, run.stride, run.size, room, offset))
            offset += blocks_per_slot * room
        offset = -(-offset // _ALIGNMENT) * _ALIGNMENT
    return pages


def block_tensor(view: torch.Tensor, page: Page, num_blocks: int) -> torch.Tensor:
    """Return ``page`` of all blocks as uint8 [block, stride], a view of the storage that ``view`` lies in."""
    storage = view.untyped_storage()
    empty = torch.empty(0, dtype=torch.uint8, device=view.device)
    return empty.set_(storage, page.address - storage.data_ptr(), (num_blocks, page.stride), (page.stride, 1))


class PageTable:
    """Addresses of pages by block id and by host slot, as int64 tensors on the CPU, page after page as in vLLM's worker."""

    def __init__(self, pages: Sequence[Page], host: torch.Tensor) -> None:
        self.pages = tuple(pages)
        self.largest = max(page.size for page in pages)
        self._device = torch.tensor([[page.address] for page in pages])
        self._strides = torch.tensor([[page.stride] for page in pages])
        self._sizes = torch.tensor([[page.size] for page in pages])
        self._host = torch.tensor([[host.data_ptr() + page.slot_offset] for page in pages])
        self._slot_bytes = host.stride(0)

    def blocks(self, block_ids: Sequence[int]) -> torch.Tensor:
        """Device address of each page of each block, int64 [page * block]."""
        return (self._device + self._strides * torch.tensor(block_ids)).ravel()

    def slots(self, host_slots: Sequence[int]) -> torch.Tensor:
        """Host address of each page of each slot, int64 [page * slot]."""
        return (self._host + self._slot_bytes * torch.tensor(host_slots)).ravel()

    def sizes(self, count: int) -> torch.Tensor:
        """Bytes of each page of ``count`` blocks, int64 [page * block]."""
        return self._sizes.expand(-1, count).ravel()
