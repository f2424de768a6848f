"""Rates: published values, intervals that cover what they say, and a needed number that is the smallest that is enough."""

from __future__ import annotations

import math
import random
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.rates import newcombe, smallest, trials_below, wilson


def test_published_values() -> None:
    """Newcombe's contrast (a) 56/70 - 48/80 by method 10, Stat Med 17:873, table II; Wilson's 81/263 and 0/20 from 17:857, table I."""
    assert [round(v, 4) for v in newcombe((48, 80), (56, 70))] == [0.2, 0.0524, 0.3339]
    assert [round(v, 4) for v in wilson(81, 263)[1:]] == [0.2553, 0.3662]
    assert [round(v, 4) for v in wilson(0, 20)[1:]] == [0.0, 0.1611]


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_an_interval_holds_its_value(counts: tuple[int, int], confidence: float) -> None:
    value, low, high = wilson(*counts, confidence)
    assert 0 <= low <= value <= high <= 1
    assert high > low


@given(st.integers(1, 5000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), st.floats(0.5, 0.999))
def test_the_limits_are_the_rates_that_the_score_test_just_keeps(counts: tuple[int, int], confidence: float) -> None:
    rate, low, high = wilson(*counts, confidence)
    for limit in {low, high} - {0.0, 1.0}:
        z = abs(rate - limit) / math.sqrt(limit * (1 - limit) / counts[1])
        assert z == pytest.approx(NormalDist().inv_cdf((1 + confidence) / 2), rel=1e-6)


@given(st.floats(0, 0.2), st.floats(-0.05, 0.05), st.floats(0.002, 0.05))
def test_the_needed_number_is_the_smallest(base: float, grown: float, limit: float) -> None:
    arm = min(1.0, max(0.0, base + grown))
    needed = trials_below(base, arm, limit)
    if needed is None:
        assert arm - base >= limit or limit - (arm - base) < 1e-3
        return

    def high(n: int) -> float:
        # rates that no whole number of events gives are what the planning is about
        from kvverify.stats.rates import _difference, _wilson

        return _difference(_wilson(base, n, 0.95), _wilson(arm, n, 0.95)).high

    assert high(needed) <= limit
    assert needed == 1 or high(needed - 1) > limit


def test_no_number_shows_a_growth_that_is_there() -> None:
    assert trials_below(0.01, 0.02, 0.01) is None
    assert smallest(lambda _n: False) is None
    assert trials_below(0.0, 0.0, 0.005) == 765


def test_coverage_by_simulation() -> None:
    """Of 2,000 intervals at 95 % about 95 % hold the true difference of two small rates."""
    rng = random.Random(1)
    held = 0
    for _ in range(2000):
        base, arm = (sum(rng.random() < p for _ in range(400)) for p in (0.02, 0.03))
        _, low, high = newcombe((base, 400), (arm, 400))
        held += low <= 0.01 <= high
    assert 0.935 <= held / 2000 <= 0.985


@pytest.mark.parametrize(("events", "trials", "confidence"), [(0, 0, 0.95), (2, 1, 0.95), (-1, 5, 0.95), (1, 5, 1.0)])
def test_what_makes_no_rate_is_refused(events: int, trials: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=f"{events} events in {trials} trials"):
        wilson(events, trials, confidence)
