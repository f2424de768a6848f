"""McNemar's exact test: do two arms differ at all? An alarm, which proves nothing while it is silent."""

from __future__ import annotations

import math


def mcnemar_exact(base_only: int, arm_only: int) -> float:
    """Return the two-sided exact p of "neither arm is better", given what only one of them has right.

    Under the hypothesis each discordant pair falls to either side with chance 1/2: twice the smaller binomial tail, 1 at most
    (McNemar, Psychometrika 12:153, 1947). Without a discordant pair p is 1.

    Raises:
        ValueError: a negative count.

    >>> round(mcnemar_exact(1, 9), 6)
    0.021484
    """
    if base_only < 0 or arm_only < 0:
        raise ValueError(f"McNemar's test of {base_only} and {arm_only} discordant pairs: expected no negative count")
    fewer, discordant = min(base_only, arm_only), base_only + arm_only
    largest = math.lgamma(discordant + 1) - math.lgamma(fewer + 1) - math.lgamma(discordant - fewer + 1)
    term = terms = 1.0  # of the tail, in units of its largest term
    for i in range(fewer, 0, -1):
        term *= i / (discordant - i + 1)
        terms += term
        if term < 1e-17 * terms:
            break
    return min(1.0, 2.0 * terms * math.exp(largest - discordant * math.log(2.0)))
