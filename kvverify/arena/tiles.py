"""Extents cut into tiles, the unit of work of one GPU program, as tables that a kernel can read.

Tiles of like size are launched together. A launch is over ``tiles x blocks``: tile t of block b covers ``lengths[t]`` bytes from
position ``starts[t] + b * strides[t]`` of the allocation on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from kvverify.arena.extents import NOBODY, Extent, Groups
from kvverify.arena.geometry import Positions, content_runs, scale_positions
from kvverify.arena.memory import Bytes
from kvverify.layout.placement import Layout

WORD = 8  # bytes
_TILE_BYTES = (256, 1024, 4096, 8192)  # sizes of a tile; each is one more variant that the compiler makes
_EXTREME = (0xFF, 0x7F)  # of even and odd scale bytes: NaN, infinity or the largest value in either byte order


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of one launch: four int64 arrays [n]. ``kinds`` are rows of the records; ``unit`` is 8 where all runs are whole words.

    ``tile_bytes`` is the most that a tile covers. ``blocks`` is the number of blocks that have these tiles, None where the caller
    names them.
    """

    unit: int
    tile_bytes: int
    blocks: int
    starts: Positions
    strides: Positions
    lengths: Positions
    kinds: Positions

    @property
    def nbytes(self) -> int:
        """Bytes of all tiles of all blocks."""
        return int(self.lengths.sum()) * self.blocks


@dataclass(frozen=True, slots=True)
class Pattern:
    """Which bytes of the tiles are scales, uint8 [tiles, tile_bytes]: ``extremes`` to put there, ``masks`` 0xFF where one is."""

    extremes: Bytes
    masks: Bytes


def kinds_of(extents: Iterable[Extent]) -> list[Groups]:
    """Return the kinds of history: which groups write a byte. Row 0 is what no group writes."""
    return [NOBODY, *sorted({e.content for e in extents} - {NOBODY}, key=sorted)]


def tiles_of(extents: Iterable[Extent], kinds: list[Groups], *, unit: int = 0) -> tuple[Tiles, ...]:
    """Cut ``extents`` into tiles, one entry a launch; ``unit`` 1 asks for bytes even where words would do."""
    launches: dict[tuple[int, int, int], list[tuple[int, int, int, int]]] = {}
    for extent in extents:
        step, kind = unit or _unit(extent), kinds.index(extent.content)
        sizes = (
            _TILE_BYTES if step == WORD else _TILE_BYTES[:2]
        )  # eight times as many lanes, for which registers must do
        for first in range(0, extent.length, sizes[-1]):
            length = min(sizes[-1], extent.length - first)
            tile = next(t for t in sizes if t >= length)  # idle lanes cost as much as busy ones
            launches.setdefault((step, tile, extent.count), []).append(
                (extent.start + first, extent.stride, length, kind)
            )
    return tuple(_table(key, entries) for key, entries in launches.items())


def _table(key: tuple[int, int, int], entries: list[tuple[int, int, int, int]]) -> Tiles:
    starts, strides, lengths, kinds = np.asarray(entries, np.int64).T.copy()
    return Tiles(*key, starts, strides, lengths, kinds)


def _unit(extent: Extent) -> int:
    aligned = extent.start % WORD == 0 and extent.length % WORD == 0 and extent.stride % WORD == 0
    return WORD if aligned else 1


def patterns_of(layout: Layout, base: int, group: int, launches: Iterable[Tiles]) -> tuple[Pattern, ...]:
    """Return for each launch which bytes of its tiles are scales of ``group``."""
    scales: dict[int, int] = {}  # position in block 0 -> extreme byte
    for number in layout.group_layers(group):
        layer = layout.layers[number]
        for (start, _), found in zip(content_runs(layer), scale_positions(layer), strict=True):
            first = base + layer.offset + start
            scales.update((first + at, _EXTREME[at % 2]) for at in found.tolist())
    positions = np.asarray(sorted(scales), np.int64)
    values = np.asarray([scales[p] for p in positions.tolist()], np.uint8)
    return tuple(_pattern(tiles, positions, values) for tiles in launches)


def _pattern(tiles: Tiles, positions: Positions, values: Bytes) -> Pattern:
    shape = (len(tiles.starts), tiles.tile_bytes)
    extremes, masks = np.zeros(shape, np.uint8), np.zeros(shape, np.uint8)
    for row, (start, length) in enumerate(zip(tiles.starts.tolist(), tiles.lengths.tolist(), strict=True)):
        low, high = np.searchsorted(positions, [start, start + length])
        at = positions[low:high] - start
        extremes[row, at], masks[row, at] = values[low:high], 0xFF
    return Pattern(extremes, masks)
