"""Missing pairs: no outcome of theirs lies beyond the two ends."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.tango import least_pairs, tango_z
from kvverify.stats.worst_case import best_case, worst_case, worst_differences


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 300), st.integers(0, 20), st.data())
def test_whatever_the_missing_were_the_score_lies_between(
    b: int, c: int, same: int, missing: int, data: st.DataObject
) -> None:
    pairs = b + c + same
    if pairs + missing == 0:
        return
    lost = data.draw(st.integers(0, missing))
    won = data.draw(st.integers(0, missing - lost))
    actual = tango_z(b + lost, c + won, pairs + missing, 0.01)
    if pairs or missing:
        worst, best = worst_case(b, c, pairs, missing), best_case(b, c, pairs, missing)
        assert tango_z(*worst, 0.01) - 1e-9 <= actual <= tango_z(*best, 0.01) + 1e-9


def test_three_missing_of_the_fewest_that_pass_undo_the_pass() -> None:
    pairs = least_pairs(0.01)
    assert tango_z(0, 0, pairs, 0.01) > 1.6449
    assert tango_z(*worst_case(0, 0, pairs, 3), 0.01) < 0


def test_all_missing_is_a_case_too() -> None:
    assert worst_case(0, 0, 0, 5) == (5, 0, 5)
    assert best_case(0, 0, 0, 5) == (0, 5, 5)


def test_missing_scores_are_the_largest_losses() -> None:
    assert worst_differences([0.5, 0.0], 2).tolist() == [0.5, 0.0, -1.0, -1.0]
    assert np.mean(worst_differences([0.0] * 8, 2)) == pytest.approx(-0.2)


def test_impossible_numbers() -> None:
    with pytest.raises(ValueError, match="-1 missing pairs: expected 0 or more"):
        worst_case(0, 0, 5, -1)
    with pytest.raises(ValueError, match="-1 missing pairs: expected 0 or more"):
        worst_differences([0.0], -1)
    with pytest.raises(ValueError, match="6 and 0 discordant of 5 pairs"):
        best_case(6, 0, 5, 1)
    with pytest.raises(ValueError, match="0 and 0 discordant of 0 pairs"):
        worst_case(0, 0, 0, 0)
