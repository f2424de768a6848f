"""Faults in the arena of a GPU: on the CPU as far as no stream is needed, and no fault reaches out of the allocation."""

from __future__ import annotations

from types import ModuleType

import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.faults.catalogue import catalogue
from kvverify.faults.fault import Fault
from kvverify.faults.reported import dense, kv_swapped
from kvverify.layout.placement import Layer, Layout
from tests.faults.hunting import pool, reference
from tests.faults.planting import effects, layout_for

NEEDS_MUCH_MEMORY = {"F08", "K04"}
PLANTED = [f for f in catalogue() if not f.out_of_reach("cpu") and f.id not in NEEDS_MUCH_MEMORY]
REACH = 1 << 20  # bytes that may be touched on either side of the engine's buffer


@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f.id)
def test_a_planted_fault_leaves_something_else_than_a_clean_run(fault: Fault, torch: ModuleType) -> None:
    planted = fault.plant(reference())
    layout = layout_for(fault, planted, "cpu")
    assert layout is not None
    clean = reference(4 if fault.chunked else 1)
    left = effects(clean, layout, t.device("cpu"))
    assert left == effects(reference(4 if fault.chunked else 1), layout, t.device("cpu"))
    assert left != effects(planted, layout, t.device("cpu"))


def _view(layout: Layout, layer: Layer) -> t.Tensor:
    """The view of ``layer`` in memory that does not exist."""
    size = layer.element_bytes
    everywhere = t.empty((layout.size_bytes + 2 * REACH) // size, dtype=getattr(t, layer.element), device="meta")
    shape = (layout.num_blocks * layer.rows_per_block, *layer.shape)
    strides = [s // size for s in (layer.row_stride, *layer.strides)]
    return everywhere.as_strided(shape, strides, (REACH + layer.offset) // size)


@pytest.mark.parametrize("misread", [dense, kv_swapped])
def test_misread_strides_stay_within_reach(misread: object, torch: ModuleType) -> None:
    met = 0
    for layout in pool():
        for layer in layout.layers:
            view = _view(layout, layer)
            if misread is kv_swapped and view.dim() != 5:
                continue
            assert callable(misread)
            wrong = misread(view)  # torch refuses what lies outside of the memory
            last = wrong.storage_offset() + sum((n - 1) * s for n, s in zip(wrong.shape, wrong.stride(), strict=True))
            assert last * layer.element_bytes < layout.size_bytes + 2 * REACH, layout.name
            met += 1
    assert met > 5


def test_wrapped_offsets_stay_within_the_far_guard(torch: ModuleType) -> None:
    from kvverify.faults.reported import _wrapped, crosses_int32

    far = [layout for layout in pool() if crosses_int32({}, layout) is None]
    assert far
    for layout in far:
        assert layout.size_bytes >= 1 << 31  # which is what the arena decides the length of its guard by
        for layer in layout.layers:
            for block in layout.blocks:
                place = layer.offset + block * layer.block_stride + _wrapped(block * layer.block_stride)
                assert -(4 << 30) <= place < layout.size_bytes
