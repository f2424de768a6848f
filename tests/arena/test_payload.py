from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvverify.arena.payload import derive_key, fill, mix, rows, unmix, word_index

WORDS = st.integers(0, 2**64 - 1)
FORMATS = {  # bytes a value, mask of the exponent, mask of the mantissa
    "fp16": ("<u2", 0x7C00, 0x03FF),
    "bf16": ("<u2", 0x7F80, 0x007F),
    "fp32": ("<u4", 0x7F800000, 0x007FFFFF),
    "fp8_e5m2": ("u1", 0x7C, 0x03),
}


@given(WORDS)
@example(0)
@example(2**64 - 1)
def test_mix_is_a_bijection(word: int) -> None:
    assert unmix(mix(word)) == word
    assert mix(unmix(word)) == word


@given(key=WORDS, index=st.integers(0, 2**40))
def test_a_word_names_its_index(key: int, index: int) -> None:
    word = int.from_bytes(rows([key], [index * 8], 8).tobytes(), "little")
    assert word_index(word, key) == index


@given(key=WORDS, start=st.integers(0, 2**34), length=st.integers(0, 100))
@example(key=1, start=2**32 - 3, length=9)
@example(key=1, start=5, length=2)
def test_rows_are_fill_at_any_phase_and_length(key: int, start: int, length: int) -> None:
    filled = np.empty(length, np.uint8)
    fill(filled, key, start)
    around = np.empty(start % 8 + length, np.uint8)
    fill(around, key, start - start % 8)
    assert filled.tobytes() == rows([key], [start], length).tobytes() == around[start % 8 :].tobytes()


def test_fill_is_the_same_across_its_chunks() -> None:
    whole = np.empty(700_001, np.uint8)
    fill(whole, 7, 0)
    for start in (262_143, 262_144, 524_281, 699_990):
        assert whole[start : start + 11].tobytes() == rows([7], [start], 11).tobytes()


@given(st.lists(st.tuples(WORDS, st.integers(0, 2**33)), min_size=1, max_size=6), st.integers(1, 40))
def test_each_row_has_its_own_key_and_phase(sources: list[tuple[int, int]], length: int) -> None:
    together = rows([k for k, _ in sources], [s for _, s in sources], length)
    assert together.shape == (len(sources), length)
    for row, (key, start) in zip(together, sources, strict=True):
        assert row.tobytes() == rows([key], [start], length).tobytes()


def test_no_rows_of_nothing() -> None:
    assert rows([], [], 5).shape == (0, 5)


def test_different_keys_share_no_run_of_eight_bytes() -> None:
    seen: set[bytes] = set()
    for epoch in range(4):
        raw = rows([derive_key(3, 1, epoch)], [0], 65_536)[0].tobytes()
        runs = {raw[i : i + 8] for i in range(len(raw) - 7)}
        assert len(runs) == len(raw) - 7
        assert seen.isdisjoint(runs)
        seen |= runs


@given(seed=WORDS, names=st.lists(st.integers(0, 99), max_size=3))
def test_keys_differ_by_seed_and_by_every_name(seed: int, names: list[int]) -> None:
    others = {derive_key(seed, *names, 0), derive_key(seed, *names, 1), derive_key((seed + 1) % 2**64, *names, 0)}
    assert len(others) == 3


@pytest.mark.parametrize("name", FORMATS)
def test_nan_and_infinity_patterns_occur_within_a_few_kilobytes(name: str) -> None:
    kind, exponent, mantissa = FORMATS[name]
    size = 1 << 20 if name == "fp32" else 1 << 14
    values = rows([11], [0], size)[0].view(kind)
    special = values[(values & exponent) == exponent]
    assert (special & mantissa != 0).any(), "no NaN"
    if name == "fp8_e5m2":
        assert (special & mantissa == 0).any(), "no infinity"
    first = int(np.nonzero((values & exponent) == exponent)[0][0]) * values.itemsize
    assert first < 4096


def test_every_byte_value_occurs_so_e4m3_nan_does_too() -> None:
    assert set(rows([5], [0], 4096)[0].tolist()) == set(range(256))


def test_sixteen_bit_infinities_occur() -> None:
    values = rows([11], [0], 1 << 20)[0].view("<u2")
    assert {0x7C00, 0xFC00, 0x7F80, 0xFF80} <= set(values.tolist())
