"""The score test of a mean of bounded differences: Tango's test, for scores between right and wrong.

A t interval takes its error from the differences it has seen. Where nearly all answers agree and the few losses have not come
up, it is too narrow: with 300 pairs of which 1 % lose everything it passes a margin of 1 point four times as often as it
may. Here the variance is that of the likeliest distribution on the values seen and the two extreme ones whose mean lies at the margin.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.design import Floats, contributions
from kvverify.stats.normal import quantile, upper_tail

STEPS = 60  # of a bisection: what is left is beyond the last bits


@dataclass(frozen=True, slots=True)
class Sample:
    """Distinct values, how often each comes, and the bound that none of them can pass on either side."""

    values: Floats
    counts: Floats
    bound: float

    @property
    def mean(self) -> float:
        """The mean of all values."""
        return float(self.values @ self.counts / self.counts.sum())

    def mirrored(self) -> Sample:
        """The same with the arms exchanged."""
        return Sample(-self.values, self.counts, self.bound)


def bounded_sample(
    differences: npt.ArrayLike,
    *,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
) -> Sample:
    """Arrange paired differences of scores in [0, 1] by cluster, scaled so that their mean is that of the strata's means.

    Raises:
        ValueError: no difference, one that is not finite or beyond [-1, 1], or labels of another number.
    """
    totals, weights = contributions(differences, strata=strata, clusters=clusters)
    largest = float(np.abs(np.asarray(differences, dtype=np.float64)).max())
    if largest > 1:
        raise ValueError(f"a paired difference of size {largest}: expected scores from 0 to 1")
    bound = totals.size * float(weights.max())
    values, counts = np.unique(np.clip(totals.size * totals, -bound, bound), return_counts=True)
    return Sample(values, counts.astype(np.float64), bound)


def bounded_z(sample: Sample, margin: float) -> float:
    """Return z of "the arm is worse by ``margin`` or more", as tango_z does, and equal to it for differences of -1, 0 and 1.

    Raises:
        ValueError: a margin outside [-1, 1].
    """
    if not -1 <= margin <= 1:
        raise ValueError(f"a margin of {margin}: expected parts of 1, from -1 to 1")
    above = sample.mean + margin
    if above == 0:
        return 0.0
    if above < 0:
        return -_z_above(sample.mirrored(), margin)
    return _z_above(sample, -margin)


def bounded_p(sample: Sample, margin: float) -> float:
    """Return the one-sided p of "the arm is worse by ``margin`` or more"; errors as of bounded_z."""
    return upper_tail(bounded_z(sample, margin))


def bounded_interval(sample: Sample, confidence: float) -> tuple[float, float]:
    """Return the mean differences that the two-sided score test at ``confidence`` does not reject, low and high.

    Raises:
        ValueError: a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}: expected a number between 0 and 1")
    z = quantile((1.0 + confidence) / 2.0)
    return _lowest(sample, z), -_lowest(sample.mirrored(), z)


def _lowest(sample: Sample, z: float) -> float:
    """Return the lowest mean that is not rejected; z falls from -1 to the mean seen, where it is 0."""
    from scipy.optimize import brentq

    mean, most = sample.mean, 10.0 * z
    if mean <= -1.0 or _z_above(sample, -1.0) <= z:
        return -1.0
    return float(brentq(lambda mu: min(_z_above(sample, mu), most) - z if mu < mean else -z, -1.0, mean, xtol=1e-13))


def _z_above(sample: Sample, mu: float) -> float:
    """Return z of a mean above the hypothetical ``mu``.

    The likeliest weights under the hypothesis are 1 / (n (1 + t (y - mu))), with t > 0 such that their mean is mu; where no t
    within its limit reaches down to mu, what is missing to 1 lies at the lower bound (empirical likelihood of a bounded mean:
    Honda and Takemura, COLT 2010; Owen, Biometrika 75:237, 1988).
    """
    total = float(sample.counts.sum())
    off = sample.values - mu
    if mu <= -sample.bound:
        return float("inf")
    limit = 1.0 / (sample.bound + mu)

    def still_above(t: float) -> bool:
        return float((sample.counts * off / (1.0 + t * off)).sum()) > 0

    t = _root(still_above, 0.0, limit)
    weights = sample.counts / (total * (1.0 + t * off))
    beyond = max(0.0, float(weights @ off))  # of what is missing to 1, times its distance: the mean must be mu
    variance = float(weights @ off**2) + beyond * (sample.bound + mu)
    return (sample.mean - mu) / float(np.sqrt(variance / total))


def _root(before: Callable[[float], bool], low: float, high: float) -> float:
    """Return where ``before`` ceases to hold between low and high, high itself where it holds throughout."""
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if before(middle) else (low, middle)
    return high
