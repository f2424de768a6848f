"""The power of the tests of paired proportions, by summing the probability of every pair of counts that passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvverify.stats.normal import quantile
from kvverify.stats.tango import tango_scores

LEFT_OUT = 1e-12  # probability of counts beyond those looked at, at each end of either count


def exact_power(
    pairs: int, margin: float, discordance: float, *, difference: float, alpha: float, design: str
) -> float:
    """Return the chance that the counts b and c of ``pairs`` trinomial pairs pass: all in parts of 1, difference arm - base."""
    from scipy.stats import binom

    worse, better = (discordance - difference) / 2, (discordance + difference) / 2
    b = _likely(pairs, worse)[:, None]
    c = _likely(pairs, better)[None, :]
    # b of all pairs, then c of the pairs left
    rest = np.maximum(pairs - b, 0)
    chance = binom.pmf(b, pairs, worse) * binom.pmf(c, rest, min(1.0, better / (1 - worse)) if worse < 1 else 0.0)
    return float(chance[_passes(b, c, pairs, margin=margin, alpha=alpha, design=design)].sum())


def _passes(
    b: npt.NDArray[Any], c: npt.NDArray[Any], pairs: int, *, margin: float, alpha: float, design: str
) -> npt.NDArray[np.bool_]:
    if design == "mcnemar":
        from scipy.stats import binom

        passes: npt.NDArray[np.bool_] = 2 * binom.cdf(np.minimum(b, c), b + c, 0.5) <= alpha
        return passes
    z = quantile(1 - alpha)
    not_worse: npt.NDArray[np.bool_] = tango_scores(b, c, pairs, margin) > z
    return not_worse if design == "non-inferiority" else not_worse & (tango_scores(c, b, pairs, margin) > z)


def _likely(pairs: int, rate: float) -> npt.NDArray[np.int64]:
    """Return the counts that Bin(pairs, rate) takes, but for LEFT_OUT at either end."""
    from scipy.stats import binom

    low, high = binom.ppf(LEFT_OUT, pairs, rate), binom.isf(LEFT_OUT, pairs, rate)
    return np.arange(max(0, int(low)), min(pairs, int(high)) + 1)
