"""The score test of bounded means: Tango's where scores are 0 or 1, and sound where losses are rare."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvverify.stats.bounded import bounded_interval, bounded_p, bounded_sample, bounded_z
from kvverify.stats.normal import quantile
from kvverify.stats.paired import noninferior_p, paired_mean
from kvverify.stats.tango import tango_interval, tango_z

pytest.importorskip("scipy")

fractions = st.lists(st.sampled_from([-1.0, -0.5, -0.25, 0.0, 0.0, 0.0, 0.125, 0.5, 1.0]), min_size=1, max_size=50)
margins = st.floats(0.001, 0.5)


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 500), st.floats(-0.5, 0.9))
def test_it_is_tangos_test_for_right_and_wrong(b: int, c: int, same: int, margin: float) -> None:
    sample = bounded_sample([-1.0] * b + [1.0] * c + [0.0] * same)
    assert bounded_z(sample, margin) == pytest.approx(tango_z(b, c, b + c + same, margin), rel=1e-6, abs=1e-6)
    assert bounded_interval(sample, 0.9) == pytest.approx(tango_interval(b, c, b + c + same, 0.9), abs=1e-8)


def likeliest_variance(values: list[float], mean: float) -> float:
    """Return the variance at the maximum of the likelihood over the values and the two extremes, by a general optimiser."""
    optimize = pytest.importorskip("scipy.optimize")
    support = np.array(sorted({*values, -1.0, 1.0}))
    counts = np.array([values.count(v) for v in support])
    found = optimize.minimize(
        lambda p: -float(counts @ np.log(np.maximum(p, 1e-12))),
        np.full(support.size, 1 / support.size),
        bounds=[(0.0, 1.0)] * support.size,
        constraints=[
            {"type": "eq", "fun": lambda p: p.sum() - 1.0},
            {"type": "eq", "fun": lambda p: float(p @ support) - mean},
        ],
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 1000},
    )
    return float(found.x @ support**2) - mean**2


@pytest.mark.parametrize("margin", [0.02, 0.1, 0.4, -0.3])
@pytest.mark.parametrize(
    "values",
    [
        [0.0] * 6 + [-0.5],
        [0.25, -0.25, 0.5, 0.0, 0.0],
        [-1.0, 0.0, 0.0, 0.5],
        [0.0] * 4,
        [0.75, 0.5, 0.5],
        [1.0, -0.5, 0.0],
    ],
)
def test_the_variance_is_that_at_the_maximum_of_the_likelihood(values: list[float], margin: float) -> None:
    above = float(np.mean(values)) + margin
    variance = likeliest_variance(values, -margin)
    expected = above / math.sqrt(variance / len(values))
    assert bounded_z(bounded_sample(values), margin) == pytest.approx(expected, rel=2e-3)


@given(fractions, margins)
def test_exchanging_the_arms_turns_the_sign(values: list[float], margin: float) -> None:
    sample, other = bounded_sample(values), bounded_sample([-v for v in values])
    assert bounded_z(sample, margin) == pytest.approx(-bounded_z(other, -margin))


@given(fractions, margins, st.floats(0.01, 0.3))
def test_interval_and_test_agree(values: list[float], margin: float, alpha: float) -> None:
    sample = bounded_sample(values)
    low, high = bounded_interval(sample, 1 - 2 * alpha)
    assert -1 <= low <= sample.mean + 1e-12
    assert sample.mean - 1e-12 <= high <= 1
    assume(abs(low + margin) > 1e-7)
    assert (low > -margin) == (bounded_p(sample, margin) < alpha)


@given(fractions, st.floats(-0.9, 0.9), st.floats(1e-3, 0.5))
def test_a_larger_margin_is_easier(values: list[float], margin: float, more: float) -> None:
    assume(margin + more < 1)
    sample = bounded_sample(values)
    assert bounded_z(sample, margin + more) >= bounded_z(sample, margin) - 1e-6


def test_strata_and_clusters_give_the_mean_of_the_others() -> None:
    random = np.random.default_rng(1)
    values, tasks = random.choice([-1.0, -0.5, 0.0, 0.5], 90), ["a"] * 60 + ["b"] * 30
    documents = np.arange(90) // 3
    for options in ({"strata": tasks}, {"clusters": documents}, {"strata": tasks, "clusters": documents}):
        sample, mean = bounded_sample(values, **options), paired_mean(values, 0.9, **options)
        assert sample.mean == pytest.approx(mean.mean)
        assert sample.counts.sum() == mean.clusters
        low, high = bounded_interval(sample, 0.9)
        assert low < mean.mean < high


def test_many_pairs_agree_with_the_t_interval() -> None:
    values = np.random.default_rng(2).choice([-1.0, -0.5, 0.0, 0.25, 1.0], 5000, p=[0.05, 0.1, 0.7, 0.1, 0.05])
    mean = paired_mean(values, 0.9)
    assert bounded_interval(bounded_sample(values), 0.9) == pytest.approx((mean.low, mean.high), abs=3e-4)


@pytest.mark.parametrize("pairs", [300, 1000])
@pytest.mark.parametrize("loss", [1.0, 0.5])
def test_type_1_error_at_the_margin_where_losses_are_rare(pairs: int, loss: float) -> None:
    """A loss of 1 point made of few items that lose much: the t interval passes it too often, the score test does not."""
    random, runs, margin, passed, passed_t = np.random.default_rng(pairs), 800, 0.01, 0, 0
    for _ in range(runs):
        values = np.where(random.random(pairs) < margin / loss, -loss, 0.0)
        passed += bounded_z(bounded_sample(values), margin) > quantile(0.95)
        passed_t += (noninferior_p(paired_mean(values, 0.9), margin) or 0.0) < 0.05
    assert passed / runs < 0.065
    assert passed_t > passed
    if pairs == 300 and loss == 1.0:
        assert passed_t / runs > 0.15


def test_equal_scores_pass_from_268_pairs_on() -> None:
    """As with Tango's test; a t interval of them has no width at all."""
    assert bounded_interval(bounded_sample([0.0] * 268), 0.9)[0] > -0.01
    assert bounded_interval(bounded_sample([0.0] * 267), 0.9)[0] < -0.01


def test_6500_distinct_differences_take_less_than_a_second() -> None:
    sample = bounded_sample(np.clip(np.random.default_rng(3).normal(0, 0.1, 6500), -1, 1))
    start = time.process_time()
    bounded_interval(sample, 0.9)
    assert time.process_time() - start < 1.0


def test_edges() -> None:
    lost, won = bounded_sample([-1.0] * 5), bounded_sample([1.0] * 5)
    assert bounded_interval(lost, 0.9)[0] == -1.0
    assert bounded_interval(won, 0.9)[1] == 1.0
    assert bounded_z(lost, 1.0) == 0.0
    assert bounded_z(bounded_sample([0.0]), 1.0) == math.inf


def test_what_is_not_bounded_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a paired difference of size 1\.5: expected scores from 0 to 1"):
        bounded_sample([0.0, -1.5])
    with pytest.raises(ValueError, match=r"a margin of 2: expected parts of 1"):
        bounded_z(bounded_sample([0.0]), 2)
    with pytest.raises(ValueError, match=r"a confidence of 0: expected a number between 0 and 1"):
        bounded_interval(bounded_sample([0.0]), 0)
