"""The centroids of TurboQuant: the Lloyd-Max quantiser of N(0, 1/D).

Source: vLLM 0.32 ``model_executor/layers/quantization/turboquant/centroids.py`` and LMCache 0.5.6
``distributed/serde/turboquant/turboquant.py``, which compute the same numbers.
"""

from __future__ import annotations

import itertools
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Floats

ROUNDS, TOLERANCE, TRAPEZOID_STEPS = 200, 1e-10, 200


def centroids(head_size: int, bits: int) -> Floats:
    """Return the 2^bits centroids in rising order, float32."""
    return _solve(head_size, bits).astype(np.float32)


def midpoints(head_size: int, bits: int) -> Floats:
    """Return the 2^bits - 1 decision points of vLLM: float32 means of neighbouring float32 centroids."""
    table = centroids(head_size, bits)
    return (table[1:] + table[:-1]) / np.float32(2)


def midpoints_from_double(head_size: int, bits: int) -> Floats:
    """Return the decision points of LMCache: means in double precision, rounded to float32 last; may differ in the last bit."""
    table = _solve(head_size, bits)
    return ((table[1:] + table[:-1]) / 2).astype(np.float32)


@lru_cache(maxsize=32)
def _solve(head_size: int, bits: int) -> NDArray[np.float64]:
    """Return the centroids in double precision.

    Start: the middles of 2^bits equal cells of +-3.5 sigma; the outer edges are +-10.5 sigma. A round moves each
    centroid to the mean of its cell (trapezoid rule, 200 steps); rounds end when none moves by 1e-10, and the set
    before that round is kept.
    """
    sigma = head_size**-0.5
    count = 2**bits
    found: NDArray[np.float64] = (-3.5 + 7 * (np.arange(count) + 0.5) / count) * sigma
    for _ in range(ROUNDS):
        edges = np.concatenate([[-10.5 * sigma], (found[1:] + found[:-1]) / 2, [10.5 * sigma]])
        moved = np.array([_cell_mean(a, b, sigma) for a, b in itertools.pairwise(edges)])
        if np.abs(moved - found).max() < TOLERANCE:
            break
        found = moved
    return found


def _cell_mean(low: float, high: float, sigma: float) -> float:
    x = np.linspace(low, high, TRAPEZOID_STEPS + 1)
    weight = np.exp(-x * x / (2 * sigma * sigma))
    weight[[0, -1]] /= 2
    return float((weight * x).sum() / weight.sum())
