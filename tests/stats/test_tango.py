"""Tango's score test: published values, the likelihood maximised outright, and what must hold of any such test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvverify.stats.normal import quantile, upper_tail
from kvverify.stats.tango import least_pairs, tango_interval, tango_p, tango_scores, tango_z


@st.composite
def tables(draw: st.DrawFn, most: int = 3000) -> tuple[int, int, int]:
    """Return b, c and n; small and zero counts come often."""
    pairs = draw(st.integers(1, most))
    b = draw(st.integers(0, min(pairs, 60)) | st.integers(0, pairs))
    return b, draw(st.integers(0, min(pairs - b, 60)) | st.integers(0, pairs - b)), pairs


margins = st.floats(0.001, 0.5)


@pytest.mark.parametrize(
    ("b", "c", "pairs", "z"),
    [(0, 0, 270, 1.65145), (17, 11, 1319, 1.29412), (60, 60, 6500, 5.35443), (5, 3, 500, 0.97338)],
)
def test_known_scores_at_one_point(b: int, c: int, pairs: int, z: float) -> None:
    assert tango_z(b, c, pairs, 0.01) == pytest.approx(z, abs=5e-6)


def test_the_example_of_the_paper() -> None:
    """Contact lenses, 43 + 0 + 1 + 0 pairs, margin 10 %: a table with empty cells off the diagonal."""
    assert tango_z(1, 0, 44, 0.1) == pytest.approx(1.709, abs=5e-4)


@pytest.mark.parametrize(
    ("table", "confidence", "interval"),
    [
        ((0, 1, 44), 0.90, (-0.037, 0.096)),  # Tango, Stat Med 17:891 (1998)
        ((3, 9, 32), 0.95, (-0.027, 0.390)),  # the same
        ((1, 7, 21), 0.95, (0.026, 0.517)),  # Bentur 2009, in Fagerland, Lydersen and Laake, Stat Med 33:2850 (2014)
        ((6, 16, 161), 0.95, (0.0054, 0.1240)),  # Cavo 2012, the same
        ((25, 28, 618), 0.90, (-0.0148, 0.0247)),  # R's PropCIs
    ],
)
def test_published_intervals(table: tuple[int, int, int], confidence: float, interval: tuple[float, float]) -> None:
    digits = 4 if table[2] > 100 else 3
    low, high = tango_interval(*table, confidence)
    assert (round(low, digits), round(high, digits)) == interval


def likelihood_z(b: int, c: int, pairs: int, margin: float) -> float:
    """Return z with the variance at the maximum of the trinomial likelihood under p10 = p01 + margin, found by search."""
    optimize = pytest.importorskip("scipy.optimize")
    rest = pairs - b - c

    def loss(p01: float) -> float:
        chances = ((b, p01 + margin), (c, p01), (rest, 1 - 2 * p01 - margin))
        return -sum(count * math.log(max(p, 1e-300)) for count, p in chances if count)

    found = optimize.minimize_scalar(loss, bounds=(0.0, (1 - margin) / 2), method="bounded", options={"xatol": 1e-13})
    p01 = min((0.0, (1 - margin) / 2, float(found.x)), key=loss)
    return (c - b + pairs * margin) / math.sqrt(pairs * (2 * p01 + margin - margin**2))


@given(tables(), margins)
def test_it_is_the_score_at_the_maximum_of_the_likelihood(table: tuple[int, int, int], margin: float) -> None:
    assert tango_z(*table, margin) == pytest.approx(likelihood_z(*table, margin), rel=1e-4, abs=1e-4)


@given(tables())
def test_margin_0_is_mcnemar(table: tuple[int, int, int]) -> None:
    b, c, pairs = table
    assert tango_z(b, c, pairs, 0.0) == pytest.approx((c - b) / math.sqrt(b + c) if b + c else 0.0)


@given(tables(), margins)
def test_exchanging_the_arms_turns_the_sign(table: tuple[int, int, int], margin: float) -> None:
    b, c, pairs = table
    assert tango_z(b, c, pairs, margin) == -tango_z(c, b, pairs, -margin)
    low, high = tango_interval(b, c, pairs, 0.9)
    assert tango_interval(c, b, pairs, 0.9) == (-high, -low)


@given(tables(), st.floats(-0.99, 0.99), st.floats(1e-6, 0.5))
def test_a_larger_margin_is_easier(table: tuple[int, int, int], margin: float, more: float) -> None:
    assume(margin + more < 1)
    assert tango_z(*table, margin + more) >= tango_z(*table, margin) - 1e-9


@given(tables(), margins, st.floats(0.001, 0.4))
def test_interval_and_test_agree(table: tuple[int, int, int], margin: float, alpha: float) -> None:
    low, high = tango_interval(*table, 1 - 2 * alpha)
    assume(min(abs(low + margin), abs(high + margin)) > 1e-9)
    assert (low > -margin) == (tango_z(*table, margin) > quantile(1 - alpha))
    assert (high < -margin) == (tango_z(*table, margin) < -quantile(1 - alpha))


@given(tables(), st.floats(0.01, 0.999))
def test_the_interval_holds_the_estimate(table: tuple[int, int, int], confidence: float) -> None:
    b, c, pairs = table
    low, high = tango_interval(b, c, pairs, confidence)
    assert -1 <= low <= (c - b) / pairs <= high <= 1


@pytest.mark.parametrize(
    ("b", "c", "pairs", "margin", "z"),
    [
        (0, 0, 1, 0.0, 0.0),
        (0, 0, 1, 1.0, math.inf),
        (1, 0, 1, 1.0, 0.0),
        (0, 0, 5, -1.0, -math.inf),
        (5, 0, 5, 0.0, -math.sqrt(5)),
    ],
)
def test_edges(b: int, c: int, pairs: int, margin: float, z: float) -> None:
    assert tango_z(b, c, pairs, margin) == pytest.approx(z)


def test_a_single_pair_excludes_little() -> None:
    assert tango_interval(0, 0, 1, 0.9) == pytest.approx((-0.7301, 0.7301), abs=1e-4)
    assert tango_interval(1, 0, 1, 0.9)[0] == -1.0
    assert tango_interval(0, 1, 1, 0.9)[1] == 1.0


@pytest.mark.parametrize(("margin", "pairs"), [(0.01, 268), (0.005, 539), (0.02, 133), (0.03, 88)])
def test_the_fewest_pairs_that_pass(margin: float, pairs: int) -> None:
    assert least_pairs(margin) == pairs
    assert tango_z(0, 0, pairs, margin) > quantile(0.95) >= tango_z(0, 0, pairs - 1, margin)


@given(tables(), margins)
def test_p_is_the_tail_of_z(table: tuple[int, int, int], margin: float) -> None:
    assert tango_p(*table, margin) == upper_tail(tango_z(*table, margin))


@pytest.mark.parametrize("pairs", [200, 500, 1319, 6500])
@pytest.mark.parametrize("psi", [0.02, 0.05, 0.1])
def test_type_1_error_at_the_margin(pairs: int, psi: float) -> None:
    margin, random = 0.01, np.random.default_rng(pairs)
    b, c, _ = random.multinomial(pairs, [(psi + margin) / 2, (psi - margin) / 2, 1 - psi], size=40_000).T
    passed = float((tango_scores(b, c, pairs, margin) > quantile(0.95)).mean())
    assert 0.03 < passed < 0.06


def test_what_no_variance_would_pass() -> None:
    """Of 50 pairs with a true loss of 2 points a test with the variance seen passes 1 point where none differ; Tango's never."""
    random = np.random.default_rng(3)
    b, c, _ = random.multinomial(50, [0.03, 0.01, 0.96], size=40_000).T
    difference = (c - b) / 50
    variance = ((b + c) / 50 - difference**2) / 50
    wald = difference + 0.01 > quantile(0.95) * np.sqrt(variance)
    assert float(wald.mean()) > 0.12
    assert float((tango_scores(b, c, 50, 0.01) > quantile(0.95)).mean()) < 0.01


@pytest.mark.parametrize("table", [(0, 0, 0), (-1, 0, 5), (0, -1, 5), (3, 3, 5)])
def test_impossible_counts(table: tuple[int, int, int]) -> None:
    for call in (lambda: tango_z(*table, 0.01), lambda: tango_interval(*table, 0.9), lambda: tango_p(*table, 0.01)):
        with pytest.raises(ValueError, match=r"discordant of \d pairs: expected one pair at least"):
            call()


def test_impossible_margins_and_confidences() -> None:
    with pytest.raises(ValueError, match=r"a margin of 1\.5: expected parts of 1, from -1 to 1"):
        tango_z(0, 0, 5, 1.5)
    with pytest.raises(ValueError, match=r"a confidence of 1\.0: expected"):
        tango_interval(0, 0, 5, 1.0)
    with pytest.raises(ValueError, match="a margin of 0: expected parts of 1, between 0 and 1"):
        least_pairs(0)
