"""Placements: the worked examples of vLLM's flat allocation, and properties of random recipes by plain index arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.errors import LayoutError
from kvverify.layout.formats import FORMATS, Arrangement
from kvverify.layout.place import place
from kvverify.layout.placement import Field, Layer, Layout, Role
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe
from kvverify.layout.row import ORDERS

TQ4 = "turboquant_4bit_nc"


def mixed(order: str, **kwargs: Any) -> Recipe:
    """First and last two of eight layers bf16, the inner four packed."""
    bf16 = LayerRecipe("bf16", 2, 128, 2)
    return Recipe((bf16, LayerRecipe(TQ4, 2, 128, 4), bf16), order=order, num_blocks=7, **kwargs)


def uniform(order: str, kv_format: str = "bf16", **kwargs: Any) -> Recipe:
    return Recipe((LayerRecipe(kv_format, 2, 128, 8),), order=order, num_blocks=7, **kwargs)


@pytest.mark.parametrize(
    ("order", "strides", "second_layer"),
    [
        ("LBNHC", (8192, 256, 512, 1), 114_688),
        ("LBHNC", (8192, 4096, 256, 1), 114_688),
        ("LHBNC", (4096, 28672, 256, 1), 114_688),
        ("BLNHC", (65536, 256, 512, 1), 16_384),
        ("BLHNC", (65536, 4096, 256, 1), 16_384),
        ("BHLNC", (65536, 32768, 256, 1), 8_192),
    ],
)
def test_uniform_bf16_has_the_strides_of_vllm(order: str, strides: tuple[int, ...], second_layer: int) -> None:
    layout = place(uniform(order))
    layer = layout.layers[1]
    assert tuple(s // 2 for s in (layer.row_stride, *layer.strides)) == strides
    assert layer.offset == second_layer
    assert layer.shape == (2, 16, 256)
    assert layout.size_bytes == 8 * 7 * 16_384


@pytest.mark.parametrize(
    ("order", "offsets", "strides"),
    [
        ("LBNHC", [0, 114_688, 458_752, 488_768, 518_784, 548_800, 229_376, 344_064], (16_384, 4_288)),
        ("BLNHC", [0, 16_384, 65_536, 69_824, 74_112, 78_400, 32_768, 49_152], (82_688, 82_688)),
    ],
)
def test_mixed_regions_follow_the_format_not_the_layer_number(
    order: str, offsets: list[int], strides: tuple[int, int]
) -> None:
    layout = place(mixed(order))
    assert layout.size_bytes == 578_816
    assert [layer.offset for layer in layout.layers] == offsets
    assert (layout.layers[0].block_stride, layout.layers[2].block_stride) == strides
    assert layout.layers[2].shape == (2, 16, 134)
    assert layout.layers[2].strides == (134, 268, 1)
    assert layout.layers[2].page_bytes == 4_288


def test_name_is_readable() -> None:
    assert place(mixed("LBNHC")).name == "lbnhc-bf16x4+tq4x4-h2-d128-n16-b7"
    assert place(mixed("LBNHC", storage_offset=64)).name.endswith("-b7-at64")


def test_soa_metadata_lies_behind_the_data_of_all_tokens() -> None:
    heads, tokens = 2, 16
    layer = place(uniform("LBNHC", f"{TQ4}_soa")).layers[0]
    assert layer.page_bytes == place(uniform("LBNHC", TQ4)).layers[0].page_bytes
    for f, name in enumerate(("k_norm", "v_scale", "v_min")):
        field = next(x for x in layer.fields if x.name == name)
        for token in range(tokens):
            for head in range(heads):
                at = field.offset + head * field.head_stride + token * field.token_stride
                assert at == tokens * heads * 128 + 2 * (head * 3 * tokens + f * tokens + token)


def test_indexer_page_holds_all_values_then_all_scales() -> None:
    layer = place(Recipe((LayerRecipe("dsa_indexer", 1, 128),), block_tokens=64)).layers[0]
    values, scales = layer.fields
    assert (values.offset, values.token_stride, values.length) == (0, 128, 128)
    assert (scales.offset, scales.token_stride, scales.length) == (64 * 128, 4, 4)
    assert layer.shape == (1, 64, 132)


def test_nvfp4_keys_and_values_are_head_slots_of_their_own() -> None:
    layer = place(uniform("LBHNC", "nvfp4")).layers[0]
    assert layer.shape == (4, 16, 72)
    assert [(f.name, f.offset) for f in layer.fields] == [("k", 0), ("k_scale", 2048), ("v", 2304), ("v_scale", 4352)]


@pytest.mark.parametrize(("split", "plane"), [("block_kv", 8_192), ("kv_block", 7 * 8_192)])
def test_split_views_have_a_dimension_for_keys_and_values(split: str, plane: int) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 128, 3, split=split),), num_blocks=7))
    layer = layout.layers[1]
    assert layer.shape == (2, 2, 16, 128)
    assert layer.strides == (plane, 256, 512, 2)
    assert layer.offset == 114_688
    assert layer.row_stride == (16_384 if split == "block_kv" else 8_192)
    assert layer.page_bytes == 16_384


def test_kernel_blocks_are_rows_of_a_dense_page() -> None:
    layer = place(uniform("LBHNC", block_tokens=64, kernel_block_tokens=16)).layers[0]
    assert (layer.rows_per_block, layer.row_stride, layer.block_stride) == (4, 16_384, 65_536)
    assert layer.shape == (2, 16, 256)
    assert layer.page_bytes == 65_536


@pytest.mark.parametrize(
    "recipe",
    [
        uniform("BLNHC", block_tokens=64, kernel_block_tokens=16),
        uniform("LBNHC", block_tokens=64, kernel_block_tokens=16, page_padding=64),
        uniform("LHBNC", block_tokens=64, kernel_block_tokens=16),
    ],
)
def test_kernel_blocks_need_a_dense_page(recipe: Recipe) -> None:
    with pytest.raises(LayoutError, match="not one dense page"):
        place(recipe)


def test_padding_belongs_to_the_block() -> None:
    layer = place(uniform("LBNHC", TQ4, page_padding=8, block_stride_alignment=512)).layers[0]
    assert layer.block_stride == 4_608
    assert (layer.page_bytes, layer.padding_bytes) == (4_288, 320)


def test_groups_overlay_the_same_bytes() -> None:
    full, window = LayerRecipe("bf16", 2, 64, 2), LayerRecipe("fp8_e4m3", 2, 64, 3, group=1)
    layout = place(Recipe((full, window), groups=(GroupRecipe(), GroupRecipe("sliding_window")), num_blocks=4))
    page = 2 * 16 * 256
    assert [layer.offset for layer in layout.layers] == [0, 4 * page, 0, 4 * page, 8 * page]
    assert layout.layers[2].padding_bytes == page // 2
    assert layout.size_bytes == 3 * 4 * page


def test_state_lies_at_the_start_of_the_shared_page() -> None:
    recipe = Recipe(
        (LayerRecipe("bf16", 2, 64), LayerRecipe("mamba_state", 1, 5_000, group=1)),
        groups=(GroupRecipe(), GroupRecipe("mamba")),
    )
    layer = place(recipe).layers[1]
    assert (layer.offset, layer.shape, layer.page_bytes, layer.padding_bytes) == (0, (1, 1, 5_000), 5_000, 3_192)


def test_aliases_are_recorded_on_the_owner() -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, 2), LayerRecipe("bf16", 2, 64, 2, alias_of=1))))
    assert [layer.aliases for layer in layout.layers] == [(), ("layers.2", "layers.3")]
    assert layout.size_bytes == 2 * 8 * 8_192


def test_sparse_buffer_is_arithmetic_only() -> None:
    layers = (LayerRecipe("bf16", 8, 128),)
    layout = place(Recipe(layers, num_blocks=4_290, block_tokens=30, usable_blocks=(0, 2_142, 4_285)))
    assert layout.blocks == (0, 2_142, 4_285)
    assert layout.size_bytes == 4_290 * 122_880


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (mixed("LHBNC"), "order LHBNC needs layers of one shape"),
        (mixed("BHLNC"), "order BHLNC needs layers of one shape"),
        (uniform("LBNCH"), r"unknown order 'LBNCH'; did you mean .*'LBNHC'"),
        (uniform("LHBNC", "nvfp4"), "nvfp4 needs each block as one dense page"),
        (uniform("LHBNC", page_padding=64), "cannot pad pages"),
        (uniform("BLNHC", region_gap=64), "region_gap 64"),
        (uniform("LBNHC", storage_offset=1), "layer 0 .bf16.: offset 1 is not a multiple of its element size 2"),
        (Recipe((LayerRecipe(TQ4, 2, 80),)), r"layers\[0\]: format turboquant_4bit_nc: head size 80 .*power of two"),
        (Recipe((LayerRecipe("bf61", 2, 64),)), "unknown KV dtype 'bf61'; did you mean 'bf16'"),
        (Recipe((LayerRecipe(TQ4, 2, 64, split="block_kv"),)), "holds K and V in one slot"),
        (Recipe((LayerRecipe("bf16", 2, 64, split="kv_block"),), order="BLNHC"), "has no meaning in order BLNHC"),
        (Recipe((LayerRecipe("bf16", 2, 64, split="half"),)), "unknown 'half'"),
        (Recipe((LayerRecipe("bf16", 2, 64, group=1),)), r"layers\[0\].group: got 1, expected 0 to 0"),
        (Recipe((LayerRecipe("bf16", 2, 64, alias_of=0),)), "expected a layer 0 to 0 that owns its tensor"),
        (Recipe((LayerRecipe("bf16", 2, 64), LayerRecipe("bf16", 1, 64, alias_of=0))), "a shared tensor has one shape"),
        (Recipe((LayerRecipe("bf16", 2, 64, 0),)), r"layers\[0\].count: got 0"),
        (Recipe((LayerRecipe("bf16", 2, 64),), block_tokens=48, kernel_block_tokens=32), "must divide block_tokens"),
        (Recipe((LayerRecipe("bf16", 2, 64),), usable_blocks=(3, 9)), "rising block ids between 0 and 7"),
        (Recipe((LayerRecipe("bf16", 2, 64),), groups=(GroupRecipe(), GroupRecipe())), r"groups\[1\] has no layer"),
        (Recipe((LayerRecipe("bf16", 2, 64, 10**9),)), "got 1000000000 layers, expected at most 10000"),
        (Recipe(()), "at least one layer"),
    ],
)
def test_impossible_recipes_are_refused_in_one_line(recipe: Recipe, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        place(recipe)
    assert "\n" not in str(caught.value)


# ---- properties of random recipes -------------------------------------------------------------------------------------------


def bytes_of(layer: Layer, field: Field, block: int) -> Iterator[int]:
    for row in range(layer.rows_per_block):
        start = layer.offset + (block * layer.rows_per_block + row) * layer.row_stride + field.offset
        for head in range(field.heads):
            for token in range(field.tokens):
                at = start + head * field.head_stride + token * field.token_stride
                yield from range(at, at + field.length)


@st.composite
def layer_runs(draw: st.DrawFn, order: str, groups: int) -> LayerRecipe:
    fmt = draw(st.sampled_from(sorted(FORMATS.values(), key=lambda f: f.name)))
    head_size = fmt.fixed_head_size or draw(st.sampled_from([32, 64]))
    splits = ["fused"]
    if fmt.splittable and order[0:2] in ("LB", "BL"):
        splits.append("block_kv")
    if fmt.splittable and order[0:2] == "LB" and groups == 1:
        splits.append("kv_block")
    return LayerRecipe(
        fmt.name,
        1 if fmt.one_head else draw(st.integers(1, 3)),
        head_size,
        draw(st.integers(1, 2)),
        draw(st.integers(0, groups - 1)),
        draw(st.sampled_from(splits)),
    )


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    order = draw(st.sampled_from(ORDERS))
    groups = draw(st.integers(1, 2))
    uniform_only = order in ("LHBNC", "BHLNC")
    runs = [draw(layer_runs(order, groups)) for _ in range(1 if uniform_only else draw(st.integers(1, 3)))]
    missing = set(range(groups)) - {run.group for run in runs}
    runs += [LayerRecipe(r.kv_format, r.heads, r.head_size, 1, g, r.split) for g in missing for r in runs[:1]]
    tokens = draw(st.sampled_from([2, 4]))
    dense = uniform_only or draw(st.booleans())
    split_kernel = dense and order[:2] == "LB" and groups == 1 and draw(st.booleans())
    return Recipe(
        tuple(runs),
        order=order,
        num_blocks=draw(st.integers(1, 3)),
        block_tokens=tokens,
        groups=tuple(GroupRecipe() for _ in range(groups)),
        kernel_block_tokens=2 if split_kernel else None,
        storage_offset=draw(st.sampled_from([0, 4, 64])),
        region_gap=draw(st.sampled_from([0, 32])) if order[:2] == "LB" and groups == 1 else 0,
        page_padding=0 if dense else draw(st.sampled_from([0, 8])),
        block_stride_alignment=1 if dense else draw(st.sampled_from([1, 64])),
    )


def placed(recipe: Recipe) -> Layout | None:
    """Place a random recipe; a dense-page format in a head-outer order is refused, which has its own tests."""
    dense_only = any(FORMATS[r.kv_format].arrangement is not Arrangement.CELLS for r in recipe.layers)
    try:
        return place(recipe)
    except LayoutError:
        assert dense_only
        assert recipe.order in ("LHBNC", "BHLNC")
        return None


@settings(max_examples=60, deadline=None)
@given(recipes())
def test_every_byte_has_at_most_one_owner_in_a_group(recipe: Recipe) -> None:
    layout = placed(recipe)
    if layout is None:
        return
    for group in layout.groups:
        owners: set[int] = set()
        count = 0
        for position in layout.group_layers(group.index):
            layer = layout.layers[position]
            content = 0
            for field in layer.fields:
                for block in range(layout.num_blocks):
                    owned = list(bytes_of(layer, field, block))
                    content += len(owned) if field.role is not Role.PADDING else 0
                    count += len(owned)
                    owners.update(owned)
            assert content == layer.page_bytes * layout.num_blocks
        assert len(owners) == count, "two fields own one byte"
        assert min(owners) >= recipe.storage_offset
        assert max(owners) < layout.size_bytes


@settings(max_examples=60, deadline=None)
@given(recipes())
def test_view_covers_exactly_the_content_of_its_fields(recipe: Recipe) -> None:
    """The view, walked by its own strides, names the same bytes as the fields, padding not counted."""
    layout = placed(recipe)
    if layout is None:
        return
    for layer in layout.layers:
        viewed: set[int] = set()
        starts = [layer.offset + row * layer.row_stride for row in range(layout.num_blocks * layer.rows_per_block)]
        for size, stride in zip(layer.shape[:-1], layer.strides[:-1], strict=True):
            starts = [start + i * stride for start in starts for i in range(size)]
        for start in starts:
            viewed.update(range(start, start + layer.shape[-1] * layer.element_bytes))
        owned = {
            at
            for field in layer.fields
            if field.name != "padding"
            for block in range(layout.num_blocks)
            for at in bytes_of(layer, field, block)
        }
        assert viewed == owned


@settings(max_examples=40, deadline=None)
@given(recipes())
def test_fields_of_a_cell_follow_each_other_in_the_view(recipe: Recipe) -> None:
    """Where a token's bytes are contiguous, the fields of (head, token) tile the view's cell from its first byte."""
    layout = placed(recipe)
    if layout is None:
        return
    for layer in layout.layers:
        if len(layer.shape) != 3 or FORMATS[layer.kv_format].arrangement is not Arrangement.CELLS:
            continue
        heads, tokens, _ = layer.shape
        for head in range(heads):
            for token in range(tokens):
                at = head * layer.strides[0] + token * layer.strides[1]
                for field in layer.fields:
                    if field.name != "padding":
                        assert field.offset + head * field.head_stride + token * field.token_stride == at
                        at += field.length
