"""The host tier by digests: each changed byte is found, in its own memory and in what a library lends, whatever the sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.arena.memory import PAGE, Bytes
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe

torch = pytest.importorskip("torch")

from kvverify.arena.arena import Arena  # noqa: E402
from kvverify.arena.device_arena import DeviceArena  # noqa: E402
from kvverify.arena.host_tier import HostTier  # noqa: E402

CPU = torch.device("cpu")
LAYOUT = place(Recipe((LayerRecipe("bf16", 1, 8),), num_blocks=2, block_tokens=4))
SLOTS = 3
KEY, OTHER = 0x1234_5678_9ABC_DEF0, 0xFEDC_BA98_7654_3211

widths = st.one_of(st.integers(1, 3 * PAGE), st.sampled_from([1, 7, 8, 4095, 4096, 4097, 8192]))
gaps = st.one_of(st.just(0), st.integers(1, 200), st.just(PAGE))


def own() -> Arena:
    return DeviceArena(LAYOUT, SLOTS, 1, CPU)


def lent(width: int, gap: int, more: int = 0) -> Arena:
    """An arena over a library's tier of rows of ``width`` bytes, ``gap`` bytes between them, ``more`` rows than there are slots."""
    arena = own()
    memory = torch.zeros((SLOTS + more) * (width + gap), dtype=torch.uint8)
    arena.adopt_host(memory.as_strided((SLOTS + more, width), (width + gap, 1)))
    return arena


arenas = st.one_of(st.builds(own), st.builds(lent, widths, gaps, st.integers(0, 1)))


def written(arena: Arena) -> HostTier:
    tier = HostTier(arena, CPU)
    tier.reset(KEY)
    return tier


def positions(arena: Arena) -> st.SearchStrategy[int]:
    return st.one_of([st.integers(start, stop - 1) for start, stop in arena.host_memory.windows])


def slot_of(arena: Arena, position: int) -> int | None:
    slot, rest = divmod(position - arena.host_base, arena.slot_stride)
    return slot if 0 <= slot < arena.host_slots and rest < arena.slot_bytes else None


@given(arenas)
@settings(deadline=None)
def test_every_byte_that_can_be_touched_is_in_exactly_one_cell(arena: Arena) -> None:
    tier = HostTier(arena, CPU)
    covered = np.zeros(arena.host_memory.size, np.int64)
    for start, length in zip(tier._starts.tolist(), tier._lengths.tolist(), strict=True):
        assert 0 < length <= PAGE
        covered[start : start + length] += 1
    wanted = np.zeros_like(covered)
    for start, stop in arena.host_memory.windows:
        wanted[start:stop] = 1
    assert np.array_equal(covered, wanted)
    assert tier.nbytes == arena.host_memory.accessible_bytes


@given(st.data())
@settings(deadline=None)
def test_one_changed_byte_is_found_where_it_is(data: st.DataObject) -> None:
    arena = data.draw(arenas)
    tier = written(arena)
    assert tier.check([]) is None
    at, mask = data.draw(positions(arena)), data.draw(st.integers(1, 255))
    right = int(arena.host_memory.array[at])
    arena.host_memory.array[at] ^= mask
    found = tier.check([])
    assert found is not None
    assert (found.region, found.positions.tolist(), found.total, found.exact) == ("host", [at], 1, True)
    assert (found.expected.tolist(), found.found.tolist()) == ([right], [right ^ mask])


@given(st.data())
@settings(deadline=None)
def test_bytes_beside_a_stored_slot_are_not_taken_as_they_are(data: st.DataObject) -> None:
    arena = data.draw(arenas)
    tier = written(arena)
    slot, at = data.draw(st.integers(0, SLOTS - 1)), data.draw(positions(arena))
    arena.host_memory.array[at] ^= 1
    found = tier.check([slot])
    assert (found is None) is (slot_of(arena, at) == slot)
    if found is not None:
        assert found.positions.tolist() == [at]


@given(st.data())
@settings(deadline=None)
def test_what_a_store_brought_is_watched_from_then_on(data: st.DataObject) -> None:
    arena = data.draw(arenas)
    tier = written(arena)
    slot = data.draw(st.integers(0, SLOTS - 1))
    arena.slot(slot)[:] = np.random.default_rng(data.draw(st.integers(0, 99))).integers(0, 256, arena.slot_bytes)
    assert tier.check([slot]) is None
    assert tier.check([]) is None
    at = arena.host_base + slot * arena.slot_stride + data.draw(st.integers(0, arena.slot_bytes - 1))
    arena.host_memory.array[at] ^= 1 << data.draw(st.integers(0, 7))
    found = tier.check([])
    assert found is not None
    assert at in found.positions
    assert not found.exact  # what lay there is not known, only that it was something else


@given(st.data())
@settings(deadline=None)
def test_an_overwritten_slot_holds_its_new_payload_and_its_neighbours_theirs(data: st.DataObject) -> None:
    arena = data.draw(arenas)
    tier = written(arena)
    slot = data.draw(st.integers(0, SLOTS - 1))
    before = arena.host_memory.array[arena.host_base :].copy() if arena.host_memory.windows[0][0] == 0 else None
    tier.overwrite(slot, OTHER)
    assert tier.check([]) is None
    if before is not None:
        start = slot * arena.slot_stride
        changed = np.flatnonzero(before != arena.host_memory.array)
        assert np.all((changed >= start) & (changed < start + arena.slot_bytes))
    at = data.draw(positions(arena))
    arena.host_memory.array[at] ^= 128
    found = tier.check([])
    assert found is not None
    assert found.positions.tolist() == [at]


def test_what_arrives_during_an_overwrite_is_not_taken_for_what_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvverify.arena import host_digest

    arena = own()
    tier, of_rows = written(arena), host_digest._of_rows

    def store_that_is_late(data: Bytes) -> host_digest.Digests:
        arena.slot(1)[5] ^= 1
        return of_rows(data)

    monkeypatch.setattr(host_digest, "_of_rows", store_that_is_late)
    tier.overwrite(1, OTHER)
    monkeypatch.undo()
    found = tier.check([])
    assert found is not None
    assert slot_of(arena, int(found.positions[0])) == 1


@given(st.integers(0, 4094), st.integers(0, 4094))
@settings(deadline=None)
def test_swapped_and_twice_flipped_words_do_not_cancel(one: int, two: int) -> None:
    arena = own()
    tier = written(arena)
    words = arena.host_memory.array[arena.host_memory.windows[0][0] :][:PAGE].view(np.uint64)
    i, j = one % 512, two % 512
    if i != j:
        words[[i, j]] ^= np.uint64(1 << 63)  # the signs of two numbers
        assert tier.check([]) is not None
        words[[i, j]] ^= np.uint64(1 << 63)
        assert tier.check([]) is None
        words[[i, j]] = words[[j, i]]
        assert tier.check([]) is not None


def test_a_large_tier_is_written_once_and_watched_across_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvverify.arena.host_tier._REWRITTEN", 0)
    arena = own()
    tier = written(arena)
    arena.slot(1)[:] = 7
    assert tier.check([1]) is None
    tier.reset(OTHER)
    assert (arena.slot(1) == 7).all()
    assert tier.check([]) is None
    arena.slot(1)[0] = 8
    assert tier.check([]) is not None


def test_many_wrong_pages_are_counted_and_some_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvverify.arena.host_tier._KEPT", 2)
    arena = lent(PAGE, 0, 5)
    tier = written(arena)
    arena.host_memory.array[:] ^= 0x55
    found = tier.check([])
    assert found is not None
    assert len(found.positions) == 2 * PAGE
    assert found.total == 8 * PAGE
    assert not found.exact
