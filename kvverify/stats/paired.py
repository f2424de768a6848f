"""The mean of paired differences, with standard errors that know of strata and of clusters."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from kvverify.stats.design import Floats, design


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean difference arm - base, its standard error, and its t interval [low, high] with ``df`` degrees of freedom.

    ``clusters`` counts what varies independently (items, where none share anything), ``design_effect`` is (SE / SE without
    clusters)**2: it divides the number of items. Where ``undefined`` says why, se, low, high and df are None.
    """

    mean: float
    se: float | None
    low: float | None
    high: float | None
    df: float | None
    clusters: int
    design_effect: float
    undefined: str = ""


def paired_mean(
    differences: npt.ArrayLike,
    confidence: float,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
) -> Mean:
    """Return the mean of the strata's mean differences with its t interval.

    SE**2 is the sum over independent parts of G / (G - 1) * (sum of squares of what each of the G clusters adds to the mean). For one
    stratum that is the clustered SE of Miller (arXiv 2411.00640), sqrt(G / (G - 1) * sum_g (sum_{i in g} D_i - mean)**2) / n with
    G - 1 degrees of freedom, and for clusters of one item the paired t interval; for several, Welch-Satterthwaite degrees of freedom.

    Raises:
        ValueError: no difference, one that is not finite, labels of another number, or a confidence outside (0, 1).
    """
    if not 0 < confidence < 1:
        raise ValueError(f"a confidence of {confidence}: expected a number between 0 and 1")
    arranged = design(differences, strata=strata, clusters=clusters)
    if arranged.undefined:
        return Mean(arranged.mean, None, None, None, None, arranged.clusters, 1.0, arranged.undefined)
    variance, df = _variance(arranged.components)
    naive, _ = (variance, df) if clusters is None else _variance(design(differences, strata=strata).components)
    se = math.sqrt(variance)
    half = t_quantile((1.0 + confidence) / 2.0, df) * se
    effect = variance / naive if naive else 1.0
    return Mean(arranged.mean, se, arranged.mean - half, arranged.mean + half, df, arranged.clusters, effect)


def noninferior_p(mean: Mean, margin: float) -> float | None:
    """Return the one-sided p of "the arm is worse by ``margin`` or more", None where the error of the mean is undefined.

    Below alpha if and only if the interval at 1 - 2 alpha lies above -margin.
    """
    if mean.se is None or mean.df is None:
        return None
    above = mean.mean + margin
    if mean.se == 0:
        return 0.0 if above > 0 else 1.0
    from scipy.stats import t

    return float(t.sf(above / mean.se, mean.df))


def t_quantile(probability: float, df: float) -> float:
    """Return the quantile of Student's t distribution."""
    from scipy.stats import t

    return float(t.ppf(probability, df))


def _variance(components: list[Floats]) -> tuple[float, float]:
    """Return the variance of the mean and its degrees of freedom (Welch, Biometrika 34:28-35, 1947)."""
    parts = [part.size / (part.size - 1) * float(part @ part) for part in components]
    freedom = [part.size - 1 for part in components]
    total = math.fsum(parts)
    if not total:
        return 0.0, float(sum(freedom))
    return total, 1.0 / math.fsum((part / total) ** 2 / df for part, df in zip(parts, freedom, strict=True))
