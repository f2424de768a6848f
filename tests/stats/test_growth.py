"""Growth of a latency's quantile: the cheap bootstrap is the plain one, and its interval covers what it says."""

from __future__ import annotations

import numpy as np
import pytest

from kvverify.stats.growth import fewest, quantile_growth, values_for


def test_it_is_the_plain_bootstrap() -> None:
    """Resampling whole arms and taking the k-th smallest gives the same interval, but for chance."""
    rng = np.random.default_rng(3)
    base, arm = rng.lognormal(-3, 0.3, 400), rng.lognormal(-2.95, 0.3, 300)
    drawn = []
    for values in (base, arm):
        k = int(np.ceil(0.95 * values.size))
        picks = rng.integers(0, values.size, size=(20_000, values.size))
        drawn.append(np.partition(values[picks], k - 1, axis=1)[:, k - 1])
    low, high = np.quantile(drawn[1] / drawn[0] - 1, (0.05, 0.95))
    found = quantile_growth(base.tolist(), arm.tolist(), quantile=0.95, confidence=0.9, seed=1, resamples=20_000)
    assert found.low == pytest.approx(low, abs=0.01)
    assert found.high == pytest.approx(high, abs=0.01)


def test_coverage_by_simulation() -> None:
    """Two arms of one distribution: the growth is 0, and about 90 % of the intervals at 90 % hold it."""
    rng = np.random.default_rng(5)
    held = 0
    for n in range(400):
        arms = [rng.lognormal(-3, 0.3, 500).tolist() for _ in range(2)]
        found = quantile_growth(arms[0], arms[1], quantile=0.95, confidence=0.9, seed=n, resamples=1000)
        held += found.low <= 0 <= found.high
    assert 0.85 <= held / 400 <= 0.97


def test_a_scaled_arm_grows_by_the_scale() -> None:
    base = np.random.default_rng(0).lognormal(-3, 0.2, 2000)
    found = quantile_growth(base.tolist(), (1.25 * base).tolist(), quantile=0.95, confidence=0.95, seed=1)
    assert found.growth == pytest.approx(0.25)
    assert found.low < 0.25 < found.high


def test_the_needed_number_goes_with_the_square_of_the_width() -> None:
    base = np.random.default_rng(0).lognormal(-3, 0.2, 500).tolist()
    found = quantile_growth(base, base, quantile=0.95, confidence=0.95, seed=1)
    assert values_for(found, 500, found.high) == 500
    assert values_for(found, 500, found.high / 2) == pytest.approx(2000, abs=2)
    assert values_for(found, 500, -0.01) is None


def test_fewest_is_where_the_largest_value_is_beyond_the_quantile() -> None:
    for quantile, confidence in ((0.95, 0.95), (0.99, 0.9), (0.5, 0.999)):
        n = fewest(quantile, confidence)
        assert 1 - quantile**n >= confidence > 1 - quantile ** (n - 1)


@pytest.mark.parametrize("bad", [[], [0.0, 1.0], [float("nan"), 1.0], [-1.0]])
def test_what_is_no_time_is_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="finite and above 0"):
        quantile_growth([1.0], bad, quantile=0.95, confidence=0.9, seed=0)
