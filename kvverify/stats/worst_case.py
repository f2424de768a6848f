"""What pairs that are missing could have been: the two ends between which the counts of all planned pairs lie."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kvverify.stats.tango import check_counts


class Counts(NamedTuple):
    """Paired counts, in the order in which the tests take them."""

    base_only: int
    arm_only: int
    pairs: int


def worst_case(base_only: int, arm_only: int, pairs: int, missing: int) -> Counts:
    """Return the counts if the base has all missing pairs right and the arm has them wrong: what a pass must stand.

    ``pairs`` are those of which both scores are known, ``missing`` the others that were planned.

    Raises:
        ValueError: counts that no pairs can have, or a negative number missing.
    """
    _check(base_only, arm_only, pairs, missing)
    return Counts(base_only + missing, arm_only, pairs + missing)


def best_case(base_only: int, arm_only: int, pairs: int, missing: int) -> Counts:
    """Return the counts if the arm alone has all missing pairs right: what a finding of harm must stand.

    Raises:
        ValueError: counts that no pairs can have, or a negative number missing.
    """
    _check(base_only, arm_only, pairs, missing)
    return Counts(base_only, arm_only + missing, pairs + missing)


def worst_differences(differences: npt.ArrayLike, missing: int) -> npt.NDArray[np.float64]:
    """Return the paired differences of scores in [0, 1] with -1, the largest loss, for each missing pair."""
    if missing < 0:
        raise ValueError(f"{missing} missing pairs: expected 0 or more")
    return np.concatenate([np.asarray(differences, dtype=np.float64), np.full(missing, -1.0)])


def _check(base_only: int, arm_only: int, pairs: int, missing: int) -> None:
    if missing < 0:
        raise ValueError(f"{missing} missing pairs: expected 0 or more")
    if pairs or base_only or arm_only or not missing:  # none at all is a case too, if some were planned
        check_counts(base_only, arm_only, pairs)
