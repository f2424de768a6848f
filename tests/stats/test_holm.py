"""Holm's adjustment: its definition step by step, and the error of all tests together."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.holm import holm

p_values = st.lists(st.floats(0, 1), max_size=20)


@given(p_values, st.floats(0.001, 0.5))
def test_rejects_what_the_step_down_rejects(values: list[float], alpha: float) -> None:
    # the procedure as published: from the smallest on, stop at the first that is not below alpha / (tests left)
    rejected = set()
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        if not values[place] * (len(values) - rank) < alpha:
            break
        rejected.add(place)
    assert {i for i, p in enumerate(holm(values)) if p < alpha} == rejected


@given(p_values)
def test_the_order_of_tests_does_not_matter(values: list[float]) -> None:
    order = np.random.default_rng(len(values)).permutation(len(values))
    adjusted = holm(values)
    assert holm([values[i] for i in order]) == [adjusted[i] for i in order]


@given(p_values)
def test_between_the_value_and_bonferroni(values: list[float]) -> None:
    for p, adjusted in zip(values, holm(values), strict=True):
        assert p <= adjusted <= 1.0
        assert adjusted >= min(1.0, p)
    assert max(holm(values), default=0.0) <= min(1.0, len(values) * max(values, default=0.0))


def test_thirteen_true_hypotheses_raise_one_alarm_in_twenty_runs() -> None:
    draws = np.random.default_rng(1).random((4000, 13))
    alarms = sum(min(holm(row.tolist())) < 0.05 for row in draws) / len(draws)
    assert 0.035 < alarms < 0.065


def test_what_is_no_probability_is_refused() -> None:
    with pytest.raises(ValueError, match=r"p values of \[1\.2, nan\]: expected numbers from 0 to 1"):
        holm([0.1, 1.2, float("nan")])
