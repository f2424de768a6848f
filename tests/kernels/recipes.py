"""Layouts that kernel tests go through: one of each kind, and a strategy for any."""

from __future__ import annotations

from hypothesis import strategies as st

from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe

MIXED = (LayerRecipe("bf16", 2, 64, count=2), LayerRecipe("turboquant_4bit_nc", 2, 128, count=2))
TWO_GROUPS = (GroupRecipe(), GroupRecipe("sliding_window"))

RECIPES: dict[str, Recipe] = {
    **{f"bf16 {order}": Recipe((LayerRecipe("bf16", 2, 64, count=3),), order) for order in ("LBNHC", "LBHNC", "LHBNC")},
    **{f"bf16 {order}": Recipe((LayerRecipe("bf16", 2, 64, count=3),), order) for order in ("BLNHC", "BLHNC", "BHLNC")},
    "mixed LBNHC": Recipe(MIXED, storage_offset=256),
    "mixed BLNHC": Recipe(MIXED, "BLNHC"),
    "mixed with gaps": Recipe(MIXED, region_gap=4096, storage_offset=256),
    "block_kv": Recipe((LayerRecipe("bf16", 2, 64, count=2, split="block_kv"),)),
    "block_kv LBHNC": Recipe((LayerRecipe("fp8_e4m3", 2, 64, count=2, split="block_kv"),), "LBHNC"),
    "kv_block": Recipe((LayerRecipe("bf16", 2, 64, count=2, split="kv_block"),)),
    "kv_block LBHNC": Recipe((LayerRecipe("fp16", 2, 64, count=2, split="kv_block"),), "LBHNC"),
    "padded pages": Recipe((LayerRecipe("fp32", 2, 5, count=2),), page_padding=64),
    "aligned blocks": Recipe((LayerRecipe("turboquant_4bit_nc", 2, 128, count=2),), block_stride_alignment=4096),
    "cell padding": Recipe((LayerRecipe("turboquant_k3v4_nc", 1, 64, count=2),), block_tokens=3),
    "aliased": Recipe((LayerRecipe("bf16", 2, 64, count=2), LayerRecipe("bf16", 2, 64, alias_of=0))),
    "kernel blocks": Recipe((LayerRecipe("bf16", 2, 64, count=2),), block_tokens=32, kernel_block_tokens=16),
    "SoA": Recipe((LayerRecipe("turboquant_4bit_nc_soa", 2, 128, count=2),)),
    "nvfp4": Recipe((LayerRecipe("nvfp4", 2, 64, count=2),)),
    "MLA and indexer": Recipe((LayerRecipe("mla_bf16", 1, 576, count=2), LayerRecipe("dsa_indexer", 1, 128))),
    "one head, one token": Recipe((LayerRecipe("fp8_e4m3", 1, 66, count=2),), block_tokens=1),
    "two groups": Recipe((LayerRecipe("bf16", 2, 64, count=2), LayerRecipe("bf16", 2, 64, group=1)), groups=TWO_GROUPS),
    "two groups of two formats": Recipe(
        (
            LayerRecipe("bf16", 2, 64),
            LayerRecipe("fp8_e4m3", 2, 128),
            LayerRecipe("fp8_e4m3", 4, 64, group=1),
            LayerRecipe("bf16", 1, 128, group=1),
        ),
        groups=TWO_GROUPS,
    ),
}

_FORMATS = (("bf16", 64), ("bf16", 5), ("fp32", 7), ("fp8_e4m3", 66), ("fp8_e4m3", 65), ("turboquant_4bit_nc", 128))
_SPLITTABLE = ("bf16", "fp32", "fp8_e4m3")


@st.composite
def layer_recipes(draw: st.DrawFn) -> LayerRecipe:
    kv_format, head_size = draw(st.sampled_from(_FORMATS))
    split = draw(st.sampled_from(("fused", "block_kv", "kv_block"))) if kv_format in _SPLITTABLE else "fused"
    return LayerRecipe(kv_format, draw(st.integers(1, 3)), head_size, draw(st.integers(1, 2)), split=split)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """LBNHC and LBHNC with one group, any mix of formats."""
    return Recipe(
        tuple(draw(st.lists(layer_recipes(), min_size=1, max_size=3))),
        draw(st.sampled_from(("LBNHC", "LBHNC"))),
        num_blocks=draw(st.integers(1, 9)),
        block_tokens=draw(st.integers(1, 5)),
        storage_offset=draw(st.sampled_from((0, 16, 256))),
    )
