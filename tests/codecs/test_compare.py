"""A fault planted in any field is found by the name of the field, with the cause in words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kvverify.codecs.arrays import Bytes
from kvverify.codecs.compare import compare_slots, explain, turboquant_suspects
from kvverify.codecs.inputs import sample
from kvverify.codecs.interface import SlotCodec
from kvverify.codecs.packing import float_bytes, floats_of, pack, unpack
from kvverify.codecs.registry import codec_names, slot_codec
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.errors import CodecError

NAME, SIZE = "turboquant_4bit_nc", 128
Damage = Callable[[Bytes], Bytes]


def slots_of(codec: SlotCodec) -> Bytes:
    s = sample("gaussian", head_size=codec.head_size, tokens=48, heads=3)
    return codec.encode(s.k, s.v)


def half_up(data: Bytes) -> Bytes:
    return (np.ascontiguousarray(data).view("<u2") + np.uint16(1)).view(np.uint8)


def index_up(data: Bytes) -> Bytes:
    return pack(np.minimum(unpack(data, 4, SIZE) + 1, 15), 4)


def narrow(data: Bytes) -> Bytes:
    return pack(unpack(data, 4, SIZE) >> 1, 4)


PLANTS: dict[str, tuple[str, Damage, str]] = {
    "nibbles of K": ("k", lambda d: d >> np.uint8(4) | d << np.uint8(4), "nibbles swapped"),
    "nibbles of V": ("v", lambda d: d >> np.uint8(4) | d << np.uint8(4), "nibbles swapped"),
    "index of K one too high": ("k", index_up, "one too high"),
    "index of V one too high": ("v", index_up, "one too high"),
    "sign of K": ("k", lambda d: ~d, "sign is flipped"),
    "table of 3 bits": ("k", narrow, "3-bit table"),
    "norm one step up": ("k_norm", half_up, "+1 in the last place"),
    "norm byte order": ("k_norm", lambda d: d[..., ::-1], "other byte order"),
    "norm of the previous token": ("k_norm", lambda d: np.roll(d, 1, 0), "previous token"),
    "norm of the next head": ("k_norm", lambda d: np.roll(d, -1, 1), "next head"),
    "norm times sqrt(128)": (
        "k_norm",
        lambda d: float_bytes(floats_of(d, "<f2") * np.float32(128**0.5), "<f2"),
        "11.31 times",
    ),
    "scale one step up": ("v_scale", half_up, "+1 in the last place"),
    "scale of 14 steps": (
        "v_scale",
        lambda d: float_bytes(floats_of(d, "<f2") * np.float32(15 / 14), "<f2"),
        "1.071 times",
    ),
    "minimum one step up": ("v_min", half_up, "+1 in the last place"),
    "sign of the minimum": ("v_min", lambda d: d ^ np.array([0, 128], np.uint8), "sign flipped"),
    "minimum lost": ("v_min", np.zeros_like, "zeros"),
}


@pytest.mark.parametrize("plant", PLANTS)
def test_a_planted_fault_is_named(plant: str) -> None:
    field, damage, words = PLANTS[plant]
    codec = slot_codec(NAME, SIZE)
    expected = slots_of(codec)
    found = expected.copy()
    where = codec.slices[field]
    found[..., where] = damage(expected[..., where])
    differences = compare_slots(expected, found, codec.fields, codec=codec)
    assert [d.field for d in differences] == [field]
    assert any(words in hint for hint in differences[0].hints), differences[0].hints
    assert words in str(differences[0])
    assert differences[0].compared_bytes == 48 * 3 * (where.stop - where.start)


@pytest.mark.parametrize("name", [n for n in codec_names() if n not in ("kivi", "kvquant_cached")])
def test_one_bit_in_any_field_of_any_format_is_found_by_name(name: str) -> None:
    codec = slot_codec(name, 64)
    expected = slots_of(codec)
    assert compare_slots(expected, expected.copy(), codec.fields, codec=codec) == []
    for field, where in codec.slices.items():
        found = expected.copy()
        found[5, 2, where.stop - 1] ^= 1
        (difference,) = compare_slots(expected, found, codec.fields, codec=codec)
        assert (difference.field, difference.wrong_cells, difference.wrong_bytes) == (field, 1, 1)
        assert (difference.token, difference.head) == (5, 2)


def test_exchanged_fields_name_each_other() -> None:
    codec = slot_codec(NAME, SIZE)
    expected = slots_of(codec)
    found = expected.copy()
    scale, low = codec.slices["v_scale"], codec.slices["v_min"]
    found[..., scale], found[..., low] = expected[..., low], expected[..., scale]
    differences = {d.field: d.hints for d in compare_slots(expected, found, codec.fields)}
    assert "it holds v_min's bytes" in differences["v_scale"]
    assert "it holds v_scale's bytes" in differences["v_min"]


def test_a_hidden_zero_point_that_was_lost_is_named() -> None:
    codec = slot_codec("int4_per_token_head", 64)
    expected = slots_of(codec)
    found = expected.copy()
    found[..., codec.slices["v_scale"].start] &= 0xF0
    (difference,) = compare_slots(expected, found, codec.fields, codec=codec)
    assert difference.field == "v_scale"
    assert any("zero points" in hint for hint in difference.hints)


def test_an_exponent_moved_by_one_is_named() -> None:
    codec = slot_codec("ultraquant_4bit", 64)
    expected = slots_of(codec)
    found = expected.copy()
    found[..., codec.slices["k_scale"]] += 1
    (difference,) = compare_slots(expected, found, codec.fields, codec=codec)
    assert "every wrong exponent is +1: the scale is 2^1 times the expected" in difference.hints


def test_foreign_slots_are_explained_by_who_writes_them() -> None:
    s = sample("gaussian", head_size=SIZE)
    codec = TurboQuantCodec(NAME, SIZE)
    suspects = turboquant_suspects(codec)
    for words, suspect in suspects.items():
        if suspect.bytes_per_token_and_head != codec.bytes_per_token_and_head:
            continue
        answers = explain(codec, s.k, s.v, suspect.encode(s.k, s.v), suspects)
        assert answers, words
        assert all(words in named for named in answers.values())
    soa = explain(codec, s.k, s.v, TurboQuantCodec(f"{NAME}_soa", SIZE).encode(s.k, s.v), suspects)
    assert list(soa) == ["k_norm"]
    signed = explain(codec, s.k, s.v, TurboQuantCodec(NAME, SIZE, signs_layer=3).encode(s.k, s.v), suspects)
    assert signed == {"k": ["keys with LMCache's signs of layer 3"]}


def test_slots_of_other_sizes_are_refused() -> None:
    codec = slot_codec(NAME, SIZE)
    slots = slots_of(codec)
    with pytest.raises(CodecError, match=r"\[48, 3, 134\] and \[48, 3, 133\]; expected twice \[tokens, heads, 134\]"):
        compare_slots(slots, slots[..., 1:], codec.fields)
