"""Layouts for a GPU: each page size and border that a copy may choose by, once."""

from __future__ import annotations

from kvverify.layout.gpu_pool import gpu_pool
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool


def test_names_are_unique() -> None:
    names = [place(r).name for r in (*campaign_pool(), *gpu_pool())]
    assert len(names) == len(set(names))


def test_pages_are_as_odd_as_the_slots_of_the_formats() -> None:
    pages = {layer.page_bytes for r in gpu_pool() for layer in place(r).layers}
    slots = (66, 68, 102, 118, 130, 134, 136, 196)
    assert {slot * heads for slot in slots for heads in (1, 2, 3, 8)} | {132} <= pages


def test_pages_lie_on_both_sides_of_each_threshold() -> None:
    pages = {layer.page_bytes for r in gpu_pool() for layer in place(r).layers}
    for threshold in (8192, 28 * 1024):
        assert {threshold - 8, threshold, threshold + 8} <= pages
    assert any(page % 8 == 4 and page < 28 * 1024 for page in pages)
    assert all(len(place(r).blocks) > 17 for r in gpu_pool() if r.usable_blocks is None)


def test_large_buffers_cross_two_to_the_31_in_every_unit() -> None:
    large = [place(r) for r in gpu_pool() if r.usable_blocks is not None]
    assert len(large) == 2
    outside = large[0]
    starts = [outside.layers[0].offset + b * outside.layers[0].block_stride for b in outside.blocks]
    for unit in (1, 2, 4, 8, 16):
        assert any(start // unit < 1 << 31 for start in starts)
        assert any(start // unit >= 1 << 31 for start in starts)
    assert all(32 << 30 < layout.size_bytes < 40 << 30 for layout in large)
