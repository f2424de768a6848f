from __future__ import annotations

import itertools
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.arena.arena import Arena
from kvverify.arena.geometry import (
    Owner,
    block_start,
    content_runs,
    group_spans,
    join_runs,
    locate,
    padding_runs,
    position_of,
    scale_positions,
)
from kvverify.layout.formats import Arrangement, slot_format
from kvverify.layout.place import place
from kvverify.layout.placement import Layer, Layout, Role
from kvverify.layout.pool import campaign_pool

LAYOUTS = {layout.name: layout for layout in map(place, campaign_pool())}
EACH = pytest.mark.parametrize("name", LAYOUTS)


def ends(count: int) -> list[int]:
    return sorted({0, count // 2, count - 1})


def cell_bytes(layer: Layer, row: int, head: int, token: int, names: tuple[str, ...] | None = None) -> list[int]:
    """Positions of one (head, token) cell in a row, by the formula of the placement."""
    return [
        layer.offset + row * layer.row_stride + f.offset + head * f.head_stride + token * f.token_stride + j
        for f in layer.fields
        if f.name != "padding" and (names is None or f.name in names)
        for j in range(f.length)
    ]


@EACH
def test_views_and_index_arithmetic_agree_on_every_byte_of_a_cell(torch: ModuleType, name: str) -> None:
    layout = LAYOUTS[name]
    arena = Arena(layout, 1)
    origin = arena.mapping.address + arena.base
    for layer, view in zip(layout.layers, arena.layers, strict=True):
        assert tuple(view.shape) == (layout.num_blocks * layer.rows_per_block, *layer.shape)
        arrangement = slot_format(layer.kv_format).arrangement
        rows = [block * layer.rows_per_block + r for block in layout.blocks for r in ends(layer.rows_per_block)]
        for row in rows:
            if arrangement in (Arrangement.CELLS, Arrangement.STATE):
                assert_cells(layer, view[row], row, origin)
            else:
                assert_dense_page(layer, view[row], row, origin)


def assert_cells(layer: Layer, view: object, row: int, origin: int) -> None:
    split = len(layer.shape) == 4
    heads, tokens, content = layer.shape[-3:]
    for head, token in itertools.product(ends(heads), ends(tokens)):
        parts = [view[0, head, token], view[1, head, token]] if split else [view[head, token]]  # type: ignore[index]
        seen = [p for part in parts for p in range(part.data_ptr(), part.data_ptr() + content * layer.element_bytes)]
        assert all(part.stride(0) == 1 for part in parts)
        assert [origin + p for p in cell_bytes(layer, row, head, token)] == seen


def assert_dense_page(layer: Layer, view: object, row: int, origin: int) -> None:
    """The page is dense, and the fields of all cells partition it."""
    start = view.data_ptr()  # type: ignore[attr-defined]
    size = view.numel() * layer.element_bytes  # type: ignore[attr-defined]
    fields = [f for f in layer.fields if f.role is not Role.PADDING]
    owned = [
        origin + layer.offset + row * layer.row_stride + f.offset + h * f.head_stride + n * f.token_stride + j
        for f in fields
        for h in range(f.heads)
        for n in range(f.tokens)
        for j in range(f.length)
    ]
    assert sorted(owned) == list(range(start, start + size))


@st.composite
def owners(draw: st.DrawFn) -> tuple[Layout, Owner]:
    layout = LAYOUTS[draw(st.sampled_from(list(LAYOUTS)))]
    number = draw(st.integers(0, len(layout.layers) - 1))
    layer = layout.layers[number]
    at = draw(st.integers(0, len(layer.fields) - 1))
    field = layer.fields[at]
    byte = draw(st.integers(0, field.length - 1))
    before = sum(f.length for f in layer.fields[:at])
    owner = Owner(
        layer=number,
        block=draw(st.sampled_from(layout.blocks)),
        head=draw(st.integers(0, field.heads - 1)),
        token=draw(st.integers(0, field.tokens * layer.rows_per_block - 1)),
        field=field.name,
        byte=byte,
        cell_byte=before + byte,
    )
    return layout, owner


@settings(max_examples=1000)
@given(owners())
def test_locating_a_position_gives_back_its_owner(case: tuple[Layout, Owner]) -> None:
    layout, owner = case
    group = layout.layers[owner.layer].group
    assert locate(layout, position_of(layout, owner), {owner.block: group}) == owner


@settings(max_examples=300)
@given(st.sampled_from(list(LAYOUTS)), st.floats(0, 1, exclude_max=True))
def test_every_position_has_an_owner_at_it_or_lies_in_no_run(name: str, share: float) -> None:
    layout = LAYOUTS[name]
    position = int(share * layout.size_bytes)
    owner = locate(layout, position)
    if owner is not None:
        assert position_of(layout, owner) == position
        return
    for layer in layout.layers:
        for block in layout.blocks:
            start = block_start(layer, block)
            runs = (*content_runs(layer), *padding_runs(layer))
            assert not any(start + a <= position < start + a + n for a, n in runs)


@EACH
def test_outside_the_buffer_nobody_owns_anything(name: str) -> None:
    layout = LAYOUTS[name]
    for position in (-1, -4096, layout.size_bytes, layout.size_bytes + 4095):
        assert locate(layout, position) is None


def runs_of(layout: Layout, group: int, padding: bool) -> list[tuple[int, int]]:
    return [
        (block_start(layout.layers[i], block) + start, length)
        for i in layout.group_layers(group)
        for block in layout.blocks
        for start, length in (padding_runs if padding else content_runs)(layout.layers[i])
    ]


@EACH
def test_no_byte_of_a_group_has_two_owners(name: str) -> None:
    layout = LAYOUTS[name]
    for group in layout.groups:
        found = np.array(sorted(runs_of(layout, group.index, False) + runs_of(layout, group.index, True)), np.int64)
        assert (found[1:, 0] >= found[:-1, 0] + found[:-1, 1]).all()
        assert found[0, 0] >= 0
        assert found[-1].sum() <= layout.size_bytes


@EACH
def test_runs_hold_as_many_bytes_as_the_page(name: str) -> None:
    for layer in LAYOUTS[name].layers:
        assert sum(length for _, length in content_runs(layer)) == layer.page_bytes
        assert sum(length for _, length in padding_runs(layer)) == layer.padding_bytes


@EACH
def test_spans_of_a_group_cover_its_content_exactly_once(name: str) -> None:
    layout = LAYOUTS[name]
    blocks = np.array(layout.blocks, np.int64)
    for group in layout.groups:
        spans = group_spans(layout, group.index)
        covered = [(int(start), s.length) for s in spans for start in s.starts(blocks)]
        assert sorted(covered) == sorted(runs_of(layout, group.index, False))


@EACH
def test_scale_positions_are_those_of_scales(name: str) -> None:
    layout = LAYOUTS[name]
    for layer in layout.layers:
        block = layout.blocks[-1]
        base = block_start(layer, block)
        groups = {block: layer.group}
        for (start, length), scales in zip(content_runs(layer), scale_positions(layer), strict=True):
            for j in sorted({0, length - 1, *scales[:2].tolist(), *scales[-2:].tolist()}):
                owner = locate(layout, base + start + j, groups)
                assert owner is not None
                role = next(f.role for f in layer.fields if f.name == owner.field)
                assert (role is Role.SCALE) == (j in scales)


@EACH
def test_group_of_block_decides_between_overlaid_groups(name: str) -> None:
    layout = LAYOUTS[name]
    for group in layout.groups:
        layer = layout.layers[layout.group_layers(group.index)[0]]
        position = block_start(layer, layout.blocks[1]) + content_runs(layer)[0][0]
        owner = locate(layout, position, {layout.blocks[1]: group.index})
        assert owner is not None
        assert layout.layers[owner.layer].group == group.index


def test_overlapping_runs_are_refused() -> None:
    assert join_runs([(4, 4), (0, 4), (10, 1)]) == ((0, 8), (10, 1))
    with pytest.raises(ValueError, match="bytes 3 to 3 have two owners"):
        join_runs([(0, 4), (3, 2)])
