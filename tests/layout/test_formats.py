"""Slot sizes against the tables of the engines."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.errors import LayoutError
from kvverify.layout.formats import FORMATS, format_name, slot_format
from kvverify.layout.placement import Role

# K+V bytes per token and KV head at head size 64, 96, 128, 256; None is refused
SIZES = {
    "bf16": (256, 384, 512, 1024),
    "fp16": (256, 384, 512, 1024),
    "fp32": (512, 768, 1024, 2048),
    "fp8_e4m3": (128, 192, 256, 512),
    "fp8_e5m2": (128, 192, 256, 512),
    "fp8_per_token_head": (136, 200, 264, 520),
    "int8_per_token_head": (136, 200, 264, 520),
    "int4_per_token_head": (72, 104, 136, 264),
    "turboquant_k8v4": (100, 148, 196, 388),
    "turboquant_4bit_nc": (70, None, 134, 262),
    "turboquant_k3v4_nc": (62, None, 118, 230),
    "turboquant_3bit_nc": (54, None, 102, 198),
    "ultraquant_4bit": (68, None, 136, 272),
    "nvfp4": (72, 108, 144, 288),
}


@pytest.mark.parametrize("name", SIZES)
def test_slot_sizes_of_the_engine(name: str) -> None:
    for head_size, size in zip((64, 96, 128, 256), SIZES[name], strict=True):
        if size is None:
            with pytest.raises(LayoutError, match=f"head size {head_size} is not supported by any engine"):
                FORMATS[name].cell_bytes(2, head_size)
        else:
            assert FORMATS[name].cell_bytes(2, head_size) == size


@pytest.mark.parametrize(
    ("name", "head_size", "size"),
    [
        ("mla_bf16", 576, 1152),
        ("mla_fp8", 576, 576),
        ("fp8_ds_mla", 576, 656),
        ("nvfp4_ds_mla", 576, 352),
        ("fp8_ds_mla_584", 512, 584),
        ("fp8_ds_mla_528", 512, 528),
        ("dsa_indexer", 128, 132),
        ("mamba_state", 5001, 5001),
    ],
)
def test_records_of_one_geometry(name: str, head_size: int, size: int) -> None:
    assert FORMATS[name].cell_bytes(1, head_size) == size
    with pytest.raises(LayoutError, match="stores one record per token, use heads=1"):
        FORMATS[name].cell_bytes(2, head_size)


def test_field_names_and_roles_follow_the_byte_order() -> None:
    parts = FORMATS["turboquant_4bit_nc"].parts(1, 128)
    assert [(p.name, p.length) for p in parts] == [("k", 64), ("k_norm", 2), ("v", 64), ("v_scale", 2), ("v_min", 2)]
    assert [p.role for p in parts] == [Role.DATA, Role.SCALE, Role.DATA, Role.SCALE, Role.SCALE]
    assert [p.name for p in FORMATS["turboquant_k8v4"].parts(1, 128)] == ["k", "v", "v_scale", "v_min"]
    assert [p.name for p in FORMATS["int4_per_token_head"].parts(1, 128)] == ["k", "k_scale", "v", "v_scale"]


@given(st.integers(1, 300))
def test_turboquant_slots_are_rounded_up_to_even_bytes_by_a_named_pad(head_size: int) -> None:
    parts = FORMATS["turboquant_k8v4"].parts(1, head_size)
    content = head_size + -(-head_size // 2) + 4
    assert sum(p.length for p in parts) == content + content % 2
    assert [p.length for p in parts if p.role is Role.PADDING] == [1] * (content % 2)


@pytest.mark.parametrize(
    ("name", "head_size", "reason"),
    [
        ("turboquant_4bit_nc", 80, "rotated by a Hadamard matrix, which needs a power of two"),
        ("turboquant_3bit_nc_soa", 96, "needs a power of two"),
        ("ultraquant_4bit", 80, "needs a power of two"),
        ("ultraquant_4bit", 16, "is not a multiple of 32"),
        ("nvfp4", 72, "is not a multiple of 16"),
        ("int8_per_token_head", 66, "is not a multiple of 4"),
        ("fp8_ds_mla", 512, "its record exists for 576 only"),
        ("bf16", 0, "expected at least 1 of each"),
    ],
)
def test_impossible_head_sizes_are_refused_with_the_reason(name: str, head_size: int, reason: str) -> None:
    with pytest.raises(LayoutError, match=reason) as caught:
        FORMATS[name].cell_bytes(1, head_size)
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("word", "name"),
    [("bfloat16", "bf16"), ("half", "fp16"), ("float16", "fp16"), ("fp8", "fp8_e4m3"), ("FP8_E5M2", "fp8_e5m2")],
)
def test_words_of_the_engines(word: str, name: str) -> None:
    assert format_name(word) == name
    assert slot_format(word) is FORMATS[name]


def test_auto_is_the_dtype_of_the_model() -> None:
    assert format_name("auto", "float16") == "fp16"
    assert format_name("auto") == "bf16"


def test_unknown_dtype_names_the_nearest() -> None:
    with pytest.raises(LayoutError, match="unknown KV dtype 'turboquant_4bits'; did you mean 'turboquant_4bit_nc'"):
        format_name("turboquant_4bits")
