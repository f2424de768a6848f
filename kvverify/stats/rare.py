"""What a number of trials without a single event says about the rate of the event."""

from __future__ import annotations


def excluded_rate(trials: int, confidence: float = 0.95) -> float | None:
    """Return the rate of an event that ``trials`` independent trials without one exclude, None of no trials.

    Exact: the rate at which no event at all has the chance ``1 - confidence``, ``1 - (1 - confidence) ** (1 / trials)``; at 95 %
    this is the rule of three, ``3 / trials``, for many trials (Hanley and Lippman-Hand, JAMA 249:1743, 1983).

    Raises:
        ValueError: a negative number of trials, or a confidence outside (0, 1).

    >>> round(excluded_rate(299), 4)
    0.01
    """
    if trials < 0 or not 0 < confidence < 1:
        raise ValueError(f"{trials} trials at a confidence of {confidence}: expected 0 or more, and between 0 and 1")
    return None if trials == 0 else 1.0 - (1.0 - confidence) ** (1.0 / trials)


def trials_for(rate: float, confidence: float = 0.95) -> int:
    """Return how many trials without an event exclude ``rate``.

    Raises:
        ValueError: a rate or a confidence outside (0, 1).

    >>> trials_for(0.001)
    2995
    """
    import math

    if not 0 < rate < 1 or not 0 < confidence < 1:
        raise ValueError(f"rate {rate} at a confidence of {confidence}: expected both between 0 and 1")
    return math.ceil(math.log(1.0 - confidence) / math.log(1.0 - rate))
