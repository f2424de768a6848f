"""McNemar's exact test: do two arms differ at all? An alarm, which proves nothing while it is silent."""

from __future__ import annotations

import math


def mcnemar_exact(base_only: int, arm_only: int) -> float:
    """Return the two-sided exact p of "neither arm is better", given what only one of them has right.

    Under the hypothesis each discordant pair falls to either side with chance 1/2: twice the smaller binomial tail, 1 at most
    (McNemar, Psychometrika 12:153, 1947). Without a discordant pair p is 1.

    Raises:
        ValueError: a negative count.

    >>> mcnemar_exact(1, 9)
    0.021484375
    """
    if base_only < 0 or arm_only < 0:
        raise ValueError(f"McNemar's test of {base_only} and {arm_only} discordant pairs: expected no negative count")
    discordant, term, tail = base_only + arm_only, 1, 1
    for i in range(1, min(base_only, arm_only) + 1):
        term = term * (discordant - i + 1) // i  # binomial coefficients as exact integers, each from the one before
        tail += term
    return min(1.0, _ratio(2 * tail, discordant))


def _ratio(numerator: int, power: int) -> float:
    """``numerator / 2**power`` of integers that no float may hold; below the smallest float it is 0."""
    surplus = max(0, numerator.bit_length() - 64)
    return math.ldexp(numerator >> surplus, surplus - power)
