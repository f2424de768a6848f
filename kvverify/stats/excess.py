"""How much more two arms differ than one arm from itself, with a paired bootstrap interval (A/A floor and excess)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
FEWEST = 16  # below, the interval of a percentile bootstrap covers too seldom to call anything a failure
# a run makes about ten of these comparisons, each of which may raise a false alarm: 5 % of all of them together, two-sided
CONFIDENCE = 0.998


@dataclass(frozen=True, slots=True)
class Excess:
    """Means over items: ``floor`` of A against A', ``value`` of A against B, ``excess`` their difference, in [low, high].

    ``confidence`` is that of the interval. With fewer than FEWEST items nothing can be said: the interval is then as wide as the
    values allow.
    """

    items: int
    floor: float
    value: float
    excess: float
    low: float
    high: float
    confidence: float


def excess(
    floor: Sequence[float],
    value: Sequence[float],
    *,
    seed: int,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Excess:
    """Return the mean of ``value[i] - floor[i]`` with a percentile interval over resampled items.

    Item i is one prompt (several rounds of it are one item: the caller averages them), measured in both ways, so that what is
    hard about a prompt cancels. For 0/1 values the means are rates and the excess is psi_AB - psi_AA.

    Raises:
        ValueError: no item, unequal numbers of them, or a value that is not finite.
    """
    a, b = np.asarray(floor, dtype=np.float64), np.asarray(value, dtype=np.float64)
    if a.shape != b.shape or a.ndim != 1 or not a.size:
        raise ValueError(f"excess needs one floor for each value, got {a.size} and {b.size}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise ValueError("excess of values that are not finite")
    difference = b - a
    if difference.size < FEWEST and difference.any():
        largest = float(max(a.max(), b.max()))
        low, high = -largest, largest
    else:
        random = np.random.default_rng(seed)
        counts = random.multinomial(difference.size, np.full(difference.size, 1 / difference.size), size=resamples)
        tail = (1 - confidence) / 2
        low, high = (float(q) for q in np.quantile(counts @ difference / difference.size, (tail, 1 - tail)))
    means = (float(a.mean()), float(b.mean()), float(difference.mean()))
    return Excess(difference.size, *means, low, high, confidence)
