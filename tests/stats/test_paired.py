"""Means of paired differences: formulas by hand, edges, and coverage where items share clusters and strata differ."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvverify.stats.design import Floats
from kvverify.stats.paired import Mean, noninferior_p, paired_mean

pytest.importorskip("scipy")
from scipy import stats

values = st.floats(-1, 1, allow_nan=False, width=32)
samples = st.lists(values, min_size=2, max_size=40)


def clustered_se(differences: Floats, clusters: npt.NDArray[Any]) -> float:
    """Miller's formula, written out: sqrt(G / (G - 1) sum over clusters of (sum of deviations)**2) / n."""
    names = np.unique(clusters)
    sums = [float((differences[clusters == name] - differences.mean()).sum()) for name in names]
    return math.sqrt(len(names) / (len(names) - 1) * sum(s * s for s in sums)) / len(differences)


@given(samples, st.floats(0.5, 0.99))
def test_plain_pairs_give_the_paired_t_interval(differences: list[float], confidence: float) -> None:
    assume(np.std(differences) > 1e-6)
    found = paired_mean(differences, confidence)
    test = stats.ttest_1samp(differences, 0.0).confidence_interval(confidence)
    assert (found.low, found.high) == pytest.approx((test.low, test.high), rel=1e-6, abs=1e-9)
    assert found.df == pytest.approx(len(differences) - 1)
    assert (found.clusters, found.design_effect, found.undefined) == (len(differences), 1.0, "")


@given(st.lists(st.tuples(values, st.integers(0, 5)), min_size=4, max_size=40))
def test_clusters_give_the_clustered_error(items: list[tuple[float, int]]) -> None:
    differences, clusters = np.array([d for d, _ in items]), np.array([g for _, g in items])
    groups = len(set(clusters.tolist()))
    assume(groups > 1)
    found = paired_mean(differences, 0.9, clusters=clusters)
    assert found.clusters == groups
    assert found.se == pytest.approx(clustered_se(differences, clusters), rel=1e-9, abs=1e-12)
    if found.se and found.se > 1e-9:
        assert found.df == pytest.approx(groups - 1)
        naive = paired_mean(differences, 0.9).se
        assert naive
        assert found.design_effect == pytest.approx((found.se / naive) ** 2)


@given(samples)
def test_clusters_of_one_change_nothing(differences: list[float]) -> None:
    plain, single = paired_mean(differences, 0.9), paired_mean(differences, 0.9, clusters=range(len(differences)))
    assert (single.mean, single.se) == pytest.approx((plain.mean, plain.se))
    assert single.design_effect == pytest.approx(1.0)


@given(samples)
def test_exchanging_the_arms_turns_the_sign(differences: list[float]) -> None:
    one, other = paired_mean(differences, 0.9), paired_mean([-d for d in differences], 0.9)
    assert one.low is not None
    assert other.high is not None
    assert one.low == pytest.approx(-other.high)
    assert one.low <= one.mean


def test_whole_copies_of_items_tell_no_more_than_the_items() -> None:
    """Each of 50 items five times over is 50 clusters: the error is that of 50, and the design effect about five."""
    items = np.random.default_rng(2).normal(size=50)
    copies = paired_mean(np.repeat(items, 5), 0.9, clusters=np.repeat(np.arange(50), 5))
    alone = paired_mean(items, 0.9)
    assert (copies.se, copies.low, copies.high) == pytest.approx((alone.se, alone.low, alone.high))
    assert copies.design_effect == pytest.approx(5, rel=0.03)


@given(st.lists(samples, min_size=1, max_size=5))
def test_the_mean_of_strata_is_the_mean_of_their_means(tasks: list[list[float]]) -> None:
    strata = [k for k, task in enumerate(tasks) for _ in task]
    found = paired_mean([d for task in tasks for d in task], 0.9, strata=strata)
    assert found.mean == pytest.approx(np.mean([np.mean(task) for task in tasks]), abs=1e-7)
    variance = sum(np.var(task, ddof=1) / len(task) for task in tasks) / len(tasks) ** 2
    assert found.se == pytest.approx(math.sqrt(variance), rel=1e-6, abs=1e-9)


def test_two_strata_have_the_degrees_of_freedom_of_welch() -> None:
    random = np.random.default_rng(4)
    one, other = random.normal(0, 1, 12), random.normal(0, 3, 30)
    # the mean of the strata of (one, -other) is half of the difference that Welch's t test is about
    found = paired_mean(np.concatenate([one, -other]), 0.95, strata=["a"] * 12 + ["b"] * 30)
    welch = stats.ttest_ind(one, other, equal_var=False)
    assert found.df == pytest.approx(welch.df)
    assert found.se
    assert found.mean / found.se == pytest.approx(welch.statistic)


def test_clusters_that_cross_strata_stay_together() -> None:
    """Two tasks over the very same documents, with the very same differences: no more than one task tells."""
    task = np.random.default_rng(5).normal(size=40)
    both, documents = np.concatenate([task, task]), np.concatenate([np.arange(40)] * 2)
    crossed = paired_mean(both, 0.9, strata=np.repeat([0, 1], 40), clusters=documents)
    alone = paired_mean(task, 0.9)
    assert crossed.se == pytest.approx(alone.se)
    assert (crossed.df, crossed.clusters) == (39, 40)
    apart = paired_mean(both, 0.9, strata=np.repeat([0, 1], 40), clusters=np.arange(80))
    assert apart.se == pytest.approx((alone.se or 0) / math.sqrt(2))


def test_one_cluster_has_no_error_and_says_so() -> None:
    found = paired_mean([0.0, 1.0, -1.0], 0.9, clusters=["haystack"] * 3)
    assert (found.mean, found.se, found.low, found.high, found.df, found.clusters) == (0.0, None, None, None, None, 1)
    assert found.undefined == "one cluster: how much clusters vary cannot be seen in one"
    assert noninferior_p(found, 0.01) is None


def test_a_stratum_of_one_names_itself() -> None:
    found = paired_mean([0.0, 1.0, -1.0], 0.9, strata=["vt", "vt", "cwe"])
    assert found.undefined == "one pair in cwe: how much pairs vary cannot be seen in one"
    assert found.se is None
    assert paired_mean([0.5], 0.9).undefined == "one pair: how much pairs vary cannot be seen in one"


@given(samples, st.floats(0.001, 1.0), st.floats(0.01, 0.4))
def test_interval_and_test_agree(differences: list[float], margin: float, alpha: float) -> None:
    found = paired_mean(differences, 1 - 2 * alpha)
    p = noninferior_p(found, margin)
    assert p is not None
    assert found.low is not None
    assume(abs(found.low + margin) > 1e-9)
    assert (p < alpha) == (found.low > -margin)


@pytest.mark.parametrize(("strata", "clusters"), [(None, None), ("tasks", None), (None, "docs"), ("tasks", "docs")])
def test_the_interval_covers_as_often_as_it_says(strata: str | None, clusters: str | None) -> None:
    """Three tasks of unequal spread, 60 items each; with clusters, items of a document share half of their variance."""
    random, runs, covered = np.random.default_rng(6), 1500, 0
    task, spread = np.repeat(np.arange(3), 60), np.repeat([0.1, 0.3, 0.6], 60)
    document = np.arange(180) // 6
    for _ in range(runs):
        noise = random.normal(size=180)
        if clusters:
            noise = (noise + random.normal(size=30)[document]) / math.sqrt(2)
        found = paired_mean(
            noise * spread, 0.9, strata=task if strata else None, clusters=document if clusters else None
        )
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    assert 0.87 < covered / runs < 0.93


def test_an_interval_that_ignores_clusters_covers_too_seldom() -> None:
    """Why clusters matter: five whole copies of each of 40 items."""
    random, covered = np.random.default_rng(7), 0
    for _ in range(500):
        found = paired_mean(np.repeat(random.normal(size=40), 5), 0.9)
        assert found.low is not None
        assert found.high is not None
        covered += found.low <= 0 <= found.high
    assert covered / 500 < 0.65


@pytest.mark.parametrize(
    ("differences", "options", "message"),
    [
        ([], {}, r"paired differences of shape \(0,\): expected one for each pair, and one pair at least"),
        ([[0.0, 1.0]], {}, r"shape \(1, 2\)"),
        ([0.0, math.nan], {}, "1 of 2 paired differences are not finite"),
        ([0.0, 1.0], {"strata": ["a"]}, "1 strata for 2 paired differences: expected one for each"),
        ([0.0, 1.0], {"clusters": ["a"] * 3}, "3 clusters for 2 paired differences: expected one for each"),
    ],
)
def test_what_cannot_be_averaged_is_refused(
    differences: list[float], options: dict[str, list[str]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        paired_mean(differences, 0.9, **options)


def test_impossible_confidence() -> None:
    with pytest.raises(ValueError, match=r"a confidence of 1\.0: expected a number between 0 and 1"):
        paired_mean([0.0, 1.0], 1.0)


def test_the_mean_is_frozen() -> None:
    found = paired_mean([0.0, 1.0], 0.9)
    assert isinstance(found, Mean)
    with pytest.raises(AttributeError):
        found.mean = 1.0  # type: ignore[misc]
