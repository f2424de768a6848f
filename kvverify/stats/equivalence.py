"""Two one-sided tests: the arm is neither worse nor better than the base by a margin (Schuirmann, J Pharmacokin Biopharm 15:657, 1987)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from kvverify.stats.paired import Mean, noninferior_p
from kvverify.stats.tango import tango_p


@dataclass(frozen=True, slots=True)
class Equivalence:
    """p of "worse by the margin or more" and of "better by the margin or more"; ``p``, the larger, is that of the whole test.

    Below alpha if and only if the interval at 1 - 2 alpha lies inside (-margin, margin).
    """

    p_worse: float
    p_better: float

    @property
    def p(self) -> float:
        """The p of "the arms differ by the margin or more"."""
        return max(self.p_worse, self.p_better)


def equivalence(base_only: int, arm_only: int, pairs: int, margin: float) -> Equivalence:
    """Return both of Tango's tests of right-or-wrong scores.

    Raises:
        ValueError: counts that no pairs can have, or a margin outside [-1, 1].
    """
    return Equivalence(tango_p(base_only, arm_only, pairs, margin), tango_p(arm_only, base_only, pairs, margin))


def equivalence_mean(mean: Mean, margin: float) -> Equivalence | None:
    """Return both t tests of a mean of fractional scores, None where the error of the mean is undefined."""
    worse, better = noninferior_p(mean, margin), noninferior_p(replace(mean, mean=-mean.mean), margin)
    return None if worse is None or better is None else Equivalence(worse, better)
