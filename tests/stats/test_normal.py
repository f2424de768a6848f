"""The normal distribution: known quantiles, and tails that do not vanish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.normal import quantile, upper_tail


@pytest.mark.parametrize(("probability", "z"), [(0.5, 0.0), (0.95, 1.6448536), (0.975, 1.9599640), (0.8, 0.8416212)])
def test_known_quantiles(probability: float, z: float) -> None:
    assert quantile(probability) == pytest.approx(z, abs=1e-7)


@given(st.floats(1e-6, 1 - 1e-6))
def test_tail_and_quantile_invert_each_other(probability: float) -> None:
    assert upper_tail(quantile(probability)) == pytest.approx(1 - probability, rel=1e-9)


def test_far_tails() -> None:
    assert upper_tail(10) == pytest.approx(7.619853e-24, rel=1e-6)
    assert upper_tail(float("inf")) == 0.0
    assert upper_tail(float("-inf")) == 1.0


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.1])
def test_there_is_no_quantile_outside(probability: float) -> None:
    with pytest.raises(ValueError, match=f"a normal quantile at {probability}: expected a probability between 0 and 1"):
        quantile(probability)
