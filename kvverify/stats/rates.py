"""Intervals of a rate and of the difference of two rates; valid at 0 events too, where a bootstrap would see no spread at all."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

MOST_TRIALS = 10**8  # beyond, no number of trials is worth printing


class Interval(NamedTuple):
    """An estimate with its two-sided interval."""

    value: float
    low: float
    high: float


def wilson(events: int, trials: int, confidence: float = 0.95) -> Interval:
    """Return the rate of ``events`` in ``trials`` with its score interval (Wilson, JASA 22:209, 1927).

    Raises:
        ValueError: no trial, more events than trials, or a confidence outside (0, 1).
    """
    if not 0 <= events <= trials or trials < 1 or not 0 < confidence < 1:
        raise ValueError(f"{events} events in {trials} trials at a confidence of {confidence}")
    return _wilson(events / trials, trials, confidence)


def newcombe(base: tuple[int, int], arm: tuple[int, int], confidence: float = 0.95) -> Interval:
    """Return the rate of ``arm`` minus that of ``base`` with an interval; each is (events, trials).

    The hybrid score interval of unpaired rates (Newcombe, Stat Med 17:873, 1998, method 10). Of pairs that agree more often than
    chance it is wider than it need be.

    Raises:
        ValueError: as for :func:`wilson`.
    """
    return _difference(wilson(*base, confidence), wilson(*arm, confidence))


def trials_below(base_rate: float, arm_rate: float, limit: float, confidence: float = 0.95) -> int | None:
    """Return how many trials in each arm put the whole interval of the difference at or below ``limit``, were the rates these.

    None where the difference itself is not below the limit: no number of trials shows that.
    """
    if arm_rate - base_rate >= limit:
        return None

    def enough(trials: int) -> bool:
        ends = (_wilson(rate, trials, confidence) for rate in (base_rate, arm_rate))
        return _difference(*ends).high <= limit

    return smallest(enough)


def smallest(enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number that is enough, of a condition that stays true once it is; None beyond MOST_TRIALS."""
    high = 1
    while not enough(high):
        high *= 2
        if high > MOST_TRIALS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _wilson(rate: float, trials: float, confidence: float) -> Interval:
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    shrink = 1 + z * z / trials
    middle = (rate + z * z / (2 * trials)) / shrink
    half = z / shrink * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    # at the ends the limits are 0 and 1 exactly, which rounding misses
    return Interval(
        rate, 0.0 if rate == 0 else min(rate, middle - half), 1.0 if rate == 1 else max(rate, middle + half)
    )


def _difference(base: Interval, arm: Interval) -> Interval:
    value = arm.value - base.value
    low = value - math.hypot(arm.value - arm.low, base.high - base.value)
    high = value + math.hypot(arm.high - arm.value, base.value - base.low)
    return Interval(value, low, high)
