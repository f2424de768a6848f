"""Sizes and powers: every published table, the tests themselves by simulation, and what sizes must obey."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvverify.stats.mcnemar import mcnemar_exact
from kvverify.stats.normal import quantile
from kvverify.stats.power import (
    DESIGNS,
    MOST_EXACT,
    Design,
    pairs_needed,
    pairs_needed_mean,
    pairs_needed_unpaired,
    power_of,
    smallest_margin,
)
from kvverify.stats.tango import least_pairs, tango_scores

pytest.importorskip("scipy")

POWERS = (0.8, 0.9)
# psi: the sizes at 80 % and 90 % for margins of 0.5, 1, 2 and 3 points, one-sided 5 %
NONINFERIORITY = {
    0.01: [2474, 3426, 619, 857, 155, 215, 69, 96],
    0.02: [4947, 6852, 1237, 1713, 310, 429, 138, 191],
    0.03: [7420, 10277, 1855, 2570, 464, 643, 207, 286],
    0.05: [12366, 17128, 3092, 4282, 773, 1071, 344, 476],
    0.10: [24731, 34256, 6183, 8564, 1546, 2141, 687, 952],
}
# psi: at 1 point, non-inferiority at 2.5 %, two one-sided tests at 5 %, McNemar two-sided 5 %
OTHERS = {
    0.01: [785, 1051, 857, 1083, 783, 1047],
    0.02: [1570, 2102, 1713, 2165, 1568, 2098],
    0.03: [2355, 3153, 2570, 3247, 2353, 3149],
    0.05: [3925, 5254, 4282, 5412, 3923, 5250],
    0.10: [7849, 10508, 8564, 10823, 7847, 10504],
}
TANGO_POWER = {
    0.02: [0.44, 0.79, 0.92, 0.98, 1.0, 1.0],
    0.03: [0.35, 0.66, 0.81, 0.93, 0.99, 1.0],
    0.05: [0.25, 0.48, 0.63, 0.78, 0.91, 0.97],
}
# pairs: the smallest margin in points for psi of 1, 2, 3, 5 and 10 %
MARGINS = {
    50: [3.5, 5.0, 6.1, 7.9, 11.1],
    198: [1.8, 2.5, 3.1, 4.0, 5.6],
    500: [1.1, 1.6, 1.9, 2.5, 3.5],
    1319: [0.68, 0.97, 1.2, 1.5, 2.2],
    6500: [0.31, 0.44, 0.53, 0.69, 0.98],
    14042: [0.21, 0.30, 0.36, 0.47, 0.66],
}
sizes = st.integers(1, 20_000)
margins = st.floats(0.002, 0.2)
discordances = st.floats(0.001, 0.5)


@pytest.mark.parametrize("psi", NONINFERIORITY)
def test_table_of_noninferiority(psi: float) -> None:
    cells = list(itertools.product((0.005, 0.01, 0.02, 0.03), POWERS))
    assert [pairs_needed(margin, psi, power=power, floor=False) for margin, power in cells] == NONINFERIORITY[psi]
    floors = [max(size, least_pairs(cell[0])) for size, cell in zip(NONINFERIORITY[psi], cells, strict=True)]
    assert [pairs_needed(margin, psi, power=power) for margin, power in cells] == floors


@pytest.mark.parametrize("psi", OTHERS)
def test_table_of_other_designs(psi: float) -> None:
    designs: list[dict[str, Any]] = [{"alpha": 0.025}, {"design": "tost"}, {"design": "mcnemar"}]
    found = [pairs_needed(0.01, psi, power=power, **options) for options in designs for power in POWERS]
    assert found == OTHERS[psi]


@pytest.mark.parametrize("psi", TANGO_POWER)
def test_table_of_tangos_power(psi: float) -> None:
    found = [power_of(pairs, 0.01, psi) for pairs in (500, 1319, 2000, 3000, 4500, 6500)]
    assert found == pytest.approx(TANGO_POWER[psi], abs=0.0101)  # the table is of a simulation, with two digits


def test_sizes_under_a_small_true_loss() -> None:
    found = [
        pairs_needed(0.01, psi, power=power, true_difference=-0.003)
        for psi, power in itertools.product((0.02, 0.03, 0.05), POWERS)
    ]
    assert found == [2523, 3494, 3785, 5242, 6308, 8738]


def test_what_pairing_saves() -> None:
    assert pairs_needed_unpaired(0.01, 0.95) == 5874
    assert pairs_needed_unpaired(0.01, 0.90) == 11129


@pytest.mark.parametrize("pairs", MARGINS)
def test_table_of_margins(pairs: int) -> None:
    found = [100 * smallest_margin(pairs, psi, floor=False) for psi in (0.01, 0.02, 0.03, 0.05, 0.10)]
    assert [float(f"{margin:.2g}" if margin < 1 else f"{margin:.1f}") for margin in found] == MARGINS[pairs]
    bounded = [100 * smallest_margin(pairs, psi) for psi in (0.01, 0.02, 0.03, 0.05, 0.10)]
    z = quantile(0.95)
    assert bounded == pytest.approx([max(margin, 100 * z * z / (pairs + z * z)) for margin in found])


def test_how_seldom_mcnemar_sees_a_loss_of_two_points() -> None:
    found = [power_of(n, 0.02, 0.04, design="mcnemar") for n in (50, 200, 500, 1319)]
    assert found == pytest.approx([0.003, 0.18, 0.54, 0.95], abs=0.01)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(
    ("pairs", "psi", "difference"), [(400, 0.03, -0.01), (1319, 0.05, -0.005), (3000, 0.02, 0.003)]
)
def test_exact_power_is_what_simulation_finds(design: Design, pairs: int, psi: float, difference: float) -> None:
    runs, margin, z = 20_000, 0.012, quantile(0.95)
    chances = [(psi - difference) / 2, (psi + difference) / 2, 1 - psi]
    b, c, _ = np.random.default_rng(pairs).multinomial(pairs, chances, size=runs).T
    if design == "mcnemar":
        passed = np.array([mcnemar_exact(int(x), int(y)) <= 0.05 for x, y in zip(b, c, strict=True)])
    else:
        passed = tango_scores(b, c, pairs, margin) > z
        if design == "tost":
            passed &= tango_scores(c, b, pairs, margin) > z
    expected = power_of(pairs, margin, psi, design=design, true_difference=difference)
    assert float(passed.mean()) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / runs))


@pytest.mark.parametrize("psi", [0.005, 0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("difference", [0.0, -0.003])
def test_sizes_of_the_score_test_reach_the_power_that_they_state(psi: float, power: float, difference: float) -> None:
    pairs = pairs_needed(0.01, psi, power=power, true_difference=difference, score=True)
    assert power - 0.005 < power_of(pairs, 0.01, psi, true_difference=difference) < power + 0.04


def test_the_textbook_size_misses_its_power_where_few_pairs_differ() -> None:
    """Why ``score`` is there."""
    assert power_of(pairs_needed(0.01, 0.01), 0.01, 0.01) == pytest.approx(0.673, abs=0.001)
    assert power_of(pairs_needed(0.01, 0.05), 0.01, 0.05) == pytest.approx(0.795, abs=0.001)


@pytest.mark.parametrize("psi", [0.01, 0.02, 0.05])
def test_sizes_of_two_one_sided_score_tests(psi: float) -> None:
    pairs = pairs_needed(0.01, psi, design="tost", score=True)
    assert 0.795 < power_of(pairs, 0.01, psi, design="tost") < 0.84


def test_sizes_of_mcnemar_are_those_of_its_exact_test_nearly() -> None:
    pairs = pairs_needed(0.01, 0.05, design="mcnemar")
    assert power_of(pairs, 0.01, 0.05, design="mcnemar", exact=False) == pytest.approx(0.8, abs=0.001)
    assert power_of(pairs, 0.01, 0.05, design="mcnemar") == pytest.approx(0.79, abs=0.01)  # it is conservative


@given(margins, discordances, st.floats(0.01, 0.2), st.floats(0.5, 0.99), st.sampled_from(DESIGNS[:2]))
def test_one_pair_less_does_not_do(
    margin: float,
    psi: float,
    alpha: float,
    power: float,
    design: Design,
) -> None:
    pairs = pairs_needed(margin, psi, alpha=alpha, power=power, design=design, floor=False)
    assert power_of(pairs, margin, psi, alpha=alpha, design=design, exact=False) >= power - 1e-9
    if pairs > 1:
        assert power_of(pairs - 1, margin, psi, alpha=alpha, design=design, exact=False) < power + 1e-9
    assert pairs_needed(margin, psi, alpha=alpha, power=power, design=design) == max(pairs, least_pairs(margin, alpha))


@given(margins, discordances, st.booleans())
def test_size_and_margin_invert_each_other(margin: float, psi: float, score: bool) -> None:
    pairs = pairs_needed(margin, psi, score=score)
    assume(pairs > 1)
    assert smallest_margin(pairs, psi, score=score) <= margin + 1e-6
    assert smallest_margin(pairs - 1, psi, score=score) > margin - 1e-6


@given(margins, st.floats(0.001, 0.25), st.floats(1.01, 2.0), st.booleans())
def test_more_discordance_or_a_smaller_margin_needs_more(margin: float, psi: float, factor: float, score: bool) -> None:
    needed = pairs_needed(margin, psi, score=score)
    assert pairs_needed(margin, psi * factor, score=score) >= needed
    assert pairs_needed(margin / factor, psi, score=score) >= needed


def test_without_discordance_the_floor_is_left() -> None:
    assert pairs_needed(0.01, 0.0) == pairs_needed(0.01, 0.0, score=True) == 268
    assert [power_of(n, 0.01, 0.0) for n in (267, 268)] == [0.0, 1.0]


@pytest.mark.parametrize("design", DESIGNS)
def test_fractional_scores_take_their_own_spread(design: Design) -> None:
    needed = pairs_needed_mean(0.01, math.sqrt(0.02), design=design)
    assert needed == pytest.approx(pairs_needed(0.01, 0.02, design=design, floor=False), abs=3)
    assert pairs_needed_mean(0.01, 0.1, design=design) == pytest.approx(needed / 2, abs=2)
    loss = {"true_difference": -0.003} if design != "mcnemar" else {}
    assert pairs_needed_mean(0.01, 0.1, design=design, **loss) >= pairs_needed_mean(0.01, 0.1, design=design)


def test_power_of_t_tests_by_simulation() -> None:
    from scipy import stats

    pairs = pairs_needed_mean(0.05, 0.3, power=0.8)
    draws = np.random.default_rng(1).normal(0.0, 0.3, (4000, pairs))
    t = (draws.mean(axis=1) + 0.05) / (draws.std(axis=1, ddof=1) / math.sqrt(pairs))
    assert float((t > stats.t.ppf(0.95, pairs - 1)).mean()) == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("design", DESIGNS)
@pytest.mark.parametrize(("psi", "difference"), [(1.0, 1.0), (1.0, -1.0), (1.0, 0.5), (0.02, 0.02), (0.02, -0.02)])
def test_extreme_populations_have_a_power(design: Design, psi: float, difference: float) -> None:
    for exact in (True, False):
        found = power_of(60, 0.3, psi, design=design, true_difference=difference, exact=exact)
        assert 0 <= found <= 1 + 1e-9


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((0.0, 0.02), {}, r"a margin of 0\.0: expected parts of 1, between 0 and 1"),
        ((1.0, 0.02), {}, r"a margin of 1\.0: expected"),
        ((0.01, 0.02), {"alpha": 0.0}, r"an alpha of 0\.0: expected"),
        ((0.01, 0.02), {"power": 1.0}, r"a power of 1\.0: expected"),
        ((0.01, 1.5), {}, r"a discordance of 1\.5 at a true difference of 0\.0: expected a share of the pairs"),
        ((0.01, 0.001), {"true_difference": -0.002}, r"a discordance of 0\.001 at a true difference of -0\.002"),
        ((0.01, 0.001), {"design": "mcnemar"}, r"a discordance of 0\.001 at a true difference of 0\.01"),
        ((0.01, 0.05), {"true_difference": -0.01}, "at a margin of 0.01: no number of pairs shows what is not so"),
        ((0.01, 0.05), {"true_difference": 0.01, "design": "tost"}, "no number of pairs shows what is not so"),
    ],
)
def test_impossible_sizes(arguments: tuple[float, float], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        pairs_needed(*arguments, **options)


def test_other_impossible_arguments() -> None:
    with pytest.raises(ValueError, match="the power of 0 pairs: expected one at least"):
        power_of(0, 0.01, 0.02)
    with pytest.raises(ValueError, match="the margin of 0 pairs: expected one at least"):
        smallest_margin(0, 0.02)
    with pytest.raises(ValueError, match=r"a standard deviation of 0\.0: expected a positive number"):
        pairs_needed_mean(0.01, 0.0)
    with pytest.raises(ValueError, match="no number of pairs shows what is not so"):
        pairs_needed_mean(0.01, 0.1, true_difference=-0.02)


def test_beyond_what_can_be_summed_the_power_goes_on_without_a_step() -> None:
    discordance = 0.1
    summed, approximated = (power_of(int(MOST_EXACT / discordance) + more, 0.0025, discordance) for more in (0, 1))
    assert summed == pytest.approx(approximated, abs=2e-4)
    assert power_of(10**9, 1e-4, 0.4) > 0.99  # in no time, and in no memory
