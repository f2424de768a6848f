"""What cannot be encoded or decoded is refused in one line; foreign bytes are detected where the format allows it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvverify.codecs.arrays import Bytes, Floats
from kvverify.codecs.inputs import sample
from kvverify.codecs.plain import fp8_scales
from kvverify.codecs.registry import codec, codec_names, slot_codec
from kvverify.errors import CodecError, LayoutError

NAMES = codec_names()
FINE = np.ones((3, 2, 64), np.float32)


def with_value(value: float) -> Floats:
    x = FINE.copy()
    x[1, 0, 7] = value
    return x


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("k", "v", "message"),
    [
        (with_value(np.nan), FINE, "K holds nan at token 1, head 0, dimension 7"),
        (FINE, with_value(-np.inf), "V holds -inf at token 1, head 0, dimension 7"),
        (FINE[:0], FINE[:0], r"K is empty, shape \[0, 2, 64\]; expected at least one token"),
        (FINE.astype(np.float64), FINE, r"K is float64, shape \[3, 2, 64\]; expected float16, bfloat16 or float32"),
        (FINE.astype(np.int8), FINE, "K is int8"),
        (FINE, [[[1.0]]], "V is list"),
        (FINE[0], FINE[0], r"K has shape \[2, 64\]; expected \[tokens, heads, 64\]"),
        (FINE[..., :32], FINE[..., :32], r"K has shape \[3, 2, 32\]; expected \[tokens, heads, 64\]"),
        (FINE, FINE[:2], r"K has shape \[3, 2, 64\] and V \[2, 2, 64\]; expected the same shape"),
    ],
)
def test_numbers_that_no_format_takes(name: str, k: Any, v: Any, message: str) -> None:
    found = codec(name, 64)
    for call in (found.encode_sequence, found.bound, found.step):
        with pytest.raises(CodecError, match=message) as caught:
            call(k, v)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "head_size", "message"),
    [
        ("turboquant_4bit_nc", 96, "Hadamard"),
        ("turboquant_3bit_nc", 80, "Hadamard"),
        ("ultraquant_4bit", 96, "Hadamard"),
        ("ultraquant_4bit", 16, "multiple of 32"),
        ("int4_per_token_head", 100, "multiple of 8"),
        ("int8_per_token_head", 63, "multiple of 4"),
        ("kivi", 80, "no multiple of 32"),
        ("kvquant_cached", 1, "at least 2"),
        ("bf16", 0, "at least 1"),
    ],
)
def test_head_sizes_a_preset_cannot_take(name: str, head_size: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        codec(name, head_size)


@pytest.mark.parametrize(
    ("name", "k", "v", "message"),
    [
        (
            "turboquant_4bit_nc",
            9000.0,
            1.0,
            "the norm of K is 72000 at token 0, head 0; its fp16 field holds at most 65504",
        ),
        ("turboquant_k8v4", 1.0, 70000.0, "the minimum of V is 70000"),
        ("fp16", 1.0, 70000.0, "V is 70000 at token 0, head 0, dimension 0; fp16 holds at most 65504"),
        ("kivi", 70000.0, 1.0, "a minimum or scale of K is 70000"),
        ("kvquant_cached", 70000.0, 1.0, "K holds 70000"),
    ],
)
def test_numbers_that_overflow_a_field(name: str, k: float, v: float, message: str) -> None:
    found = codec(name, 64)
    x, y = np.full((128, 1, 64), k, np.float32), np.full((128, 1, 64), v, np.float32)
    with pytest.raises(CodecError, match=message):
        found.encode_sequence(x, y)


def test_without_strict_overflow_is_stored_as_the_kernels_do() -> None:
    found = slot_codec("turboquant_4bit_nc", 64, strict=False)
    slots = found.encode(np.full((1, 1, 64), 9000, np.float32), FINE[:1, :1])
    assert slots[0, 0, found.slices["k_norm"]].tobytes() == np.float16(np.inf).tobytes()
    assert np.isinf(found.decode(slots).k).any()


@pytest.mark.parametrize(
    ("slots", "message"),
    [
        (np.zeros((2, 2, 133), np.uint8), r"shape \[2, 2, 133\]; expected \[tokens, heads, 134\]"),
        (np.zeros((2, 2, 135), np.uint8), "134 bytes a token and KV head"),
        (np.zeros((2, 2, 102), np.uint8), "102 bytes are turboquant_3bit_nc at head size 128"),
        (np.zeros((2, 134), np.uint8), r"shape \[2, 134\]"),
        (np.zeros((0, 2, 134), np.uint8), "slots are empty"),
        (np.zeros((2, 2, 134), np.int8), "slots are int8; expected uint8"),
        (b"abc", "slots are bytes; expected uint8"),
    ],
)
def test_slots_that_cannot_be(slots: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        slot_codec("turboquant_4bit_nc", 128).decode(slots)


def test_buffers_must_hold_whole_tokens() -> None:
    found = slot_codec("turboquant_4bit_nc", 128)
    assert found.slots_from_bytes(bytes(134 * 6), heads=2).shape == (3, 2, 134)
    for size in (0, 134 * 6 - 1, 134 * 5):
        with pytest.raises(
            CodecError, match=f"{size} bytes are no whole number of tokens; expected a multiple of 2 heads x 134 = 268"
        ):
            found.slots_from_bytes(bytes(size), heads=2)


@pytest.mark.parametrize("name", NAMES)
def test_planes_of_other_sizes_or_codecs(name: str) -> None:
    found = codec(name, 64)
    encoded = found.encode_sequence(FINE, FINE)
    plane, data = next((n, p) for n, p in encoded.planes.items() if p.size)
    from dataclasses import replace

    with pytest.raises(CodecError, match=f"plane '{plane}' is uint8 of shape"):
        found.decode_sequence(replace(encoded, planes={**encoded.planes, plane: data[:-1]}))
    with pytest.raises(CodecError, match="got the planes"):
        found.decode_sequence(replace(encoded, planes={"other": data}))
    with pytest.raises(CodecError, match="decode them with their own codec"):
        codec(name, 128).decode_sequence(encoded)


FOREIGN = [  # (written by, at head size, read as, at head size): slots of the same size, told apart by broken promises
    ("int4_per_token_head", 128, "ultraquant_4bit", 128),
    ("int8_per_token_head", 64, "ultraquant_4bit", 128),
    ("ultraquant_4bit", 128, "int8_per_token_head", 64),
    ("fp8_per_token_head", 128, "int8_per_token_head", 128),
    ("int8_per_token_head", 128, "fp8_per_token_head", 128),
]


@pytest.mark.parametrize(("writer", "writer_size", "reader", "reader_size"), FOREIGN)
def test_foreign_bytes_of_the_same_size_are_detected(
    writer: str, writer_size: int, reader: str, reader_size: int
) -> None:
    s = sample("gaussian", head_size=writer_size, tokens=200)
    slots = slot_codec(writer, writer_size).encode(s.k, s.v)
    found = slot_codec(reader, reader_size)
    with pytest.raises(CodecError, match=f"{reader} at head size {reader_size} never writes these bytes"):
        found.decode(slots)
    found.decode(slots, check=False)


def damaged(name: str, how: str) -> Bytes:
    s = sample("gaussian", head_size=128, tokens=64)
    found = slot_codec(name, 128)
    slots = found.encode(s.k, s.v)
    if how == "shifted":
        return np.roll(slots, 1, -1)
    where = found.slices["v_scale" if "v_scale" in found.slices else "v"]
    slots[..., where] = slots[..., where][..., ::-1]
    return slots


@pytest.mark.parametrize(
    "name", ["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_3bit_nc", "int8_per_token_head", "ultraquant_4bit"]
)
def test_slots_read_at_a_wrong_offset_are_detected(name: str) -> None:
    with pytest.raises(CodecError, match="never writes these bytes"):
        slot_codec(name, 128).decode(damaged(name, "shifted"))


@pytest.mark.parametrize("name", ["int8_per_token_head", "fp8_per_token_head"])
def test_scales_in_the_other_byte_order_are_detected(name: str) -> None:
    with pytest.raises(CodecError, match="V scale below 1e-6 or not finite"):
        slot_codec(name, 128).decode(damaged(name, "order"))


@pytest.mark.parametrize(
    ("writer", "reader"),
    [
        ("bf16", "fp16"),
        ("ultraquant_4bit", "int4_per_token_head"),
        ("fp8_e4m3", "fp8_e5m2"),
        ("turboquant_4bit_nc_soa", "turboquant_4bit_nc"),
    ],
)
def test_what_no_format_can_tell_is_known(writer: str, reader: str) -> None:
    """Documented: these bytes carry no mark, and a wrong reader gets numbers without a word."""
    s = sample("gaussian", head_size=128)
    slots = slot_codec(writer, 128).encode(s.k * 0.1, s.v * 0.1)
    back = slot_codec(reader, 128).decode(slots)
    assert not np.allclose(back.k, s.k * 0.1, atol=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_own_bytes_keep_every_promise(name: str) -> None:
    from kvverify.codecs.inputs import samples

    for s in samples(head_size=64):
        found = codec(name, 64)
        found.decode_sequence(found.encode_sequence(s.k, s.v))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: codec("turboquant_4bits", 128), "no codec 'turboquant_4bits'; did you mean 'turboquant_4bit_nc"),
        (lambda: codec("kivi", 128, resdual=64), "codec kivi has no option 'resdual'; did you mean 'residual"),
        (lambda: codec("bf16", 128, scale=2), "codec bf16 has no option 'scale'; it has none"),
        (lambda: codec("fp8", 128, k_scale=0.0), "fp8_e4m3: k_scale is 0.0; expected a positive number"),
        (lambda: codec("fp8", 64, v_scale=(1.0,) * 3).encode_sequence(FINE, FINE), "v_scale has 3 scales, got 2 heads"),
        (
            lambda: fp8_scales("fp8_e4m3", FINE, FINE, 64, per="token"),
            "fp8 scales per 'token'; expected 'tensor' or 'head'",
        ),
        (lambda: codec("int4_per_token_head", 64, model_dtype="bf61"), "did you mean 'bf16'"),
        (lambda: slot_codec("kivi", 128), "encodes whole sequences and has no slots"),
        (lambda: codec("kivi", 128, residual_dtype="fp32"), "residual_dtype 'fp32'; expected bf16 or fp16"),
    ],
)
def test_names_and_options(call: Any, message: str) -> None:
    with pytest.raises(CodecError, match=message):
        call()
