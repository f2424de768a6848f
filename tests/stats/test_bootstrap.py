"""The paired bootstrap: reproducible, stratified, by cluster, covering as it says, and fast."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.bootstrap import Interval, paired_bootstrap

differences = st.lists(st.sampled_from([-1.0, -0.25, 0.0, 0.5, 1.0]), min_size=2, max_size=60)


def bounds(found: Interval) -> tuple[float, float]:
    """Return the limits of an interval that has them."""
    assert found.low is not None
    assert found.high is not None
    return found.low, found.high


@given(differences, st.integers(0, 2**32))
def test_the_same_seed_gives_the_same_interval(items: list[float], seed: int) -> None:
    np.random.seed(0)  # noqa: NPY002 - the global generator must not matter
    one = paired_bootstrap(items, draws=200, confidence=0.9, seed=seed)
    np.random.random(3)  # noqa: NPY002
    assert one == paired_bootstrap(items, draws=200, confidence=0.9, seed=seed)
    assert (one.draws, one.seed, one.clusters) == (200, seed, len(items))


@given(differences)
def test_the_interval_lies_within_what_can_be_drawn(items: list[float]) -> None:
    low, high = bounds(paired_bootstrap(items, draws=300, confidence=0.9, seed=1))
    assert min(items) - 1e-12 <= low <= high <= max(items) + 1e-12


def test_no_difference_at_all_is_an_exact_zero() -> None:
    assert bounds(paired_bootstrap([0.0] * 20, confidence=0.9, seed=1)) == (0.0, 0.0)


def test_it_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    items = np.random.default_rng(1).exponential(size=80) - 1.0
    found = bounds(paired_bootstrap(items, confidence=0.9, seed=2))
    theirs = stats.bootstrap(
        (items,), np.mean, n_resamples=10_000, confidence_level=0.9, method="BCa", rng=np.random.default_rng(3)
    ).confidence_interval
    assert found == pytest.approx((theirs.low, theirs.high), abs=0.006)  # the error of 10,000 draws


def test_strata_keep_their_size_and_weight() -> None:
    """A task that always loses and one that always wins: within tasks nothing varies, between them all does."""
    items, tasks = [-1.0] * 10 + [1.0] * 30, ["a"] * 10 + ["b"] * 30
    assert bounds(paired_bootstrap(items, strata=tasks, confidence=0.9, seed=1)) == (0.0, 0.0)
    low, high = bounds(paired_bootstrap(items, confidence=0.9, seed=1))
    assert low < 0.4
    assert high > 0.6


def test_clusters_come_together() -> None:
    """Five whole copies of each item: the interval is that of the items."""
    items = np.random.default_rng(2).normal(size=60)
    copies = np.repeat(items, 5)
    together = paired_bootstrap(copies, clusters=np.repeat(np.arange(60), 5), confidence=0.9, seed=1)
    assert bounds(together) == pytest.approx(bounds(paired_bootstrap(items, confidence=0.9, seed=1)))
    assert together.clusters == 60
    low, high = bounds(together)
    loose = bounds(paired_bootstrap(copies, confidence=0.9, seed=1))
    assert (high - low) / (loose[1] - loose[0]) == pytest.approx(math.sqrt(5), rel=0.05)


def test_one_cluster_has_no_interval_and_says_so() -> None:
    found = paired_bootstrap([0.0, 1.0], clusters=["doc", "doc"], confidence=0.9, seed=1)
    assert (found.low, found.high, found.clusters) == (None, None, 1)
    assert found.undefined == "one cluster: how much clusters vary cannot be seen in one"


@pytest.mark.parametrize("clustered", [False, True])
def test_the_interval_covers_as_often_as_it_says(clustered: bool) -> None:
    """Two tasks of 150 skewed items with a mean of 0, in documents of five that share what they have, or not."""
    random, runs, below, above = np.random.default_rng(5), 500, 0, 0
    task, document = np.repeat([0, 1], 150), np.arange(300) // 5
    for run in range(runs):
        noise = random.exponential(size=300) - 1.0
        if clustered:
            noise = noise[document * 5]
        low, high = bounds(
            paired_bootstrap(
                noise, strata=task, clusters=document if clustered else None, draws=1000, confidence=0.9, seed=run
            )
        )
        below, above = below + (high < 0), above + (low > 0)
    assert 0.86 < 1 - (below + above) / runs < 0.94
    assert max(below, above) / runs < 0.09  # neither side alone takes all of the error


def test_6500_pairs_in_13_strata_take_less_than_two_seconds() -> None:
    random = np.random.default_rng(1)
    items, tasks = random.normal(size=6500), np.repeat(np.arange(13), 500)
    times = []
    for _ in range(3):
        start = time.process_time()
        paired_bootstrap(items, strata=tasks, confidence=0.9, seed=1)
        times.append(time.process_time() - start)
    assert min(times) < 2.0


def test_memory_stays_bounded() -> None:
    """10,000 draws of 20,000 items at once would be 400 MB of indices."""
    import tracemalloc

    items = np.random.default_rng(1).normal(size=20_000)
    tracemalloc.start()
    paired_bootstrap(items, draws=500, confidence=0.9, seed=1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40e6


@pytest.mark.parametrize(("draws", "confidence"), [(0, 0.9), (10, 0.0), (10, 1.0)])
def test_impossible_arguments(draws: int, confidence: float) -> None:
    with pytest.raises(ValueError, match=f"{draws} draws at a confidence of {confidence}: expected one draw at least"):
        paired_bootstrap([0.0, 1.0], draws=draws, confidence=confidence, seed=1)


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="1 of 2 paired differences are not finite"):
        paired_bootstrap([0.0, math.inf], confidence=0.9, seed=1)
    with pytest.raises(ValueError, match="1 clusters for 2 paired differences"):
        paired_bootstrap([0.0, 1.0], clusters=["a"], confidence=0.9, seed=1)
