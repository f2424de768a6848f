"""The paired bootstrap: both scores of an item stay together, strata keep their size, items that share a cluster come together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.design import Floats, design
from kvverify.stats.normal import quantile

DRAWS = 10_000
CHUNK = 2**20  # indices drawn at once, 2 to 8 bytes each


@dataclass(frozen=True, slots=True)
class Interval:
    """A bootstrap interval and what it was made of; ``clusters`` were resampled. None where ``undefined`` says why."""

    low: float | None
    high: float | None
    draws: int
    seed: int
    clusters: int
    undefined: str = ""


def paired_bootstrap(
    differences: npt.ArrayLike,
    *,
    strata: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    clusters: Sequence[Hashable] | npt.NDArray[Any] | None = None,
    draws: int = DRAWS,
    confidence: float,
    seed: int,
) -> Interval:
    """Return the BCa interval (Efron, JASA 82:171-185, 1987) of the mean of the strata's mean differences.

    Clusters (items, without clusters) are drawn with replacement within each stratum; strata that share clusters are drawn
    together. What a cluster adds to the mean is fixed, as if each stratum had as many items in every draw: exact where the
    clusters of a stratum have one size, else of first order. The generator is ours: the same seed gives the same interval.

    Raises:
        ValueError: no difference, one that is not finite, labels of another number, no draw, or a confidence outside (0, 1).
    """
    if draws < 1 or not 0 < confidence < 1:
        raise ValueError(
            f"{draws} draws at a confidence of {confidence}: expected one draw at least, and between 0 and 1"
        )
    arranged = design(differences, strata=strata, clusters=clusters)
    if arranged.undefined:
        return Interval(None, None, draws, seed, arranged.clusters, arranged.undefined)
    random = np.random.default_rng(seed)
    means = np.full(draws, arranged.mean)
    for component in arranged.components:
        means += _resampled_sums(component, draws, random)
    levels = _bca_levels(means, arranged.mean, arranged.components, confidence)
    low, high = (float(q) for q in np.quantile(means, levels))
    return Interval(low, high, draws, seed, arranged.clusters)


def _resampled_sums(influence: Floats, draws: int, random: np.random.Generator) -> Floats:
    """Return ``draws`` sums of as many of the values as there are, drawn with replacement."""
    if not influence.any():
        return np.zeros(draws)
    size = influence.size
    dtype = np.uint16 if size <= 2**16 else np.int64
    rows = max(1, CHUNK // size)
    sums = np.empty(draws)
    for start in range(0, draws, rows):
        stop = min(draws, start + rows)
        sums[start:stop] = influence[random.integers(0, size, (stop - start, size), dtype=dtype)].sum(axis=1)
    return sums


def _bca_levels(means: Floats, estimate: float, components: list[Floats], confidence: float) -> tuple[float, float]:
    """Return the two levels at which the quantiles of the drawn means are taken, corrected for bias and skewness.

    The bias counts draws that equal the estimate as half below it: means of few discordant pairs are a coarse lattice. The
    acceleration is that of several samples, sum U**3 / (6 (sum U**2)**1.5) over the influences U.
    """
    # sums of the same terms in another order differ in the last bits, and are ties
    off = means - estimate
    tie = 1e-9 * float(np.abs(off).max())
    below = (np.count_nonzero(off < -tie) + np.count_nonzero(off <= tie)) / (2 * off.size)
    squares = math.fsum(float(part @ part) for part in components)
    if not squares or not 0 < below < 1:
        return (1 - confidence) / 2, (1 + confidence) / 2
    bias = quantile(below)
    acceleration = math.fsum(float((part**3).sum()) for part in components) / (6 * squares**1.5)
    levels = []
    for level in ((1 - confidence) / 2, (1 + confidence) / 2):
        shifted = bias + quantile(level)
        levels.append(0.5 * math.erfc(-(bias + shifted / (1 - acceleration * shifted)) / math.sqrt(2)))
    return levels[0], levels[1]
