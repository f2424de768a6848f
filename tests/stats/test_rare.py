"""The rate that a run without an event excludes, against its definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.rare import excluded_rate, trials_for


@given(trials=st.integers(1, 10**6), confidence=st.floats(0.5, 0.999))
def test_at_the_excluded_rate_no_event_has_exactly_the_chance_that_is_left(trials: int, confidence: float) -> None:
    """The definition."""
    rate = excluded_rate(trials, confidence)
    assert rate is not None
    assert (1 - rate) ** trials == pytest.approx(1 - confidence, rel=1e-6)


@pytest.mark.parametrize(("rate", "confidence", "trials"), [(0.01, 0.95, 299), (0.001, 0.95, 2995), (0.01, 0.99, 459)])
def test_known_numbers_of_trials(rate: float, confidence: float, trials: int) -> None:
    """Published figures; one trial less does not do."""
    assert trials_for(rate, confidence) == trials
    assert (excluded_rate(trials, confidence) or 1) <= rate < (excluded_rate(trials - 1, confidence) or 0)


def test_the_bar_of_isolation() -> None:
    """640 answers exclude a rate of 0.47 %; the rule of three says the same."""
    assert excluded_rate(640) == pytest.approx(0.00467, abs=1e-5)
    assert excluded_rate(640) == pytest.approx(3 / 640, rel=0.01)


def test_nothing_asked_says_nothing() -> None:
    """Undefined, and not 0 or 1."""
    assert excluded_rate(0) is None


@pytest.mark.parametrize("arguments", [(-1, 0.95), (5, 1.0), (5, 0.0)])
def test_impossible_arguments(arguments: tuple[int, float]) -> None:
    """Refused with the values."""
    with pytest.raises(ValueError, match="expected"):
        excluded_rate(*arguments)
