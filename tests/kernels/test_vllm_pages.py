from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given
from hypothesis import strategies as st

from kvverify.kernels.vllm_pages import (
    Page,
    PageTable,
    Run,
    block_tensor,
    canonical_pages,
    canonical_runs,
    is_packed,
    layer_runs,
    separate_pages,
    view_runs,
)
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.gpu.device_arena import make_device_arena
from tests.kernels.fake_arena import GUARD, positions

if TYPE_CHECKING:
    from kvverify.layout.placement import Layer, Layout

POOL = [place(recipe) for recipe in campaign_pool()]
SMALL = [layout for layout in POOL if layout.usable_blocks is None]


def ids(layout: Layout) -> str:
    return layout.name


def bytes_of(layer: Layer, block: int, *, padding: bool = False) -> set[int]:
    """Positions in the buffer, by the formula of the layout and not by strides."""
    kinds = (False, True) if padding else (False,)
    return {int(place) - GUARD for kind in kinds for place in positions(layer, [block], padding=kind)}


def covered(offset: int, runs: list[Run], block: int, *, whole_stride: bool = False) -> list[int]:
    return [
        offset + run.start + block * run.stride + i
        for run in runs
        for i in range(run.stride if whole_stride else run.size)
    ]


@pytest.mark.parametrize("layout", POOL, ids=ids)
def test_runs_of_a_layer_cover_the_content_of_a_block_once_and_nothing_of_another(layout: Layout) -> None:
    for layer in layout.layers[:8]:
        for block in layout.blocks[-2:]:
            found = covered(layer.offset, layer_runs(layer), block)
            assert len(found) == len(set(found))
            assert bytes_of(layer, block) <= set(found) <= bytes_of(layer, block, padding=True)


@pytest.mark.parametrize("layout", SMALL, ids=ids)
def test_canonical_pages_with_their_strides_are_the_block_with_its_padding(layout: Layout) -> None:
    block = layout.blocks[-1]
    for group, pages in zip(layout.groups, canonical_runs(layout), strict=True):
        layers = [layout.layers[i] for i in layout.group_layers(group.index)]
        content = set[int]().union(*(bytes_of(layer, block) for layer in layers))
        everything = set[int]().union(*(bytes_of(layer, block, padding=True) for layer in layers))
        copied = [place for offset, run in pages for place in covered(offset, [run], block)]
        room = [place for offset, run in pages for place in covered(offset, [run], block, whole_stride=True)]
        assert content <= set(copied) <= set(room) <= everything
        assert len(room) == len(set(room))


@pytest.mark.parametrize("layout", SMALL, ids=ids)
def test_views_say_the_same_as_the_layout(layout: Layout) -> None:
    arena = make_device_arena(layout, device="cpu")
    base = arena.memory.data_ptr() + GUARD
    for view, layer in zip(arena.layers, layout.layers, strict=True):
        assert view_runs(view, layer.rows_per_block) == layer_runs(layer)
    for pages, runs in zip(canonical_pages(arena), canonical_runs(layout), strict=True):
        assert [(p.address - base, p.stride, p.size) for p in pages] == [
            (offset + run.start, run.stride, run.size) for offset, run in runs
        ]


@pytest.mark.parametrize("blocks_per_slot", [1, 4])
@pytest.mark.parametrize("layout", SMALL, ids=ids)
def test_a_host_slot_holds_all_pages_side_by_side(layout: Layout, blocks_per_slot: int) -> None:
    arena = make_device_arena(layout, device="cpu", host_slots=1, blocks_per_slot=blocks_per_slot)
    groups = [*canonical_pages(arena, blocks_per_slot), *(separate_pages(arena) if blocks_per_slot == 1 else [])]
    for pages in groups:
        edge = 0
        for page in pages:
            assert page.slot_offset >= edge
            assert page.size <= page.room
            edge = page.slot_offset + blocks_per_slot * page.room
        assert edge <= layout.host_slot_bytes() * blocks_per_slot


MIXED = (LayerRecipe("bf16", 2, 64), LayerRecipe("turboquant_4bit_nc", 2, 64, count=2))


@pytest.mark.parametrize(
    ("recipe", "runs"),
    [
        (Recipe(MIXED), [(0, 8192, 8192), (65_536, 2240, 2240), (83_456, 2240, 2240)]),
        (Recipe(MIXED, page_padding=64), [(0, 8256, 8192), (66_048, 2304, 2240), (84_480, 2304, 2240)]),
        (Recipe(MIXED, "BLNHC"), [(0, 12_672, 12_672)]),
        (Recipe((LayerRecipe("bf16", 2, 64),), "LHBNC"), [(0, 4096, 4096), (32_768, 4096, 4096)]),
        (Recipe((LayerRecipe("bf16", 2, 64, split="kv_block"),)), [(0, 4096, 4096), (32_768, 4096, 4096)]),
        (Recipe((LayerRecipe("bf16", 2, 64, split="block_kv"),)), [(0, 8192, 8192)]),
        (Recipe((LayerRecipe("bf16", 2, 64, count=2),), "BHLNC"), [(0, 16_384, 16_384)]),
        (Recipe((LayerRecipe("bf16", 2, 64),), block_tokens=32, kernel_block_tokens=16), [(0, 16_384, 16_384)]),
    ],
    ids=[
        "mixed",
        "padded",
        "packed",
        "heads outside",
        "K and V planes",
        "K and V in a block",
        "BHLNC",
        "kernel blocks",
    ],
)
def test_worked_examples(recipe: Recipe, runs: list[tuple[int, int, int]]) -> None:
    (pages,) = canonical_runs(place(recipe))
    assert [(offset + run.start, run.stride, run.size) for offset, run in pages] == runs


@given(st.sampled_from([layout for layout in SMALL if layout.num_blocks > 1]), st.data())
def test_tensor_and_addresses_reach_the_same_bytes(layout: Layout, data: st.DataObject) -> None:
    arena = make_device_arena(layout, device="cpu", host_slots=3)
    group = data.draw(st.sampled_from(layout.groups)).index
    pages = canonical_pages(arena)[group]
    blocks = data.draw(st.lists(st.sampled_from(layout.blocks), min_size=1, max_size=4))
    slots = data.draw(st.lists(st.integers(0, 2), min_size=len(blocks), max_size=len(blocks)))
    table = PageTable(pages, arena.host)
    sizes = table.sizes(len(blocks)).tolist()
    of_blocks = [bytes_at(a, n) for a, n in zip(table.blocks(blocks).tolist(), sizes, strict=True)]
    of_slots = [bytes_at(a, n) for a, n in zip(table.slots(slots).tolist(), sizes, strict=True)]
    for page, number in zip(pages, range(0, len(sizes), len(blocks)), strict=True):
        tensor = block_tensor(arena.layers[0], page, layout.num_blocks)
        assert tensor.shape == (layout.num_blocks, page.stride)
        for i, (block, slot) in enumerate(zip(blocks, slots, strict=True)):
            assert of_blocks[number + i] == tensor[block, : page.size].numpy().tobytes()
            row = arena.host[slot, page.slot_offset : page.slot_offset + page.size]
            assert of_slots[number + i] == row.numpy().tobytes()


def bytes_at(address: int, count: int) -> bytes:
    return ctypes.string_at(address, count)


def test_addresses_beyond_4_gib() -> None:
    host = torch.empty(0, dtype=torch.uint8).as_strided((1, 0), (1 << 33, 1))
    table = PageTable([Page(1 << 46, 1 << 20, 1 << 20, 1 << 20, 0)], host)
    assert table.blocks([0, 1 << 20]).tolist() == [1 << 46, (1 << 46) + (1 << 40)]
    assert table.slots([3]).tolist() == [host.data_ptr() + 3 * (1 << 33)]
    assert table.blocks([1]).dtype == torch.int64


def test_the_pool_has_packed_and_other_layouts() -> None:
    assert np.unique([is_packed(layout) for layout in POOL]).size == 2
