"""Faults that were reported in public: F01 to F21 of the catalogue, as far as the bytes that one copy leaves can show them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from kvverify.faults.fault import Traits
from kvverify.faults.planted import Misaddressed, Misplaced, Planted, SeenArena, Unwritten, rows_of
from kvverify.layout.placement import Field, Layer, Layout, Role

if TYPE_CHECKING:
    import torch

    from kvverify.kernels.contract import ArenaView, CopyKernel

Copy = Callable[[list[int], list[int]], None]
_INT32, _UINT32 = 1 << 31, 1 << 32
_WORD_BYTES = 8


class StridedAsContiguous(Misaddressed):
    """F01: the views as if they were contiguous from their first element on."""

    def misplaced(self, blocks: Sequence[int], group: int) -> list[Misplaced]:
        """Every layer, with dense strides."""
        return [_misread(self, layer, blocks, dense(self.view(layer))) for layer in self.layers_of(group)]


def dense(view: torch.Tensor) -> torch.Tensor:
    """``view`` with dense strides from its first element on."""
    shape = view.shape
    return view.as_strided(shape, [math.prod(shape[i + 1 :]) for i in range(len(shape))], view.storage_offset())


def _misread(planted: Planted, layer: Layer, blocks: Sequence[int], wrong: torch.Tensor) -> Misplaced:
    rows = rows_of(layer, blocks)
    return Misplaced(planted.view(layer), rows, wrong, rows)


def has_scattered_blocks(traits: Traits, layout: Layout) -> str | None:
    """F01 moves the same bytes both ways where a block is one dense run."""
    if is_sparse(traits, layout):
        return "a sparse buffer: dense addresses have no memory behind them"
    if all(_block_is_dense(layer) for layer in layout.layers):
        return "every block is one contiguous run, so the order inside is the kernel's own"
    return None


def _block_is_dense(layer: Layer) -> bool:
    return layer.block_stride == layer.page_bytes


def is_sparse(traits: Traits, layout: Layout) -> bool:
    """Is there no memory behind parts of the buffer? On a GPU all of it is allocated."""
    return layout.usable_blocks is not None and traits.get("device", "cpu") == "cpu"


class AxisSwap(Misaddressed):
    """F02: [block, 2, ...] read as [2, block, ...] and the other way round."""

    def misplaced(self, blocks: Sequence[int], group: int) -> list[Misplaced]:
        """Layers with K and V in a dimension of their own, with the strides of the other arrangement."""
        split = [layer for layer in self.layers_of(group) if len(layer.shape) == 4]
        return [_misread(self, layer, blocks, kv_swapped(self.view(layer))) for layer in split]


def kv_swapped(view: torch.Tensor) -> torch.Tensor:
    """``view`` with the strides of block and K/V as the other arrangement has them."""
    row, plane, *rest = view.stride()
    # block_kv has plane = row / 2; kv_block has row = page / 2 and plane = blocks * row
    strides = (plane, plane * view.shape[0], *rest) if plane < row else (2 * row, row, *rest)
    return view.as_strided(view.shape, strides, view.storage_offset())


def has_split_layers(traits: Traits, layout: Layout) -> str | None:
    """F02 needs K and V in a dimension of their own."""
    if not any(len(layer.shape) == 4 for layer in layout.layers):
        return "no layer has K and V in a dimension of their own"
    if is_sparse(traits, layout):
        return "a sparse buffer: the exchanged addresses have no memory behind them"
    return None


class KernelBlockStride(Planted):
    """F03: the block stride is taken from the kernel block."""

    def seen(self, arena: SeenArena) -> ArenaView:
        """Hide that a block has several rows: block b is then row b."""
        layers = tuple(dataclasses.replace(layer, rows_per_block=1) for layer in arena.layout.layers)
        views = [v[: arena.layout.num_blocks] for v in arena.layers]
        return arena.with_layers(views, dataclasses.replace(arena.layout, layers=layers))


def has_kernel_blocks(_traits: Traits, layout: Layout) -> str | None:
    """F03 needs blocks of several rows."""
    if all(layer.rows_per_block == 1 for layer in layout.layers):
        return "blocks are not split into kernel blocks"
    return None


def trailing_scales(layer: Layer) -> list[Field]:
    """The scales at the end of a cell, first to last; none where cells do not hold their own scales."""
    content = [f for f in layer.fields if f.role is not Role.PADDING]
    steps = {(f.head_stride, f.token_stride, f.heads, f.tokens) for f in content}
    inside = all(f.offset < f.token_stride for f in content) or len(content) < 2
    if len(steps) > 1 or not inside or len(layer.shape) == 4:
        return []
    found: list[Field] = []
    for field in sorted(content, key=lambda f: -f.offset):
        if field.role is not Role.SCALE:
            break
        found.insert(0, field)
    return found


def short_copy_width(kernel: CopyKernel) -> CopyKernel:
    """F04: the copy is as wide as data alone; the scales behind the values are cut off."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        for field in trailing_scales(layer):
            yield planted.bytes.field(layer, field)

    return Unwritten(kernel, parts)


def has_trailing_scales(_traits: Traits, layout: Layout) -> str | None:
    """F04 needs cells that end with scales."""
    return None if any(trailing_scales(layer) for layer in layout.layers) else "no cell ends with inline scales"


def sidecar_dropped(kernel: CopyKernel) -> CopyKernel:
    """F05: no scale, norm, minimum or zero point is copied."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        for field in layer.fields:
            if field.role is Role.SCALE:
                yield planted.bytes.field(layer, field)

    return Unwritten(kernel, parts)


def has_scales(_traits: Traits, layout: Layout) -> str | None:
    """F05 needs scales."""
    fields = [f for layer in layout.layers for f in layer.fields]
    return None if any(f.role is Role.SCALE for f in fields) else "no format with scales"


def logical_element_size(kernel: CopyKernel) -> CopyKernel:
    """F06: bytes counted in elements of the model's 16-bit dtype, and as many bytes moved: half a cell."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        if layer.element == "uint8":
            view = planted.view(layer)
            yield view[..., view.shape[-1] // 2 :]

    return Unwritten(kernel, parts)


def has_byte_layers(_traits: Traits, layout: Layout) -> str | None:
    """F06 needs storage that is narrower than the logical dtype."""
    return None if any(x.element == "uint8" for x in layout.layers) else "storage and logical dtype are the same"


def word_remainder(kernel: CopyKernel) -> CopyKernel:
    """F07: 8-byte words, without what is left of a token row."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        view, left = planted.view(layer), _left_over(layer)
        if left:
            yield view[..., view.shape[-1] - left // layer.element_bytes :]

    return Unwritten(kernel, parts)


def _left_over(layer: Layer) -> int:
    return layer.shape[-1] * layer.element_bytes % _WORD_BYTES


def has_odd_rows(_traits: Traits, layout: Layout) -> str | None:
    """F07 needs token rows that are no multiple of a word."""
    return None if any(map(_left_over, layout.layers)) else "every token row is a multiple of 8 bytes"


class Int32Offset(Misaddressed):
    """F08: block id times stride in 32 bits."""

    def misplaced(self, blocks: Sequence[int], group: int) -> list[Misplaced]:
        """The fields of blocks that wrap, and the same rows where their offset leads in 32 bits."""
        return [
            self._place(layer, field, block, shift)
            for layer in self.layers_of(group)
            for block in blocks
            if (shift := _wrapped(block * layer.block_stride))
            for field in layer.fields
            if field.role is not Role.PADDING
        ]

    def _place(self, layer: Layer, field: Field, block: int, shift: int) -> Misplaced:
        rows = rows_of(layer, [block])
        wrong = self.bytes.rows(layer, field, rows[0], len(rows), shift)
        return Misplaced(self.bytes.field(layer, field), rows, wrong, list(range(len(rows))))


def _wrapped(offset: int) -> int:
    """How far from its place ``offset`` leads in 32 bits."""
    return (offset + _INT32) % _UINT32 - _INT32 - offset


def crosses_int32(_traits: Traits, layout: Layout) -> str | None:
    """F08 needs block offsets beyond 2^31."""
    if any(layer.block_stride * max(layout.blocks) >= _INT32 for layer in layout.layers):
        return None
    return "the buffer is smaller than 2 GiB"


class SkipSide(Planted):
    """F09: a load that starts inside a slot takes the sub-blocks from its beginning."""

    def around_load_part(
        self, slot: int, first: int, blocks: list[int], group: int, copy: Callable[[int, list[int]], None]
    ) -> None:
        """Skip on the wrong side."""
        copy(0, blocks)


def has_load_part(traits: Traits, _layout: Layout) -> str | None:
    """F09 needs loads that start inside a slot."""
    return None if traits["load_part"] else "the kernel has no load_part"


def full_hit_tail(kernel: CopyKernel) -> CopyKernel:
    """F10: the last token of a load is left out, as after a full hit that is counted one token short."""

    def parts(planted: Planted, layer: Layer) -> Iterator[torch.Tensor]:
        for field in layer.fields:
            if field.role is not Role.PADDING and field.tokens > 1:
                yield planted.bytes.field(layer, field)[:, :, -1:, :]

    return Unwritten(kernel, parts, lambda layer, blocks: rows_of(layer, blocks)[-1:])


def has_tokens(_traits: Traits, layout: Layout) -> str | None:
    """F10 needs blocks of several tokens."""
    fields = [f for layer in layout.layers for f in layer.fields]
    return None if any(f.tokens > 1 for f in fields) else "blocks hold one token"


class LayerShift(Planted):
    """F11: on a load, layer i gets what is layer i + 1's."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Load, then shift by one among layers of one shape."""
        copy(slots, blocks)
        self.settle()
        for alike in layers_alike(self.layers_of(group)):
            rows = rows_of(alike[0], blocks)
            loaded = [self.view(layer)[rows].clone() for layer in alike]
            for layer, bytes_ in zip(alike, loaded[1:] + loaded[:1], strict=True):
                self.view(layer)[rows] = bytes_


def layers_alike(layers: Sequence[Layer]) -> list[list[Layer]]:
    """Layers that could be taken for each other: two or more of one format and shape."""
    found: dict[tuple[object, ...], list[Layer]] = {}
    for layer in layers:
        found.setdefault((layer.group, layer.kv_format, layer.shape, layer.rows_per_block), []).append(layer)
    return [alike for alike in found.values() if len(alike) > 1]


def has_layers_alike(_traits: Traits, layout: Layout) -> str | None:
    """F11 needs two layers of one shape."""
    return None if layers_alike(layout.layers) else "no two layers have the same format and shape"


class SwallowedError(Planted):
    """F16: the third transfer of a load fails, and the load says that it succeeded."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Leave out the third slot."""
        if len(slots) < 3:
            copy(slots, blocks)
            return
        per_slot = int(getattr(self.kernel, "blocks_per_slot", 1))
        left_slots, left_blocks = slots[:2] + slots[3:], blocks[: 2 * per_slot] + blocks[3 * per_slot :]
        copy(left_slots, left_blocks)


def has_third_slot(traits: Traits, layout: Layout) -> str | None:
    """F16 needs three slots in one load, whose destinations are distinct; the last slot may hold one block if partly filled."""
    per_slot = int(traits["blocks_per_slot"])
    needed = 2 * per_slot + (1 if traits.get("partial_slots", False) else per_slot)
    return None if len(layout.blocks) >= needed else "too few blocks for a load of three slots"


class NoLoad(Planted):
    """F21: a load does nothing and returns."""

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Nothing."""


class NoStore(Planted):
    """F21b: a store does nothing and returns."""

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Nothing."""


class StoreToNowhere(Planted):
    """F21c: a store goes where no load will look."""

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Store, then let the slots hold what they held."""
        if self.host is None:
            return
        self.settle()
        before = self.host[slots].clone()
        copy(blocks, slots)
        self.settle()
        self.host[slots] = before
