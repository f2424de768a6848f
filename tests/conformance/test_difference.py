from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.conformance.difference import Difference, compare_numbers, compare_plain, compare_slots, joined

CODEC = TurboQuantCodec("turboquant_4bit_nc", 16, strict=False)
NAMES = ("ordinary 0", "ordinary 1", "ordinary 2")
SIZE = CODEC.bytes_per_token_and_head


def slots() -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (3, 2, SIZE), np.uint8)


def test_equal_slots_are_compared_to_the_last_byte() -> None:
    assert compare_slots(CODEC, slots(), slots(), NAMES) == Difference(6 * SIZE, 0, "")


@given(token=st.integers(0, 2), head=st.integers(0, 1), byte=st.integers(0, SIZE - 1), bit=st.integers(0, 7))
def test_every_flipped_bit_is_named_by_its_field(token: int, head: int, byte: int, bit: int) -> None:
    found = slots()
    found[token, head, byte] ^= 1 << bit
    result = compare_slots(CODEC, slots(), found, NAMES)
    field = next(name for name, where in CODEC.slices.items() if where.start <= byte < where.stop)
    assert result.different_bytes == 1
    assert f"field {field}: token {token} ({NAMES[token]}), head {head}, begins" in result.headline


def test_other_wrong_fields_are_counted_behind_the_first() -> None:
    found = slots()
    found[1, 1] ^= 255
    headline = compare_slots(CODEC, slots(), found, NAMES).headline
    assert headline.startswith("field k: token 1 (ordinary 1), head 1")
    assert headline.endswith("; 2 in k_norm; 8 in v; 2 in v_scale; 2 in v_min")


def test_a_field_left_out_is_neither_compared_nor_counted() -> None:
    found = slots()
    found[..., CODEC.slices["k"]] ^= 255
    assert compare_slots(CODEC, slots(), found, NAMES, left_out=["k"]) == Difference(6 * (SIZE - 8), 0, "")


def test_numbers_are_compared_as_bits() -> None:
    expected = np.array([[[0.0, np.nan]]], np.float16)
    assert compare_numbers(expected, expected.copy(), "K", ("zeros",)).different_bytes == 0
    result = compare_numbers(expected, np.array([[[-0.0, np.nan]]], np.float16), "K", ("zeros",))
    assert (result.compared_bytes, result.different_bytes) == (4, 2)
    assert "decoded K: token 0 (zeros), head 0, dimension 0 is -0.0, expected 0.0" in result.headline


def test_a_short_blob_is_a_difference() -> None:
    assert "has 3 bytes, expected 4" in compare_plain(b"abcd", b"abc", "blob").headline
    assert "byte 1 on is 58 63, expected 62 63; 1 bytes differ" in compare_plain(b"abc", b"aXc", "blob").headline


def test_joining_keeps_the_first_headline_and_adds_the_rest() -> None:
    assert joined(Difference(1, 0, ""), Difference(2, 1, "a"), Difference(3, 2, "b")) == Difference(6, 3, "a")


def test_shapes_must_agree() -> None:
    with pytest.raises(AssertionError):
        compare_slots(CODEC, slots(), slots()[:, :1], NAMES)
