"""Wrong copies done by hand, and what a kernel author reads about them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from kvverify.arena.diagnosis import Diagnosis, diagnose
from kvverify.arena.geometry import Positions
from kvverify.arena.memory import Bytes
from kvverify.arena.oracle import Oracle
from kvverify.arena.places import counted, spans
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.arena.hand import (
    GROUPS,
    SMALL,
    TQ4,
    expect_load,
    load,
    make_oracle,
    padding,
    positions,
    read,
    store,
    take,
    write,
)

MIXED = Recipe((LayerRecipe("bf16", 2, 64), LayerRecipe(TQ4, 2, 128, 3)), num_blocks=8)
BF16 = Recipe((LayerRecipe("bf16", 3, 64, 3),), num_blocks=8)
SOA = Recipe((LayerRecipe(f"{TQ4}_soa", 2, 128, 3),), num_blocks=8)
SPLIT = Recipe((LayerRecipe("bf16", 2, 64, 2, split="kv_block"),), num_blocks=8)
HEADS_OUTSIDE = Recipe((LayerRecipe("bf16", 2, 64, 3),), order="LHBNC", num_blocks=8)
GAPS = Recipe(
    (LayerRecipe("bf16", 2, 64), LayerRecipe(TQ4, 2, 128, 2)), region_gap=64, storage_offset=64, page_padding=48
)
TQ = r"\(turboquant_4bit_nc\)"


def prepared(recipe: Recipe, seed: int = 1) -> Oracle:
    """Blocks 0 and 1 were stored to slots 2 and 0 and loaded into 5 and 6; 2 and 3 are filled; slots 1 and 3 never stored."""
    oracle = make_oracle(recipe, seed)
    oracle.fill([0, 1, 2, 3], 0, "fill (step 0)")
    store(oracle, [0, 1], [2, 0])
    load(oracle, [2, 0], [5, 6])
    return oracle


def explained(oracle: Oracle, loaded: Sequence[int] = (5, 6), stored: Sequence[int] = (0, 2)) -> Diagnosis:
    mismatch = oracle.check()
    assert mismatch is not None
    return diagnose(oracle, mismatch, set(loaded), set(stored))


def layers(oracle: Oracle) -> range:
    return range(len(oracle.arena.layout.layers))


def everything(oracle: Oracle, block: int) -> Positions:
    return np.concatenate([positions(oracle, layer, block) for layer in layers(oracle)])


def with_occupant(oracle: Oracle, stays: Callable[[int, int], Positions]) -> None:
    """Load 5 and 6 again, but leave the previous occupant at the positions that ``stays`` gives for a layer and block."""
    expect_load(oracle, [2, 0], [5, 6])
    kept = [(where, read(oracle, where)) for layer in layers(oracle) for b in (5, 6) for where in [stays(layer, b)]]
    take(oracle, [2, 0], [5, 6])
    for where, data in kept:
        write(oracle, where, data)


def exchange(oracle: Oracle, one: Positions, other: Positions) -> None:
    kept = read(oracle, one)
    write(oracle, one, read(oracle, other))
    write(oracle, other, kept)


def blocks_swapped(oracle: Oracle) -> None:
    exchange(oracle, everything(oracle, 5), everything(oracle, 6))


def other_block(oracle: Oracle) -> None:
    write(oracle, everything(oracle, 5), read(oracle, everything(oracle, 2)))


def layers_shifted(oracle: Oracle) -> None:
    for layer in (
        (0, 1) if oracle.arena.layout.layers[0].kv_format == "bf16" == oracle.arena.layout.formats[-1] else (1, 2)
    ):
        write(oracle, positions(oracle, layer, 5), read(oracle, positions(oracle, layer + 1, 0)))


def heads_shifted(oracle: Oracle) -> None:
    for layer in layers(oracle):
        heads = oracle.arena.layout.layers[layer].fields[0].heads
        for head in range(heads):
            source = positions(oracle, layer, 0, head=(head + 1) % heads)
            write(oracle, positions(oracle, layer, 5, head=head), read(oracle, source))


def tokens_shifted(oracle: Oracle) -> None:
    for layer in layers(oracle):
        for token in range(15):
            write(
                oracle,
                positions(oracle, layer, 5, token=token),
                read(oracle, positions(oracle, layer, 0, token=token + 1)),
            )


def bytes_shifted(oracle: Oracle) -> None:
    for layer in layers(oracle):
        where = np.sort(positions(oracle, layer, 5))
        write(oracle, where[:-6], read(oracle, np.sort(positions(oracle, layer, 0))[6:]))


def k_and_v_swapped(oracle: Oracle) -> None:
    for layer in layers(oracle):
        exchange(oracle, positions(oracle, layer, 5, fields=["k"]), positions(oracle, layer, 5, fields=["v"]))


def nothing_loaded(oracle: Oracle) -> None:
    expect_load(oracle, [2, 0], [5, 6])


def one_block_stale(oracle: Oracle) -> None:
    with_occupant(oracle, lambda layer, block: positions(oracle, layer, block)[: None if block == 6 else 0])


def cell_tail_cut(oracle: Oracle) -> None:
    tail = ["v_scale", "v_min"]
    with_occupant(
        oracle,
        lambda layer, block: positions(oracle, layer, block, fields=tail if layer else ["none"]),
    )


def page_tail_cut(oracle: Oracle) -> None:
    with_occupant(oracle, lambda layer, block: np.sort(positions(oracle, layer, block))[-6:])


def scales_of_another_block(oracle: Oracle) -> None:
    for layer in (1, 2, 3):
        tail = [positions(oracle, layer, block, fields=["v_scale", "v_min"]) for block in (5, 3)]
        write(oracle, tail[0], read(oracle, tail[1]))


def zeros(oracle: Oracle) -> None:
    write(oracle, everything(oracle, 5), np.zeros(1, np.uint8))


def one_byte_over_and_over(oracle: Oracle) -> None:
    write(oracle, everything(oracle, 5), np.full(1, 0xAB, np.uint8))


def neighbour_overwritten(oracle: Oracle) -> None:
    end = int(positions(oracle, 0, 6).max()) + 1
    write(oracle, np.arange(end, end + 64), read(oracle, np.sort(positions(oracle, 0, 2))[:64]))


def block_before_overwritten(oracle: Oracle) -> None:
    start = int(positions(oracle, 0, 5).min())
    write(oracle, np.arange(start - 64, start), read(oracle, np.sort(positions(oracle, 0, 2))[:64]))


def guard_before(oracle: Oracle) -> None:
    base = oracle.arena.base
    write(oracle, np.arange(base - 16, base), read(oracle, positions(oracle, 1, 2)[:16]))


def guard_behind(oracle: Oracle) -> None:
    end = oracle.arena.base + oracle.arena.layout.size_bytes
    write(oracle, np.arange(end, end + 16), read(oracle, positions(oracle, 1, 2)[:16]))


def bytes_nobody_wrote(oracle: Oracle) -> None:
    where = positions(oracle, 1, 5)[:64]
    write(oracle, where, read(oracle, where) ^ np.random.default_rng(0).integers(1, 256, 64).astype(np.uint8))


def bits_flipped(oracle: Oracle) -> None:
    where = positions(oracle, 1, 5)[:64]
    write(oracle, where, read(oracle, where) ^ np.uint8(0x81))


def host_slot_never_stored(oracle: Oracle) -> None:
    where = positions(oracle, 1, 5)
    write(oracle, where, oracle.arena.slot(3)[64 : 64 + len(where)])


def forgotten_slot(oracle: Oracle) -> None:
    assert oracle.check() is None
    oracle.forget([2])
    write(oracle, positions(oracle, 1, 5), oracle.arena.slot(2)[: len(positions(oracle, 1, 5))])


def older_content(oracle: Oracle) -> None:
    oracle.fill([0], 0, "fill (step 3)")
    store(oracle, [0], [2])
    expect_load(oracle, [2], [5])
    stale = make_oracle(MIXED)  # the same seed: block 0 as the first fill wrote it
    stale.fill([0, 1, 2, 3], 0, "fill (step 0)")
    write(oracle, everything(oracle, 5), read(stale, everything(stale, 0)))


def nan_made_quiet(oracle: Oracle) -> None:
    where = positions(oracle, 0, 5)
    values = read(oracle, where).view("<u2")
    signalling = ((values & 0x7F80) == 0x7F80) & ((values & 0x7F) != 0) & ((values & 0x40) == 0)
    assert signalling.any()
    write(oracle, where, np.where(signalling, values | 0x40, values).astype("<u2").view(np.uint8))


def read_too_early(oracle: Oracle) -> None:
    """Block 4 is loaded, but its occupant had been copied to block 7 before that."""
    expect_load(oracle, [2], [4])
    occupant = read(oracle, everything(oracle, 4))
    take(oracle, [2], [4])
    store(oracle, [4], [1])
    load(oracle, [1], [7])
    write(oracle, everything(oracle, 7), occupant)


@dataclass(frozen=True)
class Case:
    fault: Callable[[Oracle], None]
    recipe: Recipe
    says: str  # regular expression for all of the headline


WHOLE = r"block 5, layer 0-3 \(bf16, turboquant_4bit_nc\), whole pages"
CASES = [
    Case(blocks_swapped, MIXED, WHOLE.replace("block 5", "block 5-6") + "; they hold blocks 0 and 1 swapped"),
    Case(blocks_swapped, SOA, r"block 5-6, layer 0-2 .*, whole pages; they hold blocks 0 and 1 swapped"),
    Case(blocks_swapped, SPLIT, r"block 5-6, layer 0-1 \(bf16\), whole pages; they hold blocks 0 and 1 swapped"),
    Case(other_block, MIXED, WHOLE + r"; they hold block 2's \(expected: block 0's\)"),
    Case(
        layers_shifted, BF16, r"block 5, layer 0-1 \(bf16\), whole pages; they hold layer n\+1's where layer n's belong"
    ),
    Case(
        layers_shifted, MIXED, rf"block 5, layer 1-2 {TQ}, whole pages; they hold layer n\+1's where layer n's belong"
    ),
    Case(heads_shifted, MIXED, WHOLE + "; they hold heads 0 and 1 swapped"),
    Case(heads_shifted, HEADS_OUTSIDE, r"block 5, .*, whole pages; they hold heads 0 and 1 swapped"),
    Case(heads_shifted, BF16, r"block 5, .*, whole pages; they hold other heads' \(1 for 0, 2 for 1, 0 for 2\)"),
    Case(
        tokens_shifted,
        BF16,
        r"block 5, layer 0-2 \(bf16\), token 0-14, head 0-2, bytes 0-255 of the cell \(k, v\); "
        r"they hold token n\+1's where token n's belong",
    ),
    Case(tokens_shifted, SOA, r"block 5, .*, token 0-14, .*; they hold token n\+1's where token n's belong"),
    Case(bytes_shifted, MIXED, WHOLE + "; they hold what lies 6 bytes further on in the cell"),
    Case(k_and_v_swapped, BF16, r"block 5, layer 0-2 \(bf16\), whole pages; they hold K and V swapped"),
    Case(k_and_v_swapped, SPLIT, r"block 5, layer 0-1 \(bf16\), whole pages; they hold K and V swapped"),
    Case(
        nothing_loaded,
        MIXED,
        WHOLE.replace("block 5", "block 5-6") + "; still the previous occupant's bytes: never written",
    ),
    Case(one_block_stale, MIXED, WHOLE.replace("5", "6") + "; still the previous occupant's bytes: never written"),
    Case(
        cell_tail_cut,
        MIXED,
        rf"block 5-6, layer 1-3 {TQ}, token 0-15, head 0-1, bytes 130-133 of the cell \(v_scale, v_min\); "
        r"still the previous occupant's bytes: never written \(the last 4 of 134 bytes of the cell were cut off\)",
    ),
    Case(
        page_tail_cut,
        MIXED,
        r"block 5-6, layer 0-3 \(bf16, turboquant_4bit_nc\), token 15, head 1, "
        r"bytes 128-133, 250-255 of the cell \(v, v_scale, v_min\); still the previous occupant's bytes: never written "
        r"\(the last 6 of 4288, 8192 bytes of every page were cut off\)",
    ),
    Case(page_tail_cut, SOA, r".*\(v_min\); still the .* \(the last 6 of 4288 bytes of every page were cut off\)"),
    Case(
        scales_of_another_block,
        MIXED,
        rf"block 5, layer 1-3 {TQ}, token 0-15, head 0-1, bytes 130-133 of the cell \(v_scale, v_min\); "
        r"they hold block 3's, written by fill \(step 0\) \(the last 4 of 134 bytes of the cell\)",
    ),
    Case(zeros, MIXED, WHOLE + "; zeros"),
    Case(one_byte_over_and_over, MIXED, WHOLE + "; the same byte over and over: 0xAB"),
    Case(
        neighbour_overwritten,
        BF16,
        r" in blocks that no step named: block 7, layer 0 \(bf16\), token 0, head 0, bytes 0-63 of the cell \(k\); "
        r"right behind the end of block 6 in layer 0, which was loaded: the copy ran past its end; "
        r"they hold block 2's \(expected: block 7's\)",
    ),
    Case(
        block_before_overwritten,
        BF16,
        r" in blocks that no step named: block 4, layer 0 \(bf16\), token 15, head 2, bytes 19\d-255 of the cell \(v\); "
        r"right before the start of block 5 in layer 0, which was loaded: the copy began too early; they hold .*block 2's.*",
    ),
    Case(
        guard_before,
        MIXED,
        r" outside every block: the guard before the buffer, 1 to 16 bytes before its first byte; "
        rf"they hold what belongs to block 2, layer 1 {TQ}, from token 0, head 0, byte 0 of the cell on",
    ),
    Case(
        guard_behind,
        MIXED,
        r" outside every block: the guard behind the buffer, 1 to 16 bytes behind its last byte; they hold what belongs to "
        rf"block 2, layer 1 {TQ}, from token 0, head 0, byte 0 of the cell on",
    ),
    Case(
        bytes_nobody_wrote,
        BF16,
        r"block 5, layer 1 \(bf16\), token 0, head 0, bytes 0-63 of the cell \(k\); "
        r"bytes that nobody wrote in this sequence: changed on the way",
    ),
    Case(
        bits_flipped,
        BF16,
        r"block 5, layer 1 \(bf16\), token 0, head 0, bytes 0-63 of the cell \(k\); each is the expected byte with the bits 0x81 flipped",
    ),
    Case(
        host_slot_never_stored,
        MIXED,
        rf"block 5, layer 1 {TQ}, whole pages; they hold old bytes of host slot 3, which no store wrote there",
    ),
    Case(
        forgotten_slot,
        MIXED,
        rf"block 5, layer 1 {TQ}, whole pages; they hold old bytes of host slot 2, written by forget, which overwrote the slot",
    ),
    Case(
        older_content,
        MIXED,
        WHOLE + r"; they hold an older content, written by fill \(step 0\) \(expected: that of fill \(step 3\)\)",
    ),
    Case(
        nan_made_quiet, BF16, r"block 5, layer 0 .*; NaN patterns were altered: the bytes went through float arithmetic"
    ),
    Case(
        read_too_early,
        BF16,
        r"block 7, layer 0-2 \(bf16\), whole pages; "
        r"they hold what lay in the place of block 0's bytes before a load brought those: read too early",
    ),
]
NAMES = [f"{case.fault.__name__}-{i}" for i, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_the_headline_names_the_fault(case: Case) -> None:
    oracle = prepared(case.recipe)
    case.fault(oracle)
    said = explained(oracle, loaded=(4, 5, 6, 7) if case.fault is read_too_early else (5, 6))
    colon = "" if case.says.startswith(" ") else ": "
    assert re.fullmatch(r"[\d,]+ wrong bytes" + colon + case.says, said.headline), said.headline
    assert said.details == []


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_fingerprints_are_the_same_under_every_seed(case: Case) -> None:
    prints = set()
    for seed in (1, 77):
        oracle = prepared(case.recipe, seed)
        if case.fault is older_content and seed != 1:
            continue
        case.fault(oracle)
        prints.add(explained(oracle).fingerprint)
    assert len(prints) == 1


def test_fingerprints_hold_no_ids() -> None:
    prints = set()
    for block, source in ((5, 2), (6, 3)):
        oracle = prepared(MIXED)
        write(oracle, everything(oracle, block), read(oracle, everything(oracle, source)))
        prints.add(explained(oracle).fingerprint)
    assert len(prints) == 1


def test_fingerprints_tell_faults_apart() -> None:
    prints = {}
    for case in CASES:
        if case.recipe is MIXED:
            oracle = prepared(MIXED)
            case.fault(oracle)
            prints[case.fault.__name__] = explained(oracle).fingerprint
    alike: dict[str, set[str]] = {}
    for name, found in prints.items():
        alike.setdefault(found, set()).add(name)
    assert sorted(sorted(names) for names in alike.values() if len(names) > 1) == [
        ["blocks_swapped", "other_block"],
        ["forgotten_slot", "host_slot_never_stored"],
        ["guard_before", "guard_behind"],
        ["nothing_loaded", "one_block_stale"],
    ]


def flip(oracle: Oracle, count: int, change: Bytes) -> None:
    where = positions(oracle, 1, 5)[3 : 3 + count]
    write(oracle, where, read(oracle, where) ^ change)


def test_one_flipped_bit_is_a_candidate() -> None:
    oracle = prepared(MIXED)
    flip(oracle, 1, np.array([4], np.uint8))
    assert explained(oracle).headline == (
        "1 wrong byte: block 5, layer 1 (turboquant_4bit_nc), token 0, head 0, byte 3 of the cell (k); too few bytes to be "
        "sure of their origin, candidates: the expected bytes with one bit flipped in each"
    )


def test_a_short_run_that_fits_nothing_says_what_was_tried() -> None:
    oracle = prepared(MIXED)
    flip(oracle, 3, np.array([3, 99, 200], np.uint8))
    assert explained(oracle).headline.endswith(
        "bytes 3-5 of the cell (k); too few bytes in a row to name their origin, and they fit no other block, layer, head, "
        "token, field or shift"
    )


def test_a_short_run_lists_the_same_cell_of_another_block_as_candidate() -> None:
    oracle = prepared(MIXED)
    one, other = (positions(oracle, 2, b, fields=["v_scale", "v_min"], head=1, token=7) for b in (5, 3))
    write(oracle, one, read(oracle, other))
    assert explained(oracle).headline.endswith(
        "token 7, head 1, bytes 130-133 of the cell (v_scale, v_min); too few bytes to be sure of their origin, candidates: "
        "block 3's, written by fill (step 0) (the last 4 of 134 bytes of the cell)"
    )


def test_a_short_stale_run_is_named_without_doubt() -> None:
    oracle = prepared(MIXED)
    with_occupant(
        oracle, lambda layer, block: positions(oracle, layer, block, fields=["k_norm"])[:2][: 2 * (block == 5)]
    )
    said = explained(oracle)
    assert "bytes 64-65 of the cell (k_norm); still the previous occupant's bytes: never written" in said.headline


def test_a_gap_is_named_by_its_place() -> None:
    oracle = prepared(GAPS)
    last = oracle.arena.layout.layers[0]
    gap = oracle.arena.base + last.offset + last.block_stride * oracle.arena.layout.num_blocks
    source = positions(oracle, 0, 2)[:64].reshape(4, 16)  # of four stretches, one with no byte that is right by chance
    there = read(oracle, np.arange(gap, gap + 16))
    other = next(data for data in (read(oracle, row) for row in source) if (data != there).all())
    write(oracle, np.arange(gap, gap + 16), other)
    start = gap - oracle.arena.base
    assert (
        f"outside every block: a gap between blocks or layers, byte {start}-{start + 15} of the buffer; they hold "
        in (explained(oracle).headline)
    )


def test_padding_is_told_from_content() -> None:
    oracle = prepared(GAPS)
    write(oracle, padding(oracle, 1, 5), np.zeros(1, np.uint8))
    headline = explained(oracle).headline
    assert "(padding), padding that is neither what it was nor the source's; zeros" in headline


def test_several_causes_are_told_most_bytes_first() -> None:
    oracle = prepared(MIXED)
    other_block(oracle)
    write(oracle, positions(oracle, 1, 6, head=0, token=3), np.zeros(1, np.uint8))
    write(oracle, np.arange(oracle.arena.base - 4, oracle.arena.base), np.zeros(1, np.uint8))
    end = int(positions(oracle, 0, 6).max()) + 1
    write(oracle, np.arange(end, end + 32), read(oracle, positions(oracle, 1, 2)[:32]))
    said = explained(oracle)
    assert said.headline.endswith("they hold block 2's (expected: block 0's)")
    assert any("also block 6, layer 1" in line and line.endswith("zeros") for line in said.details), said.details
    assert "also damaged, though no step named them: blocks 7" in said.details
    assert any("belong to no block are damaged too: the guard before the buffer" in line for line in said.details)


def test_overlaid_groups_are_named_by_the_group_of_the_block() -> None:
    oracle = make_oracle(Recipe(SMALL["overlaid groups"].layers, order="BLNHC", num_blocks=8, groups=GROUPS))
    oracle.fill([0, 1], 1, "fill (step 0)")
    store(oracle, [0, 1], [0, 1], 1)
    expect_load(oracle, [0], [5])
    take(oracle, [1], [5], 1)
    said = explained(oracle, (5,))
    assert said.headline.endswith(f"block 5, layer 2-4 ({TQ4}), whole pages; they hold block 1's (expected: block 0's)")


def test_the_first_wrong_byte_is_located_for_the_failure_file() -> None:
    oracle = prepared(MIXED)
    where = positions(oracle, 2, 5, fields=["v_scale"], head=1, token=4)
    right = read(oracle, where)
    write(oracle, where, right ^ np.uint8(0x11))
    first = explained(oracle).first
    assert first == {
        "region": "device",
        "position": int(where[0]),
        "expected": right.tobytes().hex(),
        "found": (right ^ np.uint8(0x11)).tobytes().hex(),
        "wrong_bytes": 2,
        "layer": "layers.2",
        "kv_format": TQ4,
        "block": 5,
        "token": 4,
        "head": 1,
        "field": "v_scale",
        "byte": 130,
    }


def host_position(oracle: Oracle, slot: int, byte: int) -> int:
    return oracle.arena.host_base + slot * oracle.arena.slot_stride + byte


@pytest.mark.parametrize(
    ("slot", "byte", "says"),
    [
        (3, 100, "host slot 3, bytes 100-163, changed although no step named it"),
        (2, 100, "host slot 2, bytes 100-163, changed although no step named it since the last check"),
        (1, None, "the guard behind host slot 1, 1 to 64 bytes behind its last byte (slot 1 was stored to)"),
        (0, -64, "the guard before host slot 0, 1 to 64 bytes before its start"),
    ],
    ids=["slot", "stored slot", "guard behind", "guard before"],
)
def test_wrong_host_bytes_are_named(slot: int, byte: int | None, says: str) -> None:
    oracle = prepared(MIXED)
    assert oracle.check() is None
    start = host_position(oracle, slot, oracle.arena.slot_bytes if byte is None else byte)
    source = positions(oracle, 2, 3)[:64]
    oracle.arena.host_memory.array[start : start + 64] = read(oracle, source)
    said = explained(oracle, stored=(1,))
    assert re.fullmatch(r"6\d wrong host bytes: " + re.escape(says), said.headline), said.headline
    assert said.details == ["the bytes found there are those of block 3, layer 2, written by fill (step 0)"]
    assert said.first["region"] == "host"


def test_host_bytes_of_another_slot_are_named() -> None:
    oracle = prepared(MIXED)
    assert oracle.check() is None
    oracle.arena.slot(1)[:100] = oracle.arena.slot(3)[:100]
    assert explained(oracle).details == ["the bytes found there are those of host slot 3 from before the sequence"]


def test_a_store_that_comes_late_is_named_by_its_bytes() -> None:
    oracle = prepared(MIXED)
    oracle.expect_store([3], [1], 1)
    assert oracle.check() is None
    store_late = read(oracle, positions(oracle, 0, 3))
    oracle.arena.slot(1)[: len(store_late)] = store_late
    said = explained(oracle)
    assert "changed although no step named it since the last check" in said.headline
    assert said.details == ["the bytes found there are those of block 3, layer 0, written by fill (step 0)"]


@pytest.mark.parametrize(
    ("numbers", "step", "words"),
    [
        ([], 1, ""),
        ([4], 1, "4"),
        ([3, 1, 2, 7], 1, "1-3, 7"),
        ([0, 2, 4, 9], 2, "0-4, 9"),
        (range(0, 20, 2), 1, "0, 2, 4, 6, 8, 10, ..."),
    ],
)
def test_numbers_are_written_as_ranges(numbers: Sequence[int], step: int, words: str) -> None:
    assert spans(numbers, step) == words


def test_counts_have_a_plural() -> None:
    assert [counted(n, "wrong byte") for n in (0, 1, 1_234)] == ["0 wrong bytes", "1 wrong byte", "1,234 wrong bytes"]
