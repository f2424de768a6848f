"""The pool of layouts is broad, small and ordered by usefulness."""

from __future__ import annotations

import pytest

from kvverify.errors import LayoutError
from kvverify.layout.formats import FORMATS
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool, filter_pool
from kvverify.layout.row import ORDERS

MIB = 1 << 20


@pytest.fixture(scope="module")
def layouts() -> list[Layout]:
    return [place(recipe) for recipe in campaign_pool()]


def touched_bytes(layout: Layout) -> int:
    per_block = sum(layer.page_bytes + layer.padding_bytes for layer in layout.layers)
    return per_block * len(layout.blocks)


def test_names_are_unique(layouts: list[Layout]) -> None:
    names = [layout.name for layout in layouts]
    assert len(names) >= 80
    assert sorted(n for n in set(names) if names.count(n) > 1) == []
    assert max(len(name) for name in names) < 120


def test_buffers_are_small(layouts: list[Layout]) -> None:
    dense = [layout for layout in layouts if layout.usable_blocks is None]
    assert {layout.name: layout.size_bytes for layout in dense if layout.size_bytes > 1.1 * MIB} == {}
    assert all(touched_bytes(layout) <= 5 * MIB for layout in layouts)


def test_first_layouts_cover_every_format_order_and_mix(layouts: list[Layout]) -> None:
    first = layouts[:21]
    assert {fmt for layout in first for fmt in layout.formats} == set(FORMATS)
    assert {layout.order for layout in first} == set(ORDERS)
    mixed_with_bf16 = {fmt for layout in first if "bf16" in layout.formats for fmt in layout.formats}
    assert {fmt for fmt in FORMATS if fmt.startswith("turboquant")} <= mixed_with_bf16
    assert any(layout.usable_blocks for layout in first)
    assert any(len(layout.groups) > 1 for layout in first)
    assert any(layer.rows_per_block > 1 for layout in first for layer in layout.layers)
    assert {len(layer.shape) for layout in first for layer in layout.layers} == {3, 4}


def test_slot_sizes_heads_and_blocks_of_the_fuzz_checklist(layouts: list[Layout]) -> None:
    widths = {layer.shape[-1] for layout in layouts for layer in layout.layers if layer.element == "uint8"}
    assert {54, 62, 70, 100, 102, 118, 134, 136, 196, 198, 230, 262, 388, 132, 656} <= widths
    heads = {layer.shape[-3] for layout in layouts for layer in layout.layers}
    assert {1, 2, 3, 8} <= heads
    assert {2, 3, 33} <= {layout.num_blocks for layout in layouts}
    assert {16, 32, 64, 256} <= {layout.block_tokens for layout in layouts}
    odd = {layer.page_bytes % 8 for layout in layouts for layer in layout.layers}
    assert {0, 1, 2, 4, 6} <= odd


@pytest.mark.parametrize("border", [2**31, 2**32])
def test_sparse_buffers_cross_the_32_bit_borders(layouts: list[Layout], border: int) -> None:
    crossed = [
        layer.element
        for layout in layouts
        if layout.usable_blocks
        for layer in layout.layers
        for low, high in [(min(layout.blocks) * layer.block_stride, max(layout.blocks) * layer.block_stride)]
        if low < border < high
    ]
    assert {"bfloat16", "uint8"} <= set(crossed)  # 2^32 bytes are 2^31 bf16 elements


def test_a_block_stride_of_a_real_model_crosses_between_neighbouring_ids(layouts: list[Layout]) -> None:
    layer = layouts[-1].layers[0]
    assert layer.block_stride == 1_002_240
    assert 2_142 * layer.block_stride < 2**31 < 2_143 * layer.block_stride
    assert 4_285 * layer.block_stride < 2**32 < 4_286 * layer.block_stride


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_every_dtype_has_layouts_of_its_own(name: str) -> None:
    assert all(name in {run.kv_format for run in recipe.layers} for recipe in filter_pool(name))
    assert filter_pool(name)


def test_filter_takes_the_words_of_engines() -> None:
    assert filter_pool("bfloat16") == filter_pool("bf16")
    with pytest.raises(LayoutError, match="unknown KV dtype 'turboquant_4bit'; did you mean 'turboquant_4bit_nc'"):
        filter_pool("turboquant_4bit")
