"""By how much a quantile of a latency grew from one arm to another, with a bootstrap interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Growth:
    """``growth`` is quantile(arm) / quantile(base) - 1 and lies in [low, high] at ``confidence``; both quantiles in the unit given."""

    base: float
    arm: float
    growth: float
    low: float
    high: float
    confidence: float


def fewest(quantile: float, confidence: float) -> int:
    """Return the fewest values whose largest is above the quantile with this confidence (Wilks, Ann Math Stat 12:91, 1941).

    With fewer no interval of the quantile can end inside the data.

    >>> fewest(0.95, 0.95)
    59
    """
    return math.ceil(math.log(1 - confidence) / math.log(quantile))


def quantile_growth(
    base: Sequence[float],
    arm: Sequence[float],
    *,
    quantile: float,
    confidence: float,
    seed: int,
    resamples: int = RESAMPLES,
) -> Growth:
    """Return the growth of a quantile with a percentile bootstrap interval; the two arms are resampled independently.

    The k-th smallest of n values drawn with replacement is the value of rank ceil(n U), where U is the k-th smallest of n
    uniform numbers and thus Beta(k, n - k + 1): a resample costs one draw, whatever n.

    Raises:
        ValueError: an arm without values, or a value that is not finite and positive.
    """
    arms = [np.sort(np.asarray(values, dtype=np.float64)) for values in (base, arm)]
    if not all(a.ndim == 1 and a.size and np.isfinite(a).all() and a[0] > 0 for a in arms):
        raise ValueError("growth of a latency needs values of both arms, finite and above 0")
    random = np.random.default_rng(seed)
    ranks = [max(1, math.ceil(quantile * a.size)) for a in arms]
    drawn = []
    for a, k in zip(arms, ranks, strict=True):
        uniform = random.beta(k, a.size - k + 1, size=resamples)
        drawn.append(a[np.clip(np.ceil(uniform * a.size).astype(np.int64), 1, a.size) - 1])
    tail = (1 - confidence) / 2
    low, high = (float(q) for q in np.quantile(drawn[1] / drawn[0] - 1, (tail, 1 - tail)))
    before, after = (float(a[k - 1]) for a, k in zip(arms, ranks, strict=True))
    return Growth(before, after, after / before - 1, low, high, confidence)


def values_for(measured: Growth, values: int, limit: float) -> int | None:
    """Return how many values in each arm would put the interval at or below ``limit``, None where the growth itself is not.

    The interval's half width falls with the square root of the number; ``values`` is the smaller arm's.
    """
    room, half = limit - measured.growth, measured.high - measured.growth
    return math.ceil(values * (half / room) ** 2) if room > 0 else None
