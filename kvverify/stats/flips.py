"""Flips: how many answers change between two arms, which equal scores hide (arXiv 2407.09141)."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.bootstrap import DRAWS, paired_bootstrap
from kvverify.stats.excess import FEWEST, Excess
from kvverify.stats.normal import quantile


@dataclass(frozen=True, slots=True)
class Rate:
    """A share of trials with its interval."""

    rate: float
    low: float
    high: float


def flip_rate(flips: int, pairs: int, confidence: float = 0.95) -> Rate:
    """Return the share of pairs that flip (psi) with Wilson's score interval (JASA 22:209-212, 1927).

    Raises:
        ValueError: counts that no pairs can have, or a confidence outside (0, 1).
    """
    if pairs < 1 or not 0 <= flips <= pairs:
        raise ValueError(f"{flips} flips of {pairs} pairs: expected one pair at least, and no more flips than pairs")
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}: expected a number between 0 and 1")
    z, rate = quantile((1 + confidence) / 2), flips / pairs
    middle = (flips + z * z / 2) / (pairs + z * z)
    half = z / (pairs + z * z) * math.sqrt(pairs * rate * (1 - rate) + z * z / 4)
    # at the ends the limits are 0 and 1 exactly, which rounding misses
    return Rate(rate, 0.0 if flips == 0 else middle - half, 1.0 if flips == pairs else middle + half)


def excess_flips(
    flips: npt.ArrayLike,
    floor: npt.ArrayLike,
    *,
    confidence: float = 0.95,
    seed: int,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    draws: int = DRAWS,
) -> Excess:
    """Return how many more pairs flip between base and arm than between base and base again, with a paired bootstrap interval.

    ``flips[i]`` says whether item i differs between base and arm, ``floor[i]`` whether it does between base and base again.

    Raises:
        ValueError: no item, unequal numbers of them, or labels of another number.
    """
    a, b = np.asarray(floor, dtype=bool), np.asarray(flips, dtype=bool)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"excess flips need one floor for each item, got {b.size} and {a.size}")
    difference = b.astype(np.float64) - a.astype(np.float64)
    interval = paired_bootstrap(difference, clusters=clusters, draws=draws, confidence=confidence, seed=seed)
    low, high = interval.low, interval.high
    if low is None or high is None or (interval.clusters < FEWEST and difference.any()):
        low, high = -1.0, 1.0  # nothing can be said: as wide as the values allow
    return Excess(a.size, float(a.mean()), float(b.mean()), float(difference.mean()), low, high, confidence)
