"""Two one-sided tests: an interval inside the margin, for counts and for means."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvverify.stats.equivalence import equivalence, equivalence_mean
from kvverify.stats.paired import paired_mean
from kvverify.stats.tango import tango_interval, tango_p, tango_scores

pytest.importorskip("scipy")


@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 3000), st.floats(0.002, 0.2), st.floats(0.01, 0.2))
def test_it_holds_if_and_only_if_the_interval_lies_inside(
    b: int, c: int, same: int, margin: float, alpha: float
) -> None:
    pairs = b + c + same
    low, high = tango_interval(b, c, pairs, 1 - 2 * alpha)
    assume(min(abs(low + margin), abs(high - margin)) > 1e-9)
    found = equivalence(b, c, pairs, margin)
    assert (found.p < alpha) == (-margin < low and high < margin)
    assert found.p == max(tango_p(b, c, pairs, margin), tango_p(c, b, pairs, margin))


@given(st.lists(st.floats(-1, 1), min_size=3, max_size=40), st.floats(0.01, 1), st.floats(0.01, 0.2))
def test_the_same_of_means(differences: list[float], margin: float, alpha: float) -> None:
    mean = paired_mean(differences, 1 - 2 * alpha)
    assert mean.low is not None
    assert mean.high is not None
    assume(min(abs(mean.low + margin), abs(mean.high - margin)) > 1e-9)
    found = equivalence_mean(mean, margin)
    assert found is not None
    assert (found.p < alpha) == (-margin < mean.low and mean.high < margin)


def test_an_undefined_error_gives_no_test() -> None:
    assert equivalence_mean(paired_mean([0.1], 0.9), 0.5) is None


@pytest.mark.parametrize("difference", [-0.01, 0.01])
def test_type_1_error_at_either_margin(difference: float) -> None:
    random, pairs, psi = np.random.default_rng(1), 6500, 0.03
    b, c, _ = random.multinomial(pairs, [(psi - difference) / 2, (psi + difference) / 2, 1 - psi], size=20_000).T
    bar = 1.6448536
    both = (tango_scores(b, c, pairs, 0.01) > bar) & (tango_scores(c, b, pairs, 0.01) > bar)
    assert 0.03 < float(both.mean()) < 0.06
