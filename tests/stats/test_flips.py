"""Flips: the excess over the floor by cluster."""

from __future__ import annotations

import numpy as np
import pytest

from kvverify.stats.excess import FEWEST
from kvverify.stats.flips import excess_flips


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
