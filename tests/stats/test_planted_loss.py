"""A loss planted by flipping answers: found at the stated power, never called neutral, and not decided on 50 samples."""

from __future__ import annotations

import numpy as np
import pytest

from kvverify.stats.mcnemar import mcnemar_exact
from kvverify.stats.power import pairs_needed, power_of
from kvverify.stats.tango import tango_interval

pytest.importorskip("scipy")

MARGIN, ALPHA = 0.01, 0.05
RUNS = 2000
LOST, GAINED = 0.03, 0.01  # a true loss of 2 points, at a discordance of 4 %


def planted(random: np.random.Generator, pairs: int, lost: float, gained: float) -> tuple[int, int]:
    """Return b and c of one run: an arm that is the base with answers flipped, ``lost`` and ``gained`` of all pairs on average."""
    base = random.random(pairs) < 0.8
    flips = random.random(pairs) < np.where(base, lost / 0.8, gained / 0.2)
    arm = base ^ flips
    return int(np.count_nonzero(base & ~arm)), int(np.count_nonzero(arm & ~base))


def verdicts(pairs: int, lost: float, gained: float) -> dict[str, float]:
    """Return how often the interval shows "not worse than the margin", "worse" or nothing, and how often McNemar's alarm rings."""
    random, known = np.random.default_rng(pairs), {}
    found = {"pass": 0, "fail": 0, "inconclusive": 0, "alarm": 0}
    for _ in range(RUNS):
        b, c = planted(random, pairs, lost, gained)
        if (b, c) not in known:
            low, high = tango_interval(b, c, pairs, 1 - 2 * ALPHA)
            verdict = "pass" if low > -MARGIN else "fail" if high < -MARGIN else "inconclusive"
            known[b, c] = (verdict, mcnemar_exact(b, c) <= ALPHA)
        verdict, alarm = known[b, c]
        found[verdict] += 1
        found["alarm"] += alarm
    return {name: count / RUNS for name, count in found.items()}


@pytest.mark.parametrize("pairs", [500, 1319])
def test_a_loss_of_two_points_is_found_at_the_stated_power(pairs: int) -> None:
    found = verdicts(pairs, LOST, GAINED)
    stated = power_of(pairs, 0.02, 0.04, design="mcnemar")
    assert found["alarm"] == pytest.approx(stated, abs=0.03)
    assert found["pass"] < 0.005


def test_the_planned_number_of_pairs_finds_the_loss() -> None:
    pairs = pairs_needed(0.02, LOST + GAINED, power=0.9, design="mcnemar")
    assert pairs == 1047
    assert verdicts(pairs, LOST, GAINED)["alarm"] == pytest.approx(0.9, abs=0.03)


def test_enough_pairs_show_the_loss_as_harm() -> None:
    found = verdicts(3000, LOST, GAINED)
    assert found["fail"] > 0.8
    assert found["pass"] == 0.0


def test_fifty_samples_decide_nothing() -> None:
    """Neither with the loss nor without: inconclusive; a pass takes a gain of several answers by chance."""
    for lost, gained in ((LOST, GAINED), (0.02, 0.02), (0.0, 0.0)):
        found = verdicts(50, lost, gained)
        assert found["inconclusive"] > 0.95
        assert found["pass"] < (0.005 if lost > gained else 0.05)
    assert pairs_needed(MARGIN, LOST + GAINED) > 50


def test_an_arm_that_is_as_good_passes_at_the_stated_power() -> None:
    pairs = pairs_needed(MARGIN, 0.02, power=0.8, score=True)
    found = verdicts(pairs, 0.01, 0.01)
    assert found["pass"] == pytest.approx(power_of(pairs, MARGIN, 0.02), abs=0.03)
    assert found["pass"] > 0.78


def test_an_arm_at_the_margin_passes_in_one_run_of_twenty() -> None:
    assert 0.03 < verdicts(2000, 0.025, 0.015)["pass"] < 0.06
