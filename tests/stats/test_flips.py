"""Flips: Wilson's interval, and the excess over the floor by cluster."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.excess import FEWEST
from kvverify.stats.flips import excess_flips, flip_rate
from kvverify.stats.normal import quantile


@given(st.integers(1, 5000), st.data(), st.floats(0.5, 0.999))
def test_the_limits_are_the_rates_that_the_score_test_just_keeps(
    pairs: int, data: st.DataObject, confidence: float
) -> None:
    flips = data.draw(st.integers(0, pairs))
    found = flip_rate(flips, pairs, confidence)
    assert 0 <= found.low <= found.rate == flips / pairs <= found.high <= 1
    for limit in {found.low, found.high} - {0.0, 1.0}:
        z = abs(found.rate - limit) / np.sqrt(limit * (1 - limit) / pairs)
        assert z == pytest.approx(quantile((1 + confidence) / 2), rel=1e-6)


def test_known_interval() -> None:
    """Newcombe, Stat Med 17:857 (1998): 81 of 263."""
    found = flip_rate(81, 263)
    assert (found.low, found.high) == pytest.approx((0.2553, 0.3662), abs=5e-5)


def test_no_flip_does_not_exclude_all() -> None:
    found = flip_rate(0, 20)
    assert (found.rate, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.1611, abs=1e-4)


@pytest.mark.parametrize(("flips", "pairs"), [(0, 0), (-1, 5), (6, 5)])
def test_impossible_counts(flips: int, pairs: int) -> None:
    with pytest.raises(ValueError, match=f"{flips} flips of {pairs} pairs: expected one pair at least"):
        flip_rate(flips, pairs)


def test_impossible_confidence() -> None:
    with pytest.raises(ValueError, match=r"a confidence of 1\.5: expected"):
        flip_rate(1, 5, 1.5)


def test_the_excess_is_the_difference_of_the_rates() -> None:
    flips, floor = [True] * 30 + [False] * 70, [True] * 10 + [False] * 90
    found = excess_flips(flips, floor, seed=1)
    assert (found.items, found.value, found.floor) == (100, 0.3, 0.1)
    assert found.excess == pytest.approx(0.2)
    assert 0.1 < found.low < 0.2 < found.high < 0.3
    assert found == excess_flips(flips, floor, seed=1)


def test_what_flips_in_both_cancels() -> None:
    found = excess_flips([True, False] * 50, [True, False] * 50, seed=1)
    assert (found.excess, found.low, found.high) == (0.0, 0.0, 0.0)


def test_a_few_items_or_clusters_never_show_an_excess() -> None:
    for n in range(1, FEWEST):
        found = excess_flips([True] * n, [False] * n, seed=1)
        assert (found.low, found.high) == (-1.0, 1.0)
    few = excess_flips([True] * 60, [False] * 60, clusters=[i // 10 for i in range(60)], seed=1)
    assert (few.low, few.high) == (-1.0, 1.0)


def test_false_alarms_are_as_rare_as_promised() -> None:
    random, alarms, runs = np.random.default_rng(2), 0, 500
    for run in range(runs):
        flips, floor = random.random((2, 400)) < 0.05
        found = excess_flips(flips, floor, confidence=0.9, draws=1000, seed=run)
        alarms += found.low > 0
    assert alarms / runs < 0.075


def test_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="excess flips need one floor for each item, got 2 and 1"):
        excess_flips([True, False], [True], seed=1)
    with pytest.raises(ValueError, match="got 0 and 0"):
        excess_flips([], [], seed=1)
