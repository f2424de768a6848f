"""Tango's score test of paired proportions: is the arm worse than the base by less than a margin?

Tango, Statistics in Medicine 17:891-908, 1998. ``base_only`` (b) counts pairs that base alone has right, ``arm_only`` (c) those that
the arm alone has right; all differences are arm - base, in parts of 1. The variance is the one under the hypothesis, hence pairs
without any difference do not count as certainty, as they do with Wald's interval.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.normal import quantile, upper_tail


def tango_z(base_only: int, arm_only: int, pairs: int, margin: float) -> float:
    """Return z of "the arm is worse by ``margin`` or more": above the quantile of 1 - alpha it is not.

    A margin of 0 gives McNemar's z; there, without a discordant pair, z is 0. A negative margin asks for a gain.

    Raises:
        ValueError: counts that no pairs can have, or a margin outside [-1, 1].

    >>> round(tango_z(17, 11, 1319, 0.01), 5)
    1.29412
    """
    check_counts(base_only, arm_only, pairs)
    if not -1 <= margin <= 1:
        raise ValueError(f"a margin of {margin}: expected parts of 1, from -1 to 1")
    return float(tango_scores(base_only, arm_only, pairs, margin))


def tango_p(base_only: int, arm_only: int, pairs: int, margin: float) -> float:
    """Return the one-sided p of "the arm is worse by ``margin`` or more"; errors as of tango_z."""
    return upper_tail(tango_z(base_only, arm_only, pairs, margin))


def tango_scores(base_only: npt.ArrayLike, arm_only: npt.ArrayLike, pairs: int, margin: float) -> npt.NDArray[Any]:
    """Return tango_z of arrays of counts, unchecked: shape of the counts, broadcast.

    z = (c - b + n delta) / sqrt(n * score_variance). A margin below 0 is the same test with the arms exchanged.
    """
    b, c = np.asarray(base_only, dtype=np.float64), np.asarray(arm_only, dtype=np.float64)
    sign = 1.0
    if margin < 0:
        b, c, margin, sign = c, b, -margin, -1.0
    excess = c - b + pairs * margin
    with np.errstate(divide="ignore", invalid="ignore"):
        z = sign * excess / np.sqrt(pairs * score_variance(b / pairs, c / pairs, margin))
    return np.where(excess == 0, 0.0, z)


def score_variance(base_only: npt.ArrayLike, arm_only: npt.ArrayLike, margin: float) -> npt.NDArray[Any]:
    """Return the variance of one pair's difference if the loss is ``margin``, from the shares b and c of pairs; margin in [0, 1].

    Under p10 = p01 + delta the likelihood of p01 = P(arm alone right) has its maximum at q = (m + sqrt(m**2 + 8 c delta (1 - delta))) / 4
    with m = b (1 + delta) + c (1 - delta) - 2 delta; the variance there is 2 q + delta (1 - delta).
    """
    b, c = np.asarray(base_only, dtype=np.float64), np.asarray(arm_only, dtype=np.float64)
    spread = margin * (1.0 - margin)
    m = b * (1.0 + margin) + c * (1.0 - margin) - 2.0 * margin
    root = np.sqrt(m * m + 8.0 * c * spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        # where m < 0 the sum cancels: the other form of the same root
        twice_q = np.where(m >= 0, (m + root) / 2.0, 4.0 * c * spread / (root - m))
    return twice_q + spread


def tango_interval(base_only: int, arm_only: int, pairs: int, confidence: float) -> tuple[float, float]:
    """Return the differences that a two-sided score test at ``confidence`` does not reject, low and high.

    With a confidence of 1 - 2 alpha, low > -margin if and only if tango_z at that margin exceeds the quantile of 1 - alpha.

    Raises:
        ValueError: counts that no pairs can have, or a confidence outside (0, 1).
    """
    check_counts(base_only, arm_only, pairs)
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}: expected a number between 0 and 1")
    z = quantile((1.0 + confidence) / 2.0)
    return _lowest(base_only, arm_only, pairs, z), -_lowest(arm_only, base_only, pairs, z)


def least_pairs(margin: float, alpha: float = 0.05) -> int:
    """Return the fewest pairs that pass the margin if not one of them differs: z**2 = n margin / (1 - margin).

    Raises:
        ValueError: a margin or alpha outside (0, 1).

    >>> least_pairs(0.01)
    268
    """
    if not 0 < margin < 1:
        raise ValueError(f"a margin of {margin}: expected parts of 1, between 0 and 1")
    return math.floor(quantile(1.0 - alpha) ** 2 * (1.0 - margin) / margin) + 1


def check_counts(base_only: int, arm_only: int, pairs: int) -> None:
    """Raise ValueError for counts that no pairs can have."""
    if pairs < 1 or base_only < 0 or arm_only < 0 or base_only + arm_only > pairs:
        raise ValueError(
            f"{base_only} and {arm_only} discordant of {pairs} pairs: expected one pair at least, and no more discordant than there are"
        )


def _lowest(base_only: int, arm_only: int, pairs: int, z: float) -> float:
    """Return the lowest difference that is not rejected; z falls from the estimate, where it is 0, to -1."""
    rejected, kept = -1.0, (arm_only - base_only) / pairs
    while True:
        middle = (rejected + kept) / 2.0
        if middle in (rejected, kept):
            return kept
        if float(tango_scores(base_only, arm_only, pairs, -middle)) > z:
            rejected = middle
        else:
            kept = middle
