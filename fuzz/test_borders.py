"""Transfers at the sizes where copies go wrong: one block, a chunk and one more, launch thresholds, the whole pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.roundtrip.program import Check, Evict, Fill, Ids, Load, Program, Step, Store, is_valid

if TYPE_CHECKING:
    from fuzz.conftest import Bench

WIDE = Recipe(
    layers=(LayerRecipe("bf16", 1, 64), LayerRecipe("turboquant_4bit_nc", 1, 64, 2), LayerRecipe("bf16", 1, 64)),
    num_blocks=37,
)
few_examples = settings(
    max_examples=6, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


def run_clean(bench: Bench, recipe: Recipe, steps: list[Step], host_slots: int, per_slot: int) -> None:
    program = Program(1, tuple(steps), host_slots, per_slot)
    assert is_valid(program, place(recipe).blocks)
    outcome = bench.run(recipe, program)
    assert not outcome.failed, f"{outcome.kind} at step {outcome.step}: {outcome.headline}"
    assert outcome.compared_bytes > 0
    assert outcome.moved_bytes > 0


@pytest.mark.parametrize("slots", [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 18])
def test_store_and_load_of_every_border_count(bench: Bench, slots: int) -> None:
    shape = bench.shape(WIDE)
    if shape.slow and slots > 5:
        pytest.skip("an interpreter is too slow for long transfers")
    count = slots * shape.blocks_per_slot
    if count > len(shape.blocks):
        pytest.skip(f"{count} blocks do not fit into a pool of {len(shape.blocks)}")
    sources, targets = shape.blocks[:count], tuple(reversed(shape.blocks))[:count]
    held = tuple(range(slots))
    steps = [Fill(sources), Store(sources, held), Check(), Load(held, targets), Check(), Load(held[::-1], targets)]
    run_clean(bench, WIDE, steps, slots, shape.blocks_per_slot)


@few_examples
@given(data=st.data())
def test_the_last_store_to_a_slot_wins_without_a_check_between(bench: Bench, data: st.DataObject) -> None:
    shape = bench.shape(WIDE)
    per_slot = shape.blocks_per_slot
    rounds = data.draw(st.integers(2, 4))
    steps: list[Step] = []
    for number in range(rounds):
        blocks = shape.blocks[number * per_slot : (number + 1) * per_slot]
        steps += [Fill(blocks), Store(blocks, (1,))]
    target: Ids = tuple(data.draw(st.permutations(shape.blocks)))[:per_slot]
    run_clean(bench, WIDE, [*steps, Load((1,), target)], 3, per_slot)


@few_examples
@given(data=st.data())
def test_a_block_that_was_loaded_can_be_stored_again(bench: Bench, data: st.DataObject) -> None:
    shape = bench.shape(WIDE)
    per_slot = shape.blocks_per_slot
    order = tuple(data.draw(st.permutations(shape.blocks)))
    first, second, third = (order[i * per_slot : (i + 1) * per_slot] for i in range(3))
    steps = [
        Fill(first),
        Store(first, (0,)),
        Load((0,), second),
        Evict(first),
        Store(second, (2,)),
        Load((2,), third),
        Check(),
        Load((2,), first),
    ]
    run_clean(bench, WIDE, steps, 3, per_slot)


@pytest.mark.parametrize("recipe", [r for r in campaign_pool() if r.usable_blocks], ids=lambda r: place(r).name)
def test_block_ids_on_both_sides_of_the_32_bit_borders(bench: Bench, recipe: Recipe) -> None:
    shape = bench.shape(recipe)
    per_slot = shape.blocks_per_slot
    low, high = shape.blocks[:per_slot], shape.blocks[-per_slot:]
    steps = [Fill(low), Fill(high), Store(high, (0,)), Store(low, (1,)), Check(), Load((0,), low), Load((1,), high)]
    run_clean(bench, recipe, steps, 2, per_slot)
