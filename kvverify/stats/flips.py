"""Flips: how many answers change between two arms, which equal scores hide (arXiv 2407.09141). Their rate is kvverify.stats.rates'."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.bootstrap import DRAWS, paired_bootstrap
from kvverify.stats.excess import FEWEST, Excess


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
