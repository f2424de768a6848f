"""Sizes told after a comparison: the claim's own test reaches the stated power with them, and the textbook's figure stands beside."""

from __future__ import annotations

import math

import pytest

pytest.importorskip("scipy")

import numpy as np

from kvverify.accuracy.difference import Claim, Estimate, estimate, table
from kvverify.accuracy.pairing import Pair
from kvverify.accuracy.size import NONE, size_of
from kvverify.stats.power import pairs_needed, power_of

CLAIM = Claim(margin=0.01, alpha=0.05)


def seen(difference: float, square: float, effect: float = 1.0) -> Estimate:
    return Estimate(difference, square, -1.0, 1.0, "tango", 0.0, 1.0, 1.0, 100, effect)


@pytest.mark.parametrize("discordance", [0.005, 0.01, 0.02, 0.05])
@pytest.mark.parametrize("power", [0.8, 0.9])
def test_what_is_needed_reaches_the_stated_power(discordance: float, power: float) -> None:
    claim = Claim(margin=0.01, alpha=0.05, power=power)
    size = size_of(seen(0.0, discordance), 1000, claim, binary=True)
    assert power_of(size.needed, 0.01, discordance) >= power - 0.01  # counts are whole numbers
    assert size.textbook == pairs_needed(0.01, discordance, power=power) < size.needed


def test_the_textbook_s_number_is_too_small_where_few_pairs_differ() -> None:
    size = size_of(seen(0.0, 0.01), 1000, CLAIM, binary=True)
    assert (size.textbook, size.needed) == (619, 856)
    assert power_of(size.textbook, 0.01, 0.01) < 0.7


def test_a_design_effect_multiplies_all_numbers() -> None:
    one, four = (size_of(seen(-0.004, 0.02, effect), 4000, CLAIM, binary=True) for effect in (1.0, 4.0))
    assert (four.needed, four.textbook, four.needed_at_loss) == (
        4 * one.needed,
        4 * one.textbook,
        4 * one.needed_at_loss,
    )
    assert four.power_reached == power_of(1000, 0.01, 0.02)


def test_what_no_number_shows() -> None:
    assert size_of(seen(-0.01, 0.02), 500, CLAIM, binary=True).needed_at_loss == NONE
    assert size_of(seen(0.0, 0.02), 500, CLAIM, binary=True).needed_to_differ == NONE
    assert (
        size_of(seen(-0.005, 0.00125), 500, CLAIM, binary=False).needed_at_loss > 0
    )  # fractions: the square is below the mean


@pytest.mark.parametrize(
    ("values", "shares"),
    [((-0.25, 0.0, 0.25), (0.1, 0.8, 0.1)), ((-1.0, -0.25, 0.0, 0.25, 1.0), (0.002, 0.03, 0.936, 0.03, 0.002))],
)
def test_fractions_reach_the_stated_power_as_well(values: tuple[float, ...], shares: tuple[float, ...]) -> None:
    square = sum(share * value**2 for value, share in zip(values, shares, strict=True))
    size = size_of(seen(0.0, square), 1000, CLAIM, binary=False)
    random, shown, runs = np.random.default_rng(2), 0, 100
    for _ in range(runs):
        differences = random.choice(values, size.needed, p=shares)
        pairs = [Pair(str(n), "vt", 4096, str(n), 0.5, 0.5, binary=False) for n in range(size.needed)]
        shown += estimate(table(pairs, differences.tolist()), CLAIM).low > -CLAIM.margin
    assert shown / runs >= 0.8 - 3 * math.sqrt(0.16 / runs)
