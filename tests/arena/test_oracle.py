from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kvverify.arena import compare
from kvverify.arena.geometry import content_runs, scale_positions
from kvverify.arena.memory import Bytes, Mapping
from kvverify.arena.oracle import Mismatch, Oracle, occupant_of
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.arena.hand import (
    SMALL,
    expect_load,
    load,
    make_oracle,
    padding,
    positions,
    read,
    round_trip,
    store,
    take,
    write,
)

EACH = pytest.mark.parametrize("name", SMALL)


def tell(oracle: Oracle) -> Mismatch:
    found = oracle.check()
    assert found is not None
    return found


@functools.cache
def settled(name: str) -> Oracle:
    """Blocks loaded and checked, blocks filled, blocks and slots never touched; nothing pending."""
    oracle = make_oracle(SMALL[name])
    round_trip(oracle)
    assert oracle.check() is None
    return oracle


@functools.cache
def pending(name: str) -> Oracle:
    """The same, not checked yet: slots 0 and 2 may hold anything."""
    oracle = make_oracle(SMALL[name])
    round_trip(oracle)
    return oracle


def place_at(windows: tuple[tuple[int, int], ...], share: float) -> int:
    rest = int(share * sum(b - a for a, b in windows))
    for start, stop in windows:
        if rest < stop - start:
            return start + rest
        rest -= stop - start
    raise AssertionError(share)


def assert_flip_is_found(oracle: Oracle, region: str, position: int, mask: int) -> None:
    memory = oracle.arena.mapping if region == "device" else oracle.arena.host_memory
    right = int(memory.array[position])
    memory.array[position] ^= mask
    try:
        found = tell(oracle)
        assert (found.region, found.positions.tolist(), found.total) == (region, [position], 1)
        assert (found.expected.tolist(), found.found.tolist()) == ([right], [right ^ mask])
    finally:
        memory.array[position] = right


SHARES = st.floats(0, 1, exclude_max=True)


@settings(max_examples=300)
@given(st.sampled_from(list(SMALL)), st.sampled_from(["device", "host"]), SHARES, st.integers(1, 255))
@example("mixed", "device", 0.0, 0x80)  # the first byte of the guard before the buffer
@example("mixed", "host", 0.999999, 1)  # the last of the guard behind the slots
def test_any_one_flipped_byte_is_found(name: str, region: str, share: float, mask: int) -> None:
    oracle = settled(name)
    memory = oracle.arena.mapping if region == "device" else oracle.arena.host_memory
    assert_flip_is_found(oracle, region, place_at(memory.windows, share), mask)
    assert oracle.check() is None


@settings(max_examples=300)
@given(st.sampled_from(list(SMALL)), st.sampled_from(["device", "host"]), SHARES, st.integers(1, 255))
def test_any_one_flipped_byte_is_found_before_the_first_check(name: str, region: str, share: float, mask: int) -> None:
    oracle = pending(name)
    memory = oracle.arena.mapping if region == "device" else oracle.arena.host_memory
    position = place_at(memory.windows, share)
    if region == "host":
        slot, rest = divmod(position - oracle.arena.host_base, oracle.arena.slot_stride)
        assume(not (slot in oracle.dirty_slots and rest < oracle.arena.slot_bytes))
    assert_flip_is_found(oracle, region, position, mask)


@EACH
def test_edges_of_everything_are_compared(name: str) -> None:
    oracle = settled(name)
    layout, base = oracle.arena.layout, oracle.arena.base
    edges = {base - 1, base + layout.size_bytes}
    for block in layout.blocks:
        for number, layer in enumerate(layout.layers):
            where = positions(oracle, number, block)
            edges |= {int(where.min()), int(where.max()), int(where.min()) - 1, int(where.max()) + 1}
            edges |= set(padding(oracle, number, block)[[0, -1]].tolist()) if layer.padding_bytes else set()
    for position in sorted(edges):
        assert_flip_is_found(oracle, "device", position, 0x40)
    for slot in range(oracle.arena.host_slots):
        start = oracle.arena.host_base + slot * oracle.arena.slot_stride
        for position in (start - 1, start, start + oracle.arena.slot_bytes - 1, start + oracle.arena.slot_bytes):
            assert_flip_is_found(oracle, "host", position, 0x40)


@EACH
def test_every_byte_that_is_not_inaccessible_is_compared(name: str) -> None:
    oracle = settled(name)
    before = oracle.compared_bytes
    assert oracle.check() is None
    total = 0
    for memory in (oracle.arena.mapping, oracle.arena.host_memory):
        total += memory.size - memory.inaccessible_bytes
    assert oracle.compared_bytes - before == total


def test_a_window_that_is_left_out_is_an_error_of_ours() -> None:
    oracle = make_oracle(SMALL["sparse"])
    memory = oracle.arena.mapping
    short = Mapping.__new__(Mapping)
    for name in ("size", "array", "inaccessible_bytes"):
        setattr(short, name, getattr(memory, name))
    short.windows = memory.windows[:-1]
    with pytest.raises(AssertionError, match=r"compared \d+ \+ inaccessible \d+ != \d+ bytes"):
        compare.compare("device", short, oracle._device_shadow[:-1])


@settings(max_examples=100)
@given(st.binary(min_size=16, max_size=16), st.integers(1, 255), st.sets(st.integers(0, 15)))
@example(b"\xff\x7f" * 8, 1, set(range(16)))
def test_a_hostile_occupant_differs_in_every_byte(data: bytes, mask: int, scales: set[int]) -> None:
    incoming = np.frombuffer(data, np.uint8)[None, :]
    occupant = occupant_of(incoming, mask, np.array(sorted(scales), np.int64))
    assert (occupant != incoming).all()
    assert set(occupant[0, sorted(scales)].tolist()) <= {0x7F, 0xFF}


@EACH
def test_the_occupant_lies_in_memory_before_the_load_with_extreme_scales(name: str) -> None:
    oracle = make_oracle(SMALL[name])
    source, target = oracle.arena.layout.blocks[0], oracle.arena.layout.blocks[4]
    oracle.fill([source], 0, "fill")
    store(oracle, [source], [1])
    untouched = oracle.arena.mapping.array[oracle.arena.base - 100 : oracle.arena.base].copy()
    expect_load(oracle, [1], [target])
    for number in oracle.arena.layout.group_layers(0):
        layer = oracle.arena.layout.layers[number]
        assert (
            read(oracle, positions(oracle, number, target)) != read(oracle, positions(oracle, number, source))
        ).all()
        for (start, length), scales in zip(content_runs(layer), scale_positions(layer), strict=True):
            run = oracle.arena.base + layer.offset + target * layer.block_stride + start
            there = oracle.arena.mapping.array[run : run + length]
            assert set(there[scales].tolist()) <= {0x7F, 0xFF}
            assert [(p, b.tobytes()) for p, b in oracle.occupant_bytes(layer, target) if p == run] == [
                (run, there.tobytes())
            ]
    assert (oracle.arena.mapping.array[oracle.arena.base - 100 : oracle.arena.base] == untouched).all()


Wrong = Callable[[Oracle, tuple[int, ...]], None]


def load_that_does_nothing(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    expect_load(oracle, [0], [blocks[4]])


def store_that_does_nothing(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    oracle.expect_store([blocks[1]], [3], 1)
    load(oracle, [3], [blocks[4]])


def load_into_another_block(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    expect_load(oracle, [0], [blocks[4]])
    take(oracle, [0], [blocks[5]])


def load_from_another_slot(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    expect_load(oracle, [0], [blocks[4]])
    take(oracle, [2], [blocks[4]])


def store_to_another_slot(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    store(oracle, [blocks[1]], [3])
    oracle.arena.slot(1)[:] = oracle.arena.slot(3)


def store_another_block(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    store(oracle, [blocks[0]], [3])
    oracle.slots[3] = oracle.slots[0]
    load(oracle, [3], [blocks[4]])


def swap_two_layers(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    load(oracle, [0], [blocks[4]])
    last = len(oracle.arena.layout.group_layers(0)) - 1
    one, other = positions(oracle, last - 1, blocks[4]), positions(oracle, last, blocks[4])
    common = min(len(one), len(other))
    kept = read(oracle, one[:common])
    write(oracle, one[:common], read(oracle, other[:common]))
    write(oracle, other[:common], kept)


def leave_out_the_last_layer(oracle: Oracle, blocks: tuple[int, ...]) -> None:
    expect_load(oracle, [0], [blocks[4]])
    last = positions(oracle, len(oracle.arena.layout.group_layers(0)) - 1, blocks[4])
    occupant = read(oracle, last)
    take(oracle, [0], [blocks[4]])
    write(oracle, last, occupant)


WRONG: list[Wrong] = [
    load_that_does_nothing,
    store_that_does_nothing,
    load_into_another_block,
    load_from_another_slot,
    store_to_another_slot,
    store_another_block,
    swap_two_layers,
    leave_out_the_last_layer,
]


def is_found(name: str, wrong: Wrong) -> bool:
    oracle = make_oracle(SMALL[name])
    round_trip(oracle)
    assert oracle.check() is None
    wrong(oracle, oracle.arena.layout.blocks)
    return oracle.check() is not None


@EACH
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_copy_is_found(name: str, wrong: Wrong) -> None:
    assert is_found(name, wrong)


@pytest.mark.parametrize("wrong", WRONG)
def test_the_tests_above_can_fail(monkeypatch: pytest.MonkeyPatch, wrong: Wrong) -> None:
    def always_the_same(_left: Bytes, _right: Bytes) -> bool:
        return True

    monkeypatch.setattr(compare, "same_bytes", always_the_same)
    assert not any(is_found(name, wrong) for name in ("mixed", "overlaid groups"))
    oracle = make_oracle(SMALL["mixed"])
    with pytest.raises(AssertionError):
        assert_flip_is_found(oracle, "device", oracle.arena.base, 1)


PADDED = [name for name in SMALL if name in ("gaps and padding", "cell padding", "blocks outside")]


def loaded_with_padding(name: str) -> tuple[Oracle, int, int]:
    oracle = make_oracle(SMALL[name])
    source, target = oracle.arena.layout.blocks[0], oracle.arena.layout.blocks[4]
    oracle.fill([source], 0, "fill")
    store(oracle, [source], [0])
    load(oracle, [0], [target])
    for layer in range(len(oracle.arena.layout.layers)):
        write(oracle, padding(oracle, layer, target), read(oracle, padding(oracle, layer, source)))
    return oracle, source, target


@pytest.mark.parametrize("name", PADDED)
def test_padding_may_be_carried_along(name: str) -> None:
    oracle, _, _ = loaded_with_padding(name)
    assert oracle.check() is None
    assert oracle.check() is None


@pytest.mark.parametrize("name", PADDED)
@pytest.mark.parametrize("end", [0, -1])
def test_padding_that_is_not_exactly_the_sources_is_found(name: str, end: int) -> None:
    oracle, _, target = loaded_with_padding(name)
    last = len(oracle.arena.layout.layers) - 1
    where = padding(oracle, last, target)[[end]]
    write(oracle, where, read(oracle, where) ^ np.uint8(1))
    found = tell(oracle)
    assert set(found.positions.tolist()) <= set(padding(oracle, last, target).tolist())
    assert where[0] in found.positions


@pytest.mark.parametrize("name", PADDED)
def test_padding_of_another_block_than_the_loaded_is_nobodys(name: str) -> None:
    oracle, source, _ = loaded_with_padding(name)
    assert oracle.check() is None
    other = oracle.arena.layout.blocks[5]
    last = len(oracle.arena.layout.layers) - 1
    write(oracle, padding(oracle, last, other), read(oracle, padding(oracle, last, source)))
    assert set(tell(oracle).positions.tolist()) <= set(padding(oracle, last, other).tolist())


@pytest.mark.parametrize("name", PADDED)
def test_padding_carried_twice_before_a_check_is_accepted(name: str) -> None:
    oracle, source, target = loaded_with_padding(name)
    onward = oracle.arena.layout.blocks[5]
    store(oracle, [target], [1])
    load(oracle, [1], [onward])
    for layer in range(len(oracle.arena.layout.layers)):
        write(oracle, padding(oracle, layer, onward), read(oracle, padding(oracle, layer, source)))
    assert oracle.check() is None


@pytest.mark.parametrize("name", PADDED)
def test_carried_padding_outlives_new_contents_of_its_block(name: str) -> None:
    oracle, _, target = loaded_with_padding(name)
    oracle.fill([target], 0, "evict")
    assert oracle.check() is None


def test_carried_padding_is_settled_before_another_group_covers_a_part_of_it() -> None:
    oracle = make_oracle(SMALL["overlaid groups"])
    source, target = 0, 4
    oracle.fill([source], 1, "fill")
    store(oracle, [source], [0], 1)
    load(oracle, [0], [target], 1)
    last = len(oracle.arena.layout.layers) - 1
    write(oracle, padding(oracle, last, target), read(oracle, padding(oracle, last, source)))
    oracle.fill([target], 0, "the other group")
    assert oracle.check() is None


def test_groups_that_overlay_each_other_are_told_apart() -> None:
    oracle = make_oracle(SMALL["overlaid groups"])
    oracle.fill([0, 1], 0, "full")
    oracle.fill([2, 3], 1, "window")
    store(oracle, [0, 1], [0, 1], 0)
    store(oracle, [2, 3], [2, 3], 1)
    load(oracle, [2], [0], 1)
    load(oracle, [0], [2], 0)
    assert oracle.check() is None
    assert (oracle.contents[0].group, oracle.contents[2].group) == (1, 0)
    where = positions(oracle, 3, 0)
    write(oracle, where, read(oracle, positions(oracle, 3, 3)))
    assert set(tell(oracle).positions.tolist()) <= set(where.tolist())


@EACH
def test_new_contents_over_a_loaded_block_are_what_counts(name: str) -> None:
    oracle = make_oracle(SMALL[name])
    round_trip(oracle)
    target = oracle.arena.layout.blocks[3]
    oracle.fill([target], 0, "fill again")
    assert target not in oracle.landings
    assert oracle.check() is None
    take(oracle, [2], [target])
    assert set(tell(oracle).positions.tolist()) <= {
        int(p) for layer in oracle.arena.layout.group_layers(0) for p in positions(oracle, layer, target)
    }


@EACH
def test_a_forgotten_slot_is_not_what_it_was(name: str) -> None:
    oracle = make_oracle(SMALL[name])
    round_trip(oracle)
    old = oracle.arena.slot(2).copy()
    oracle.forget([2])
    assert oracle.check() is None
    assert 2 not in oracle.slots
    oracle.arena.slot(2)[:] = old
    assert tell(oracle).region == "host"


def test_a_late_store_is_open_until_a_check_finds_all_right() -> None:
    oracle = make_oracle(SMALL["mixed"])
    oracle.fill([0], 0, "fill")
    oracle.expect_store([0], [0], 1)
    expect_load(oracle, [0], [4])
    assert tell(oracle).region == "device"
    store(oracle, [0], [0])
    take(oracle, [0], [4])
    assert oracle.check() is None
    oracle.arena.slot(0)[0] ^= 1
    assert tell(oracle).region == "host"


def test_a_reset_begins_anew_after_a_failure() -> None:
    oracle = make_oracle(SMALL["gaps and padding"])
    round_trip(oracle)
    oracle.arena.mapping.array[oracle.arena.base - 1] ^= 1
    assert oracle.check() is not None
    old = read(oracle, positions(oracle, 0, 0))
    oracle.reset(2)
    assert oracle.check() is None
    assert not oracle.contents
    assert not oracle.slots
    assert (read(oracle, positions(oracle, 0, 0)) != old).mean() > 0.9


def test_several_blocks_share_a_slot() -> None:
    oracle = make_oracle(SMALL["mixed"], blocks_per_slot=2)
    oracle.fill([0, 1, 2], 0, "fill")
    store(oracle, [0, 1, 2], [3, 1])
    assert [len(held) for held in oracle.slots.values()] == [2, 1]
    load(oracle, [3, 1], [5, 4, 3])
    assert oracle.check() is None
    oracle.expect_load(oracle.slots[3][1:], [4])
    write(oracle, positions(oracle, 0, 4), read(oracle, positions(oracle, 0, 1)))
    for layer in (1, 2):
        write(oracle, positions(oracle, layer, 4), read(oracle, positions(oracle, layer, 1)))
    assert oracle.check() is None


def test_many_wrong_bytes_are_counted_and_the_first_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "_KEPT", 100)
    oracle = make_oracle(SMALL["sparse"])
    for start, stop in oracle.arena.mapping.windows:
        oracle.arena.mapping.array[start:stop] ^= 1
    found = tell(oracle)
    assert found.total == oracle.arena.device.accessible_bytes
    assert found.positions.tolist() == list(range(found.positions[0], found.positions[0] + 100))


@pytest.mark.parametrize("name", ["mixed", "cell padding", "overlaid groups", "heads outside"])
def test_a_thousand_right_sequences_in_a_row_pass(name: str) -> None:
    recipe = SMALL[name]
    oracle = make_oracle(recipe, host_slots=2)
    random = np.random.default_rng(0)
    blocks = np.array(oracle.arena.layout.blocks)
    for number in range(1000):
        if number % 20 == 0:
            oracle.reset(number)
        group = int(random.integers(len(oracle.arena.layout.groups)))
        a, b, c, d = random.permutation(blocks)[:4].tolist()
        oracle.fill([a, b], group, f"fill (step {number})")
        store(oracle, [a, b], [1, 0], group)
        if number % 3:
            oracle.forget([1])
            load(oracle, [0], [c], group)
        else:
            load(oracle, [0, 1], [d, a], group)
        assert oracle.check() is None


def test_one_layer_of_one_head_and_token_is_enough() -> None:
    oracle = make_oracle(Recipe((LayerRecipe("fp8_e4m3", 1, 8),), num_blocks=6, block_tokens=1))
    round_trip(oracle)
    assert oracle.check() is None
    load_that_does_nothing(oracle, oracle.arena.layout.blocks)
    assert tell(oracle).total == 16
