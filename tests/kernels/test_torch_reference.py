from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

import torch as t

from kvverify.kernels.contract import ArenaView
from kvverify.kernels.registry import check_kernel, supports_reason
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.kernels.fake_arena import (
    make_arena,
    make_sparse_arena,
    moved,
    overwrite,
    round_trip,
    sparse_round_trip,
    wrong_bytes,
)
from tests.kernels.recipes import RECIPES, recipes


@pytest.mark.parametrize("blocks_per_slot", [1, 2, 3])
@pytest.mark.parametrize("name", RECIPES)
def test_every_layout_round_trips(torch: ModuleType, name: str, blocks_per_slot: int) -> None:
    layout = place(RECIPES[name])
    for group in layout.groups:
        arena = make_arena(layout, blocks_per_slot=blocks_per_slot)
        kernel = TorchReference(blocks_per_slot)
        assert supports_reason(kernel, layout) is None
        kernel.prepare(arena)
        slots = [4, 1, 0, 3][: -(-4 // blocks_per_slot)]
        assert round_trip(kernel, arena, [3, 0, 6, 1], slots, [7, 2, 5, 4], group=group.index) == 0
        kernel.close()


@given(recipes(), st.integers(1, 3), st.data())
def test_any_blocks_of_any_layout_round_trip(recipe: Recipe, blocks_per_slot: int, data: st.DataObject) -> None:
    layout = place(recipe)
    arena = make_arena(layout, host_slots=layout.num_blocks, blocks_per_slot=blocks_per_slot)
    kernel = TorchReference(blocks_per_slot)
    kernel.prepare(arena)
    loaded = data.draw(st.lists(st.sampled_from(layout.blocks), min_size=1, unique=True))
    stored = data.draw(st.lists(st.sampled_from(layout.blocks), min_size=len(loaded), max_size=len(loaded)))
    slots = data.draw(st.permutations(range(layout.num_blocks)))[: -(-len(loaded) // blocks_per_slot)]
    assert round_trip(kernel, arena, stored, slots, loaded) == 0


class ForgetsTheLastLayer(TorchReference):
    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._pages[0].pop()


class SwapsTwoBlocks(TorchReference):
    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        super().store(block_ids[::-1], host_slots, group=group)


class WritesOneByteTooMany(TorchReference):
    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        super().load(host_slots, block_ids, group=group)
        page = self._pages[0][-1][0]
        page.view(t.uint8).as_strided((1,), (1,), page.storage_offset() * page.element_size() - 1).add_(1)


@pytest.mark.parametrize("broken", [ForgetsTheLastLayer, SwapsTwoBlocks, WritesOneByteTooMany])
def test_the_comparison_sees_a_broken_kernel(torch: ModuleType, broken: type[TorchReference]) -> None:
    arena = make_arena(place(RECIPES["mixed LBNHC"]))
    kernel = broken()
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [3, 0, 6, 1], [4, 1, 0, 3], [7, 2, 5, 4]) > 0


def test_part_of_a_slot_is_loaded_and_nothing_else(torch: ModuleType) -> None:
    arena = make_arena(place(RECIPES["mixed LBNHC"]), blocks_per_slot=3)
    kernel = TorchReference(3)
    kernel.prepare(arena)
    before = arena.memory.clone()
    kernel.store([3, 0, 6, 1, 2], [4, 1])
    overwrite(arena)
    want = moved(arena, before, [(0, 7), (6, 5), (1, 4)])
    kernel.load_part(4, 1, [7, 5])
    kernel.load_part(1, 0, [4])
    assert wrong_bytes(arena, want) == 0


def test_a_buffer_of_more_than_4_gib_is_only_touched_where_its_blocks_are(torch: ModuleType) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, count=2), LayerRecipe("fp8_e4m3", 2, 66)), num_blocks=1 << 18))
    assert layout.size_bytes > 4 << 30
    arena = make_sparse_arena(layout, blocks_per_slot=2)
    last = layout.num_blocks - 1
    assert sparse_round_trip(TorchReference(2), arena, [last, 5, 131_072, 7], [0, last - 1, 262_000, 131_071]) == 0


def test_nan_patterns_arrive_as_they_left(torch: ModuleType) -> None:
    arena = make_arena(place(RECIPES["padded pages"]))
    signalling = t.tensor([0x7F800001, 0x7FC00000, 0xFF800001 - (1 << 32)], dtype=t.int32)
    arena.layers[0].view(t.int32)[3] = signalling[0]
    kernel = TorchReference()
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [3], [0], [5]) == 0
    assert bool((arena.layers[0].view(t.int32)[5] == signalling[0]).all())


def test_the_number_of_slots_must_fit_the_number_of_blocks(torch: ModuleType) -> None:
    kernel = TorchReference(2)
    kernel.prepare(make_arena(place(RECIPES["bf16 LBNHC"]), blocks_per_slot=2))
    with pytest.raises(ValueError, match=r"torch: 3 blocks at 2 a slot need 2 slots, got 3"):
        kernel.store([0, 1, 2], [0, 1, 2])


def test_a_host_slot_that_is_too_small_is_named(torch: ModuleType) -> None:
    arena = make_arena(place(RECIPES["bf16 LBNHC"]))
    small = dataclasses.replace(arena, host=arena.host[:, :4096])
    with pytest.raises(ValueError, match=r"torch: a host slot has 4096 bytes, 1 blocks of 24576 bytes do not fit"):
        TorchReference().prepare(small)


def test_blocks_per_slot_must_be_positive(torch: ModuleType) -> None:
    with pytest.raises(ValueError, match="blocks_per_slot is 0"):
        TorchReference(0)


def test_it_keeps_the_contract_and_names_its_files(torch: ModuleType) -> None:
    kernel = TorchReference(4)
    check_kernel(kernel, "torch")
    provenance = kernel.provenance()
    assert provenance["library"] == "torch"
    assert set(provenance["files"]) == {"kvverify/kernels/torch_reference.py", "torch/__init__.py"}
    assert all(len(digest) == 64 for digest in provenance["files"].values())
