"""The excess over the noise floor: its interval covers as it says, and small corruption shows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.excess import FEWEST, excess

values = st.floats(0, 10, allow_nan=False)
pairs = st.lists(st.tuples(values, values), min_size=1, max_size=40)


@given(pairs, st.integers(0, 2**32))
def test_it_is_the_mean_difference_inside_its_interval(items: list[tuple[float, float]], seed: int) -> None:
    floor, value = [a for a, _ in items], [b for _, b in items]
    found = excess(floor, value, seed=seed, resamples=500)
    assert found.excess == pytest.approx(found.value - found.floor, abs=1e-9)
    assert found.low <= found.excess + 1e-9
    assert found.high >= found.excess - 1e-9
    assert found == excess(floor, value, seed=seed, resamples=500)


@given(pairs)
def test_exchanging_the_arms_turns_the_sign(items: list[tuple[float, float]]) -> None:
    floor, value = [a for a, _ in items], [b for _, b in items]
    one, other = excess(floor, value, seed=1, resamples=500), excess(value, floor, seed=1, resamples=500)
    assert (one.excess, one.low, one.high) == pytest.approx((-other.excess, -other.high, -other.low))


def test_a_few_items_never_show_an_excess() -> None:
    for n in range(1, FEWEST):
        found = excess([0.0] * n, [1.0] * n, seed=0)
        assert found.low <= 0 < found.high


def test_no_difference_at_all_is_an_exact_zero() -> None:
    for n in (1, 100):
        found = excess([0.25] * n, [0.25] * n, seed=0)
        assert (found.excess, found.low, found.high) == (0, 0, 0)


@pytest.mark.parametrize("items", [FEWEST, 48])
def test_false_alarms_are_as_rare_as_promised(items: int) -> None:
    # both comparisons draw from one skewed noise: 0 in half of the prompts, else exponential
    random, alarms, runs = np.random.default_rng(5), 0, 600
    for run in range(runs):
        noise = random.exponential(1.0, (2, items)) * (random.random((2, items)) < 0.5)
        alarms += excess(*noise.tolist(), seed=run, resamples=2000).low > 0
    assert alarms / runs < 0.015  # 0.001 is nominal; few skewed items make the percentile interval short


def test_rare_large_corruption_shows() -> None:
    random, found = np.random.default_rng(6), 0
    for run in range(100):
        floor, value = random.exponential(0.01, (2, 64))
        value[:16] += 1.0  # a quarter of the prompts
        found += excess(floor.tolist(), value.tolist(), seed=run, resamples=2000).low > 0
    assert found == 100


@pytest.mark.parametrize(("floor", "value"), [([], []), ([1.0], [1.0, 2.0]), ([float("nan")], [1.0])])
def test_what_has_no_excess_is_refused(floor: list[float], value: list[float]) -> None:
    with pytest.raises(ValueError, match="excess"):
        excess(floor, value, seed=0)
