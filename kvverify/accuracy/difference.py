"""The paired difference of two arms over some pairs: its interval, and the test of the margin.

The scores alone say which method makes the interval. Right or wrong, pairs that share nothing, as many in every task and length:
Tango's score test of the counts. Else the mean of the strata's means, for which two intervals are made, the clustered t interval and the
bounded score interval, and the wider end of both is taken: t is too short where few pairs differ, the score test where clusters are few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvverify.accuracy.pairing import Pair
from kvverify.stats.bootstrap import DRAWS, paired_bootstrap
from kvverify.stats.bounded import bounded_interval, bounded_sample, bounded_z
from kvverify.stats.design import contributions, design
from kvverify.stats.mcnemar import mcnemar_exact
from kvverify.stats.normal import quantile, upper_tail
from kvverify.stats.paired import noninferior_p, paired_mean
from kvverify.stats.tango import tango_interval, tango_p, tango_z

TANGO, CLUSTERED_T = "tango", "clustered-t"
MORE_CLUSTERS = (
    'take more of them (RULER\'s essay tasks: offsets = "random"), or claim for this one alone with --fixed-documents'
)
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is tested: a loss of less than ``margin`` (parts of 1), one-sided at ``alpha``; ``power`` is what sizes are told for."""

    margin: float
    alpha: float
    power: float = 0.8
    draws: int = DRAWS
    seed: int = 0

    @property
    def confidence(self) -> float:
        """Confidence of the two-sided interval that is the same test."""
        return 1.0 - 2.0 * self.alpha


@dataclass(frozen=True, slots=True)
class Estimate:
    """An interval of the difference, parts of 1, and the test of the margin; ``undefined`` says why there is none.

    ``square`` is the mean square of the differences: the discordance, where scores are 0 or 1. ``smallest_margin`` is what could be shown if
    nothing differed: the more a single cluster weighs, the more may be hidden in those that were not asked.
    """

    difference: float
    square: float
    low: float
    high: float
    method: str
    z: float
    p_noninferior: float
    p_different: float
    clusters: int
    design_effect: float
    undefined: str = ""
    smallest_margin: float = 1.0


@dataclass(frozen=True, slots=True)
class Table:
    """Differences arm - base in [-1, 1], shape (n,), with stratum and cluster of each."""

    values: Floats
    strata: Sequence[str]
    clusters: Sequence[str]
    binary: bool

    @property
    def lost(self) -> int:
        """Pairs in which the arm scores less (b, of right and wrong)."""
        return int(np.count_nonzero(self.values < 0))

    @property
    def gained(self) -> int:
        """Pairs in which the arm scores more (c)."""
        return int(np.count_nonzero(self.values > 0))

    @property
    def shared(self) -> Sequence[str] | None:
        """The clusters, None where no two pairs share one."""
        return self.clusters if len(set(self.clusters)) < self.values.size else None

    @property
    def even(self) -> bool:
        """Are there as many pairs in every stratum, so that the mean of all is the mean of the strata's means?"""
        return len(set(Counter(self.strata).values())) == 1


def table(pairs: Sequence[Pair], values: Sequence[float]) -> Table:
    """Return the table of some pairs with a difference for each."""
    binary = all(p.binary for p in pairs)
    return Table(np.array(values, dtype=np.float64), [p.cell for p in pairs], [p.cluster for p in pairs], binary)


def strata_mean(values: Sequence[float] | Floats, strata: Sequence[str]) -> float:
    """Return the mean of the strata's means."""
    return design(values, strata=strata).mean


def estimate(data: Table, claim: Claim) -> Estimate:
    """Return the interval of the mean difference by the method that suits the scores."""
    if len(set(data.clusters)) < 2:
        if data.values.size == 1:
            return _undefined(data, "one pair: how much pairs vary cannot be seen in one")
        only = f"all pairs share one cluster, {data.clusters[0]}: how much clusters vary cannot be seen in one"
        return _undefined(data, f"{only}; {MORE_CLUSTERS}")
    if data.binary and data.shared is None and data.even:
        return _of_counts(data, claim)
    arranged = design(data.values, strata=data.strata, clusters=data.shared)
    if arranged.undefined:
        hint = f"; {MORE_CLUSTERS}" if arranged.unit == "cluster" else ""
        return _undefined(data, arranged.undefined + hint)
    return _of_means(data, claim)


def bootstrap(data: Table, claim: Claim) -> tuple[float, float] | None:
    """Return the stratified, clustered bootstrap interval of the mean difference; None where it is undefined."""
    found = paired_bootstrap(
        data.values,
        strata=data.strata,
        clusters=data.shared,
        draws=claim.draws,
        confidence=claim.confidence,
        seed=claim.seed,
    )
    return None if found.low is None or found.high is None else (found.low, found.high)


def _of_counts(data: Table, claim: Claim) -> Estimate:
    b, c, n = data.lost, data.gained, data.values.size
    low, high = tango_interval(b, c, n, claim.confidence)
    z, p = tango_z(b, c, n, claim.margin), tango_p(b, c, n, claim.margin)
    floor = _smallest_margin(n, 1 / n, claim)
    return Estimate(
        (c - b) / n, (b + c) / n, low, high, TANGO, z, p, mcnemar_exact(b, c), n, 1.0, smallest_margin=floor
    )


def _of_means(data: Table, claim: Claim) -> Estimate:
    mean = paired_mean(data.values, claim.confidence, clusters=data.shared, strata=data.strata)
    p = noninferior_p(mean, claim.margin)
    assert mean.low is not None
    assert mean.high is not None
    assert p is not None
    scores = bounded_sample(data.values, strata=data.strata, clusters=data.shared)
    low, high = bounded_interval(scores, claim.confidence)
    p = max(p, upper_tail(bounded_z(scores, claim.margin)))
    return Estimate(
        mean.mean,
        strata_mean(data.values**2, data.strata),
        max(-1.0, min(low, mean.low)),
        min(1.0, max(high, mean.high)),
        CLUSTERED_T,
        _z_of(p),
        p,
        mcnemar_exact(data.lost, data.gained) if data.binary else _two_sided(mean.mean, mean.se, mean.df),
        mean.clusters,
        mean.design_effect,
        smallest_margin=_smallest_margin(mean.clusters, _heaviest(data), claim),
    )


def _heaviest(data: Table) -> float:
    """Return the weight in the mean of the cluster that has most."""
    _, weights = contributions(data.values, strata=data.strata, clusters=data.shared)
    return float(weights.max())


def _smallest_margin(clusters: int, heaviest: float, claim: Claim) -> float:
    """Return the margin that the score test of a bounded mean just shows where no pair differs.

    z**2 b / (G + z**2) with G clusters and the bound b = G times the weight of the heaviest; 1 where all weigh the same.
    """
    z = quantile(1.0 - claim.alpha)
    return min(1.0, z * z * clusters * heaviest / (clusters + z * z))


def _z_of(p: float) -> float:
    """Return the normal z with the upper tail ``p``, kept within what a float holds."""
    return -quantile(min(max(p, 1e-300), 1 - 1e-15))


def _two_sided(mean: float, se: float | None, df: float | None) -> float:
    if not se or df is None:
        return 0.0 if mean else 1.0
    from scipy.stats import t

    return float(2 * t.sf(abs(mean) / se, df))


def _undefined(data: Table, why: str) -> Estimate:
    p = mcnemar_exact(data.lost, data.gained) if data.binary else 1.0
    mean, square = strata_mean(data.values, data.strata), strata_mean(data.values**2, data.strata)
    return Estimate(mean, square, -1.0, 1.0, "", 0.0, 1.0, p, len(set(data.clusters)), 1.0, why)
