"""Extents: every byte of an allocation belongs to exactly one, and to the groups that the layout says."""

from __future__ import annotations

import numpy as np
import pytest

from kvverify.arena.extents import Extent, extents_of
from kvverify.arena.geometry import block_start, content_runs, padding_runs
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe

_BASE, _BEHIND = 8192, 4096
_SMALL = [r for r in campaign_pool() if r.usable_blocks is None]


def _owners(extents: tuple[Extent, ...], size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    covered = np.zeros(size, np.int64)
    for extent in extents:
        for i in range(extent.count):
            covered[extent.start + i * extent.stride :][: extent.length] += 1
    return covered


def _named(recipe: Recipe) -> str:
    return place(recipe).name


@pytest.mark.parametrize("recipe", _SMALL, ids=_named)
def test_each_byte_lies_in_exactly_one_extent(recipe: Recipe) -> None:
    layout = place(recipe)
    size = _BASE + layout.size_bytes + _BEHIND
    assert (_owners(extents_of(layout, _BASE, size), size) == 1).all()


@pytest.mark.parametrize("recipe", _SMALL, ids=_named)
def test_extents_belong_to_the_groups_that_write_them(recipe: Recipe) -> None:
    layout = place(recipe)
    size = _BASE + layout.size_bytes + _BEHIND
    extents = extents_of(layout, _BASE, size)
    for group in layout.groups:
        for padding in (False, True):
            assert (
                _by_extents(extents, group.index, padding, size) == _by_layers(layout, group.index, padding, size)
            ).all()


def _by_extents(
    extents: tuple[Extent, ...], group: int, padding: bool, size: int
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    blocks = np.full(size, -1, np.int64)
    for extent in extents:
        if group in (extent.padding if padding else extent.content):
            assert extent.blockwise
            for block in range(extent.count):
                blocks[extent.start + block * extent.stride :][: extent.length] = block
    return blocks


def _by_layers(layout: Layout, group: int, padding: bool, size: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    blocks = np.full(size, -1, np.int64)
    for number in layout.group_layers(group):
        layer = layout.layers[number]
        for block in range(layout.num_blocks):
            for start, length in padding_runs(layer) if padding else content_runs(layer):
                blocks[_BASE + block_start(layer, block) + start :][:length] = block
    return blocks


def test_a_pool_of_gigabytes_needs_few_extents() -> None:
    sparse = [place(r) for r in campaign_pool() if r.usable_blocks is not None]
    assert sparse
    for layout in sparse:
        extents = extents_of(layout, _BASE, _BASE + layout.size_bytes + _BEHIND)
        assert len(extents) < 200
        assert sum(e.length * e.count for e in extents) == _BASE + layout.size_bytes + _BEHIND
