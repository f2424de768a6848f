"""A non-uniform scalar grid: levels in rising order and the edges between their cells."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvverify.codecs.arrays import Floats


@dataclass(frozen=True, slots=True, eq=False)
class Levels:
    """``levels`` float32 [n] and ``edges`` float32 [n - 1]; a number belongs to the cell between two edges."""

    levels: Floats
    edges: Floats

    def reach(self, x: Floats) -> Floats:
        """Return the largest distance to the level inside the cell of each ``x``; in an outer cell at least the own distance."""
        table, edges = self.levels, self.edges
        reach = np.empty(len(table), np.float32)
        reach[1:-1] = np.maximum(table[1:-1] - edges[:-1], edges[1:] - table[1:-1])
        reach[0], reach[-1] = edges[0] - table[0], table[-1] - edges[-1]
        beyond = np.maximum(x - table[-1], table[0] - x)
        return np.asarray(np.maximum(reach[np.searchsorted(edges, x)], beyond), np.float32)

    def width(self, x: Floats) -> Floats:
        """Return the width of the cell of each ``x``; an outer cell counts as twice the way from its level to its edge."""
        table, edges = self.levels, self.edges
        width = np.empty(len(table), np.float32)
        width[1:-1] = edges[1:] - edges[:-1]
        width[0], width[-1] = 2 * (edges[0] - table[0]), 2 * (table[-1] - edges[-1])
        return np.asarray(width[np.searchsorted(edges, x)], np.float32)


def rms(x: Floats) -> Floats:
    """Return the root mean square over the last axis, float32 [..., 1]."""
    return np.asarray(np.sqrt((x * x).mean(-1, keepdims=True)), np.float32)
