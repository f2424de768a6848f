"""The standard normal distribution: its quantile, and its upper tail without cancellation."""

from __future__ import annotations

import math
from statistics import NormalDist

_NORMAL = NormalDist()


def quantile(probability: float) -> float:
    """Return z with P(Z <= z) = ``probability``.

    Raises:
        ValueError: a probability outside (0, 1).
    """
    if not 0 < probability < 1:
        raise ValueError(f"a normal quantile at {probability}: expected a probability between 0 and 1")
    return _NORMAL.inv_cdf(probability)


def upper_tail(z: float) -> float:
    """Return P(Z > z), also where it is tiny."""
    return 0.5 * math.erfc(z / math.sqrt(2.0))
