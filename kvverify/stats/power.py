"""How many pairs a claim needs, what a number of pairs can show, and the smallest margin that it can.

Margins, discordance (psi, the share of pairs of which one arm alone is right) and differences (arm - base) are in parts of 1.
Numbers of pairs are for independent ones: multiply them by the design effect of clusters.

The textbook sizes take the variance of the differences as they are. Tango's test takes the variance at the margin, which is larger where few
pairs differ: at a margin of 1 point and psi = 1 % the textbook's 619 pairs reach a power of 67 % and not 80 %. ``score=True``
gives the sizes of the test itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

from kvverify.stats.normal import quantile, upper_tail
from kvverify.stats.tango import least_pairs, score_variance

Design = Literal["non-inferiority", "tost", "mcnemar"]
MOST_EXACT = 10_000  # discordant pairs expected: beyond, the sum takes minutes and differs from the approximation in the third digit
DESIGNS: tuple[Design, ...] = ("non-inferiority", "tost", "mcnemar")


def pairs_needed(
    margin: float,
    discordance: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    design: Design = "non-inferiority",
    true_difference: float = 0.0,
    floor: bool = True,
    score: bool = False,
) -> int:
    """Return the fewest pairs with which the design succeeds with probability ``power``, by the normal approximation.

    Non-inferiority, one-sided alpha: (z_(1-alpha) s0 + z_(power) s)**2 / (margin + d)**2 with s**2 = psi - d**2. The textbook has s0 = s;
    with ``score`` s0**2 is what Tango's test takes for the variance (Nam, Biometrics 53:1422-1430, 1997). Two one-sided tests: both
    at alpha. McNemar, two-sided alpha, detects a true difference of ``margin`` (Connor, Biometrics 43:207-211, 1987). With ``floor``
    never fewer than Tango's test passes with no discordant pair.

    Raises:
        ValueError: a probability outside (0, 1), a discordance that cannot hold the difference, or a true difference at or
            beyond the margin.
    """
    _check(margin, alpha, power)
    d = margin if design == "mcnemar" else true_difference
    spread = _spread(discordance, d)
    if design == "mcnemar":
        root = quantile(1 - alpha / 2) * math.sqrt(discordance) + quantile(power) * math.sqrt(spread)
        return _ceil((root / margin) ** 2)
    _check_difference(margin, d, design)
    sds = _score_sds(margin, discordance, d) if score else _same_sds(math.sqrt(spread))
    needed = _needed(sds, margin=margin, d=d, alpha=alpha, power=power, design=design)
    return max(needed, least_pairs(margin, alpha)) if floor else needed


def pairs_needed_mean(
    margin: float,
    sd: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    design: Design = "non-inferiority",
    true_difference: float = 0.0,
) -> int:
    """Return the fewest pairs for fractional scores whose paired differences have the standard deviation ``sd``.

    The textbook's formulas with sd**2 for psi - d**2; "mcnemar" stands for a two-sided t test that detects ``margin``.

    Raises:
        ValueError: a probability outside (0, 1), a standard deviation that is not positive, or a true difference at or beyond the margin.
    """
    _check(margin, alpha, power)
    if not 0 < sd < math.inf:
        raise ValueError(f"a standard deviation of {sd}: expected a positive number")
    if design == "mcnemar":
        return _ceil(((quantile(1 - alpha / 2) + quantile(power)) * sd / margin) ** 2)
    _check_difference(margin, true_difference, design)
    return _needed(_same_sds(sd), margin=margin, d=true_difference, alpha=alpha, power=power, design=design)


def pairs_needed_unpaired(margin: float, accuracy: float, *, alpha: float = 0.05, power: float = 0.8) -> int:
    """Return the samples in each arm that non-inferiority needs where the arms answer different prompts: what pairing saves.

    2 p (1 - p) (z_(1-alpha) + z_(power))**2 / margin**2 for two arms of the accuracy p.

    Raises:
        ValueError: a probability outside (0, 1).
    """
    _check(margin, alpha, power)
    return _ceil(2 * _spread(accuracy, accuracy) * ((quantile(1 - alpha) + quantile(power)) / margin) ** 2)


def power_of(
    pairs: int,
    margin: float,
    discordance: float,
    *,
    alpha: float = 0.05,
    design: Design = "non-inferiority",
    true_difference: float = 0.0,
    exact: bool = True,
) -> float:
    """Return the probability that the design succeeds with so many pairs.

    ``exact`` sums the probability of all counts that pass Tango's (McNemar's exact) test, and with more than MOST_EXACT discordant pairs
    takes the normal approximation of that test; else the textbook's approximation, without the floor. For "mcnemar" success is any significant difference, at the ``true_difference`` (-margin, where that is 0).

    Raises:
        ValueError: as for pairs_needed, or fewer pairs than one.
    """
    _check(margin, alpha, 0.5)
    if pairs < 1:
        raise ValueError(f"the power of {pairs} pairs: expected one at least")
    d = true_difference or (-margin if design == "mcnemar" else 0.0)
    spread = _spread(discordance, d)
    if exact and pairs * discordance <= MOST_EXACT:
        from kvverify.stats.exact_power import exact_power

        return exact_power(pairs, margin, discordance, difference=d, alpha=alpha, design=design)
    if design == "mcnemar":
        return _mcnemar_power(pairs, discordance, d, alpha)
    sds = _score_sds(margin, discordance, d) if exact else _same_sds(math.sqrt(spread))
    return _power(pairs, sds, margin=margin, d=d, alpha=alpha, design=design)


def smallest_margin(
    pairs: int,
    discordance: float,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    true_difference: float = 0.0,
    floor: bool = True,
    score: bool = False,
) -> float:
    """Return the smallest margin for which so many pairs show non-inferiority with probability ``power``; 1 where none does.

    (z_(1-alpha) + z_(power)) sqrt((psi - d**2) / n) - d; with ``floor`` no smaller than what Tango's test passes with no discordant
    pair. With ``score`` the margin at which Tango's test itself has that power, by search.

    Raises:
        ValueError: a probability outside (0, 1), fewer pairs than one, or a discordance that cannot hold the difference.
    """
    if pairs < 1:
        raise ValueError(f"the margin of {pairs} pairs: expected one at least")
    _check(0.5, alpha, power)
    if score:
        return _smallest_by_score(pairs, discordance, true_difference, alpha, power)
    z = quantile(1 - alpha)
    margin = (z + quantile(power)) * math.sqrt(_spread(discordance, true_difference) / pairs) - true_difference
    return max(margin, z * z / (pairs + z * z)) if floor else margin


class _Sds(NamedTuple):
    """Standard deviations of a paired difference: the true one, and what the tests take, at a loss and at a gain of the margin."""

    true: float
    at_loss: float
    at_gain: float


def _same_sds(sd: float) -> _Sds:
    return _Sds(sd, sd, sd)


def _score_sds(margin: float, discordance: float, d: float) -> _Sds:
    """Return what Tango's variances come to with many pairs."""
    worse, better = (discordance - d) / 2, (discordance + d) / 2
    at_loss, at_gain = (math.sqrt(float(score_variance(*ways, margin))) for ways in ((worse, better), (better, worse)))
    return _Sds(math.sqrt(_spread(discordance, d)), at_loss, at_gain)


def _needed(sds: _Sds, *, margin: float, d: float, alpha: float, power: float, design: Design) -> int:
    """Non-inferiority in closed form; two one-sided tests by search, as there both tails of the mean count."""
    if design == "non-inferiority":
        return _ceil(((quantile(1 - alpha) * sds.at_loss + quantile(power) * sds.true) / (margin + d)) ** 2)
    return _fewest(lambda n: _power(n, sds, margin=margin, d=d, alpha=alpha, design=design) >= power)


def _power(pairs: int, sds: _Sds, *, margin: float, d: float, alpha: float, design: Design) -> float:
    z, root = quantile(1 - alpha), math.sqrt(pairs)

    def passes(sd: float, distance: float) -> float:
        over = root * distance - z * sd
        return upper_tail(-over / sds.true) if sds.true else float(over > 0)

    not_worse = passes(sds.at_loss, margin + d)
    if design == "non-inferiority":
        return not_worse
    return max(0.0, not_worse + passes(sds.at_gain, margin - d) - 1.0)


def _smallest_by_score(pairs: int, discordance: float, d: float, alpha: float, power: float) -> float:
    low, high = max(0.0, -d), 1.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        sds = _score_sds(middle, discordance, d)
        reached = _power(pairs, sds, margin=middle, d=d, alpha=alpha, design="non-inferiority")
        low, high = (low, middle) if reached >= power else (middle, high)
    return high


def _mcnemar_power(pairs: int, discordance: float, d: float, alpha: float) -> float:
    """Both sides of Connor's approximation, turned round."""
    spread = math.sqrt(_spread(discordance, d))
    bar = quantile(1 - alpha / 2) * math.sqrt(discordance)
    if spread == 0:
        return float(abs(d) * math.sqrt(pairs) > bar)
    return sum(upper_tail((bar - side * d * math.sqrt(pairs)) / spread) for side in (1, -1))


def _fewest(enough: Callable[[int], bool]) -> int:
    """Return the smallest number for which ``enough`` holds, given that it holds for all larger ones."""
    high = 1
    while not enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _ceil(pairs: float) -> int:
    """Round up, but not for the last bits of a product."""
    return max(1, math.ceil(pairs * (1 - 1e-12)))


def _spread(discordance: float, d: float) -> float:
    """Return the variance of one paired difference, psi - d**2."""
    if not 0 <= discordance <= 1 or abs(d) > discordance:
        raise ValueError(
            f"a discordance of {discordance} at a true difference of {d}: expected a share of the pairs, no smaller than the difference"
        )
    return discordance - d * d


def _check(margin: float, alpha: float, power: float) -> None:
    for name, value in (("a margin", margin), ("an alpha", alpha), ("a power", power)):
        if not 0 < value < 1:
            raise ValueError(f"{name} of {value}: expected parts of 1, between 0 and 1")


def _check_difference(margin: float, d: float, design: Design) -> None:
    if d <= -margin or (design == "tost" and d >= margin):
        raise ValueError(f"a true difference of {d} at a margin of {margin}: no number of pairs shows what is not so")
