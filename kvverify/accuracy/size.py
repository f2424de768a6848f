"""What a number of pairs can show, at the discordance that was seen.

Sizes are those of the score test, which decides: they reach the stated power. The textbook's, which published tables hold, is told
beside them. Scores between 0 and 1 are sized as if they were right or wrong with the same mean square, which is on the safe side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvverify.accuracy.difference import Claim, Estimate
from kvverify.stats.power import pairs_needed, pairs_needed_mean, power_of
from kvverify.stats.tango import least_pairs

NONE = -1  # no number of pairs does


@dataclass(frozen=True, slots=True)
class Size:
    """Numbers of pairs, design effect included; NONE where no number does.

    ``needed`` shows the margin if the arm is no worse, ``textbook`` is what tables say of that, ``needed_at_loss`` shows it if the
    difference seen is the true one, ``needed_to_differ`` shows that there is a difference as large. ``power_reached`` is the chance of
    these pairs if the arm is no worse.
    """

    needed: int
    textbook: int
    needed_at_loss: int
    needed_to_differ: int
    power_reached: float


def size_of(found: Estimate, pairs: int, claim: Claim, *, binary: bool) -> Size:
    """Return what ``pairs`` pairs with the spread ``found`` can show, and how many would show it."""
    loss, effect = found.difference, max(1.0, found.design_effect)
    spread = min(1.0, found.square)
    margin = claim.margin
    at_loss = NONE if loss <= -margin else _scaled(_noninferior(spread, min(0.0, loss), claim), effect)
    independent = max(1, round(pairs / effect))
    enough = pairs >= least_pairs(margin, claim.alpha)
    power = power_of(independent, margin, spread, alpha=claim.alpha) if enough and spread else float(enough)
    return Size(
        needed=_scaled(_noninferior(spread, 0.0, claim), effect),
        textbook=_scaled(_noninferior(spread, 0.0, claim, score=False), effect),
        needed_at_loss=at_loss,
        needed_to_differ=_differ(found, claim, effect, binary=binary),
        power_reached=power,
    )


def _noninferior(spread: float, loss: float, claim: Claim, *, score: bool = True) -> int:
    """Return the pairs that show the margin at a mean square ``spread`` and a true difference ``loss``."""
    if not spread:
        return least_pairs(claim.margin, claim.alpha)
    # a mean square below the mean is one of fractions, which nothing right or wrong has
    spread = max(spread, abs(loss))
    return pairs_needed(claim.margin, spread, alpha=claim.alpha, power=claim.power, true_difference=loss, score=score)


def _differ(found: Estimate, claim: Claim, effect: float, *, binary: bool) -> int:
    size, spread = abs(found.difference), min(1.0, found.square)
    if not 0 < size < 1:
        return NONE
    if binary and size <= spread:
        return _scaled(pairs_needed(size, spread, alpha=claim.alpha, power=claim.power, design="mcnemar"), effect)
    sd = math.sqrt(max(0.0, spread - size * size))
    if not sd:
        return NONE
    return _scaled(pairs_needed_mean(size, sd, alpha=claim.alpha, power=claim.power, design="mcnemar"), effect)


def _scaled(pairs: int, effect: float) -> int:
    return math.ceil(pairs * effect)
