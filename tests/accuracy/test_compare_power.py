"""How often comparisons find a planted loss, and how often they call one neutral: simulated, against the power that is told."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest

pytest.importorskip("scipy")

import numpy as np

from kvverify.accuracy.compare import measured
from kvverify.accuracy.difference import Claim
from kvverify.accuracy.pairing import Pair
from kvverify.events_accuracy import DifferenceMeasured
from kvverify.stats.power import power_of
from kvverify.verdicts_compare import harmed, shown

RUNS = 200
CLAIM = Claim(margin=0.01, alpha=0.05, draws=400)


def planted(
    random: np.random.Generator, n: int, lost: float, gained: float, *, accuracy: float = 0.7, share: int = 0
) -> list[Pair]:
    """Return n pairs in which answers flip: a share ``lost`` of all to wrong, a share ``gained`` to right.

    ``share``: so many pairs are of one document, and flip together.
    """
    right = random.random(n) < accuracy
    units = n if not share else -(-n // share)
    drawn = np.repeat(random.random(units), share or 1)[:n]
    flips = np.where(right, drawn < lost / accuracy, drawn < gained / (1 - accuracy))
    return [
        Pair(
            str(i), "t", 4096, str(i // share if share else i), float(right[i]), float(right[i] ^ flips[i]), binary=True
        )
        for i in range(n)
    ]


def outcomes(n: int, lost: float, gained: float, *, share: int = 0, seed: int = 1) -> list[DifferenceMeasured]:
    """Return the claim of each simulated comparison."""
    random = np.random.default_rng(seed)
    runs = [planted(random, n, lost, gained, share=share) for _ in range(RUNS)]
    return [next(measured("bf16", "4bit", "format", pairs, CLAIM, claims=True)) for pairs in runs]


def within_chance(seen: int, expected: float) -> bool:
    """Is a count of RUNS within four standard errors of what is expected of a share?"""
    return abs(seen / RUNS - expected) <= 4 * math.sqrt(max(expected * (1 - expected), 0.01) / RUNS)


@pytest.mark.parametrize("n", [500, 1319])
def test_a_loss_of_two_points_is_found_at_the_stated_power(n: int) -> None:
    found = outcomes(n, 0.03, 0.01)
    alarms = sum(e.p_mcnemar < 0.05 for e in found)
    assert within_chance(alarms, power_of(n, 0.02, 0.04, design="mcnemar"))
    assert sum(shown(e) for e in found) <= 0.05 * RUNS
    # harm: one point beyond the margin, one-sided, at the variance psi - d**2 of a pair
    expected = NormalDist().cdf(0.01 * math.sqrt(n / (0.04 - 0.02**2)) - 1.6449)
    assert within_chance(sum(harmed(e) for e in found), expected)


def test_at_fifty_samples_nothing_is_neutral() -> None:
    for lost, gained in ((0.0, 0.0), (0.03, 0.01), (0.01, 0.01)):
        assert not any(shown(e) for e in outcomes(50, lost, gained))


def test_no_loss_is_shown_at_the_stated_power() -> None:
    found = outcomes(1319, 0.01, 0.01)
    assert within_chance(sum(shown(e) for e in found), power_of(1319, 0.01, 0.02))
    assert not any(harmed(e) for e in found)
    told = sorted(e.power_reached for e in found)[RUNS // 2]
    assert told == pytest.approx(0.79, abs=0.05)  # the published figure for this discordance and number


@pytest.mark.parametrize("share", [0, 5])
def test_a_loss_of_the_margin_is_seldom_called_neutral(share: int) -> None:
    found = outcomes(2000, 0.02, 0.01, share=share)
    assert sum(shown(e) for e in found) / RUNS <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / RUNS)
    assert {e.method for e in found} == {"clustered-t" if share else "tango"}


def test_clusters_that_are_ignored_would_have_passed_too_often() -> None:
    """The share of false passes that the same data give when every pair is taken for itself: the test above can fail."""
    random = np.random.default_rng(1)
    runs = [planted(random, 2000, 0.02, 0.01, share=25) for _ in range(RUNS)]
    apart = [[Pair(p.key, p.task, p.length, p.key, p.base, p.arm, p.binary) for p in pairs] for pairs in runs]
    naive, clustered = (
        sum(shown(next(measured("a", "b", "format", pairs, CLAIM, claims=True))) for pairs in each) / RUNS
        for each in (apart, runs)
    )
    assert naive > 0.1
    assert clustered <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / RUNS)
