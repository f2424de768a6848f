"""Arms compared: what is claimed, refused and bounded, on logs written as a run writes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("scipy")

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.accuracy.arm import arm_of
from kvverify.accuracy.compare import ComparePlan, compare, read_arms
from kvverify.errors import UsageError
from kvverify.events import Event, GateEvaluated, RunFinished, RunStarted, Verdict
from kvverify.events_accuracy import (
    ArmIncluded,
    ArmsPaired,
    ArmStarted,
    DifferenceMeasured,
    FlipsMeasured,
    IdentityDiffered,
    SampleAnswered,
    SampleLeftOut,
)
from kvverify.stats.equivalence import equivalence
from kvverify.stats.tango import tango_z
from kvverify.verdicts import reasons, verdict_of
from kvverify.verdicts_compare import equivalent, flagged, harmed, shown
from tests.accuracy.arm_logs import Cell, Log, binary, failed, flipped, packed

FORMAT = ComparePlan(base="0", runs=("1",), draws=500)


def compared(plan: ComparePlan, *logs: Log) -> list[Event]:
    """Return the events of a comparison of logs; paths in the plan are their numbers."""
    known = {str(i): (log.events(), f"hash {i}") for i, log in enumerate(logs)}
    events: list[Event] = [RunStarted(command="accuracy compare", version="0", seed=1, options=plan.to_log())]
    compare(read_arms(plan, lambda path: known[str(path)]), plan, 1, events.append)
    return [*events, RunFinished(seconds=1.0)]


def claim(events: list[Event]) -> DifferenceMeasured:
    """Return the one claim."""
    (found,) = [e for e in events if isinstance(e, DifferenceMeasured) and e.primary]
    return found


def texts(events: list[Event], verdict: Verdict) -> str:
    """Return the reasons of a verdict, which the events must have."""
    assert verdict_of(events) is verdict
    return "\n".join(r.text for r in reasons(events))


def log_of(scores: list[float], **changes: object) -> Log:
    """Return the log of a base with one task."""
    return replace(Log(label="bf16", cells=[Cell("t", 4096, scores)]), **changes)  # type: ignore[arg-type]


def test_published_tango_value_decides_a_claim() -> None:
    scores = binary(1319)
    base = log_of(scores)
    e = claim(compared(FORMAT, base, packed(base, cells=[Cell("t", 4096, flipped(scores, lost=17, gained=11))])))
    assert (e.base_only, e.arm_only, e.pairs, e.method) == (17, 11, 1319, "tango")
    assert round(e.z, 5) == 1.29412
    assert e.difference == pytest.approx(-6 / 1319)
    assert e.discordance == pytest.approx(28 / 1319)
    assert not shown(e)
    assert not harmed(e)


def test_equal_arms_pass_from_268_pairs_on_and_not_before() -> None:
    for n, verdict in ((267, Verdict.INCONCLUSIVE), (268, Verdict.PASS)):
        base = log_of(binary(n))
        assert verdict_of(compared(FORMAT, base, packed(base))) is verdict


def test_fifty_samples_are_not_neutral() -> None:
    base = log_of(binary(50))
    text = texts(compared(FORMAT, base, packed(base)), Verdict.INCONCLUSIVE)
    assert "a loss of less than 1 point is not shown, 0.00 points (90% interval -5.13 to +5.13, b 0, c 0, n 50)" in text
    assert "that takes about 268 pairs at this discordance, 218 more" in text


def test_a_loss_beyond_the_margin_is_a_failure() -> None:
    scores = binary(1000)
    base = log_of(scores)
    events = compared(FORMAT, base, packed(base, cells=[Cell("t", 4096, flipped(scores, lost=60, gained=10))]))
    text = texts(events, Verdict.FAIL)
    assert text.startswith("4bit against bf16: harm is shown, -5.00 points (90% interval -6.")
    assert "b 60, c 10, n 1,000), which lies below the margin of -1.00" in text


def test_a_difference_inside_the_margin_is_a_pass_with_a_flag() -> None:
    scores = binary(6500)
    base = log_of(scores)
    events = compared(FORMAT, base, packed(base, cells=[Cell("t", 4096, flipped(scores, lost=30, gained=8))]))
    assert verdict_of(events) is Verdict.PASS
    assert flagged(claim(events))


@pytest.mark.parametrize(("lost", "gained"), [(0, 0), (9, 9), (3, 40), (40, 3), (0, 12)])
def test_equivalent_is_said_where_both_one_sided_tests_hold(lost: int, gained: int) -> None:
    scores = binary(2000)
    base = log_of(scores)
    e = claim(compared(FORMAT, base, packed(base, cells=[Cell("t", 4096, flipped(scores, lost=lost, gained=gained))])))
    assert equivalent(e) == (equivalence(lost, gained, 2000, e.margin).p < e.alpha) == (max(lost, gained) < 20)


@pytest.mark.parametrize(
    ("lost", "gained", "n", "says"),
    [
        (20, 20, 500, "that takes about 4,989 pairs at this discordance, 4,489 more"),
        (25, 10, 2000, "pairs if the loss seen is the true one"),
        (14, 4, 800, "the loss seen is no smaller than the margin, and more than it is not shown either"),
    ],
)
def test_what_is_not_shown_says_what_it_takes(lost: int, gained: int, n: int, says: str) -> None:
    scores = binary(n)
    base = log_of(scores)
    events = compared(FORMAT, base, packed(base, cells=[Cell("t", 4096, flipped(scores, lost=lost, gained=gained))]))
    assert says in texts(events, Verdict.INCONCLUSIVE)


def test_arms_that_differ_in_the_template_are_refused_and_it_is_named() -> None:
    base = log_of(binary(300))
    events = compared(FORMAT, base, packed(base, identity={"kv_cache_dtype": "fp8", "template": "u", "extra": 1}))
    found = {e.variable: (e.base_value, e.arm_value, e.declared) for e in events if isinstance(e, IdentityDiffered)}
    assert found == {
        "kv_cache_dtype": ("auto", "fp8", True),
        "template": ("t", "u", False),
        "extra": ("not stated", "1", False),
    }
    assert not [e for e in events if isinstance(e, DifferenceMeasured)]
    text = texts(events, Verdict.INCONCLUSIVE)
    assert text == (
        "4bit against bf16: not compared: it differs in template (t against u), extra (not stated against 1), "
        "which nobody declared"
    )


def test_an_arm_of_the_same_format_tests_nothing() -> None:
    base = log_of(binary(300))
    text = texts(compared(FORMAT, base, replace(base, label="b")), Verdict.INCONCLUSIVE)
    assert text == "b against bf16: not compared: it does not differ in kv_cache_dtype (auto), so nothing is tested"


def test_another_variable_can_be_declared() -> None:
    base = log_of(binary(300))
    events = compared(replace(FORMAT, vary=("build",)), base, replace(base, label="new", identity={"build": "2"}))
    assert claim(events).effect == "build"
    assert verdict_of(events) is Verdict.PASS


def test_other_samples_are_inconclusive_with_their_numbers() -> None:
    base = log_of(binary(400))
    other = packed(base, cells=[Cell("t", 4096, binary(300)), Cell("u", 4096, binary(50))])
    events = compared(FORMAT, base, other)
    text = texts(events, Verdict.INCONCLUSIVE)
    assert "4bit and bf16 were asked different samples: 300 in both, 100 in bf16 alone, 50 in 4bit alone" in text
    worse = packed(base, cells=[Cell("t", 4096, flipped(binary(300), lost=200)), Cell("u", 4096, binary(50))])
    assert "but the arms cannot be compared" in texts(compared(FORMAT, base, worse), Verdict.INCONCLUSIVE)


def test_a_half_finished_run_is_inconclusive_with_its_counts() -> None:
    base = log_of(binary(500))
    half = packed(base, change=lambda e: e if e.index < 320 else None, ended=False)
    events = compared(FORMAT, base, half)
    text = texts(events, Verdict.INCONCLUSIVE)
    assert "4bit: half finished, 320 of 500 samples have a score; resume its run" in text
    assert claim(events).missing == 180


def test_a_run_that_ended_without_all_samples_is_half_finished_too() -> None:
    base = log_of(binary(500))
    events = compared(FORMAT, base, packed(base, change=lambda e: e if e.index < 499 else None))
    assert "4bit: half finished, 499 of 500" in texts(events, Verdict.INCONCLUSIVE)


def test_both_runs_half_finished_lack_the_same_samples() -> None:
    base = log_of(binary(500), change=lambda e: e if e.index < 100 else None, ended=False)
    e = claim(compared(FORMAT, base, packed(base)))
    assert (e.pairs, e.missing) == (100, 400)
    assert e.low_worst == pytest.approx(-0.83, abs=0.01)
    assert e.high_best == pytest.approx(0.83, abs=0.01)


def test_missing_samples_bound_the_verdict_by_the_worst_case() -> None:
    base = log_of(binary(1000))
    few = compared(FORMAT, base, packed(base, change=failed({1})))
    assert verdict_of(few) is Verdict.PASS
    many = compared(FORMAT, base, packed(base, change=failed(set(range(20)))))
    assert "20 missing samples could make it more" in texts(many, Verdict.INCONCLUSIVE)
    e = claim(many)
    right = sum(binary(1000)[:20])
    assert (e.pairs, e.missing, e.difference) == (980, 20, 0.0)
    assert tango_z(int(right), 0, 1000, -e.low_worst) == pytest.approx(1.6449, abs=1e-3)


def test_missing_samples_bound_harm_by_the_best_case() -> None:
    scores = binary(1000)
    base = log_of(scores)
    cells = [Cell("t", 4096, flipped(scores, lost=60))]
    last = set(range(900, 1000))
    assert verdict_of(compared(FORMAT, base, packed(base, cells=cells))) is Verdict.FAIL
    assert verdict_of(compared(FORMAT, base, packed(base, cells=cells, change=failed({999})))) is Verdict.FAIL
    assert (
        verdict_of(
            compared(FORMAT, log_of(scores, change=failed(last)), packed(base, cells=cells, change=failed(last)))
        )
        is Verdict.INCONCLUSIVE
    )


def test_a_sample_that_was_left_out_is_missing() -> None:
    base = log_of(binary(1000))

    def leave_out(e: SampleAnswered) -> Event:
        why = "longer than the context"
        left_out = SampleLeftOut(task=e.task, length=e.length, index=e.index, key=e.key, reason=why)
        return left_out if e.index < 30 else e

    left = packed(base, change=leave_out)
    events = compared(FORMAT, base, left)
    (arm,) = [e for e in events if isinstance(e, ArmIncluded) and e.label == "4bit"]
    assert (arm.samples, arm.missing, arm.finished) == (1000, 30, True)
    assert claim(events).missing == 30


@pytest.mark.parametrize(
    ("right", "says"), [(0.0, "bf16: at its floor with 0.00 points"), (1.0, "bf16: at its ceiling with 100.00 points")]
)
def test_a_base_that_cannot_lose_is_no_base(right: float, says: str) -> None:
    base = log_of(binary(500, right))
    assert says in texts(compared(FORMAT, base, packed(base)), Verdict.INCONCLUSIVE)


def test_harm_at_the_ceiling_is_harm() -> None:
    base = log_of(binary(500, 1.0))
    worse = packed(base, cells=[Cell("t", 4096, flipped(binary(500, 1.0), lost=40))])
    assert verdict_of(compared(FORMAT, base, worse)) is Verdict.FAIL


def test_one_cluster_has_no_interval() -> None:
    base = replace(log_of([]), cells=[Cell("t", 4096, binary(500), clusters=1)])
    events = compared(FORMAT, base, packed(base))
    e = claim(events)
    assert (e.clusters, e.method, e.low, e.high) == (1, "", -1.0, 1.0)
    text = texts(events, Verdict.INCONCLUSIVE)
    assert (
        "4bit against bf16: no interval: all pairs share one cluster, t document 0: how much clusters vary cannot be seen in one"
        in text
    )


def test_clusters_that_lose_together_count_less() -> None:
    scores = binary(1000, 1.0)
    base = Log(label="bf16", cells=[Cell("t", 4096, scores, clusters=100)])
    together = [0.0 if i % 100 == 3 else s for i, s in enumerate(scores)]  # one document in a hundred is lost
    e = claim(
        compared(replace(FORMAT, margin=3.0), base, packed(base, cells=[Cell("t", 4096, together, clusters=100)]))
    )
    assert (e.clusters, e.method, e.base_only) == (100, "clustered-t", 10)
    assert e.design_effect == pytest.approx(10, rel=0.05)
    assert not shown(e)
    apart = claim(compared(replace(FORMAT, margin=3.0), log_of(scores), packed(log_of(flipped(scores, lost=10)))))
    assert shown(apart)


def test_fractional_scores_use_the_mean_of_tasks() -> None:
    base = Log(label="bf16", cells=[Cell("vt", 4096, [0.8, 0.6] * 200, binary=False), Cell("qa", 4096, binary(100))])
    worse = packed(base, cells=[Cell("vt", 4096, [0.75, 0.6] * 200, binary=False), Cell("qa", 4096, binary(100))])
    e = claim(compared(replace(FORMAT, margin=5.0), base, worse))
    assert e.base_score == pytest.approx((0.7 + 0.8) / 2)
    assert e.difference == pytest.approx(-0.0125)
    assert (e.binary, e.base_only, e.arm_only, e.draws) == (False, -1, -1, 500)
    assert e.low < e.bootstrap_low <= e.difference <= e.bootstrap_high < e.high


def test_few_equal_fractional_scores_prove_nothing() -> None:
    base = Log(label="bf16", cells=[Cell("vt", 4096, [0.8, 0.6] * 25, binary=False)])
    assert "is not shown, 0.00 points" in texts(compared(FORMAT, base, packed(base)), Verdict.INCONCLUSIVE)


def test_scopes_and_holm() -> None:
    cells = [Cell(task, length, binary(200)) for task in ("a", "b", "c") for length in (4096, 8192)]
    worse = [replace(c, scores=flipped(c.scores, lost=8)) if c.task == "b" else c for c in cells]
    base = Log(label="bf16", cells=cells)
    events = compared(FORMAT, base, packed(base, cells=worse))
    found = {e.scope: e for e in events if isinstance(e, DifferenceMeasured)}
    assert set(found) == {
        "all", "task a", "task b", "task c", "length 4096", "length 8192",
        *(f"task {t} length {n}" for t in "abc" for n in (4096, 8192)),
    }  # fmt: skip
    assert [e.scope for e in found.values() if e.primary] == ["all"]
    assert found["task b"].difference == pytest.approx(-0.04)
    assert found["task b"].p_holm == pytest.approx(3 * found["task b"].p_mcnemar)
    assert found["task a"].p_holm == 1.0
    assert found["length 4096"].difference == pytest.approx(-0.04 / 3)
    assert found["all"].difference == pytest.approx(-0.04 / 3)


AGAIN = ComparePlan(base="0", runs=("1",), again="2", draws=500)


def test_flips_beyond_those_of_the_base_itself() -> None:
    scores = binary(2000)
    base = log_of(scores)
    arm = packed(base, cells=[Cell("t", 4096, flipped(scores, lost=30, gained=30))])
    again = replace(base, cells=[Cell("t", 4096, flipped(scores, lost=10, gained=10))])
    events = compared(AGAIN, base, arm, again)
    (flips,) = [e for e in events if isinstance(e, FlipsMeasured)]
    assert (flips.base, flips.arm, flips.pairs) == ("bf16", "4bit", 2000)
    assert (flips.rate, flips.floor) == (0.03, 0.01)
    assert flips.low < flips.excess < flips.high
    assert flips.excess == pytest.approx(0.02)
    assert [e.label for e in events if isinstance(e, ArmIncluded)] == ["bf16", "bf16 (again)", "4bit"]


def test_a_base_that_scores_otherwise_when_asked_again_makes_all_void() -> None:
    scores = binary(2000)
    base = log_of(scores)
    worse = packed(base, cells=[Cell("t", 4096, flipped(scores, lost=200))])
    again = replace(base, cells=[Cell("t", 4096, flipped(scores, lost=40))])
    text = texts(compared(AGAIN, base, worse, again), Verdict.INCONCLUSIVE)
    assert "bf16 (again): the base asked again differs from bf16 by -2.00 points (p 1.8e-12)" in text
    assert "but the arms cannot be compared" in text


def test_an_again_arm_of_another_build_is_refused() -> None:
    base = log_of(binary(300))
    text = texts(compared(AGAIN, base, packed(base), replace(base, identity={"build": "2"})), Verdict.INCONCLUSIVE)
    assert text == "bf16 (again) against bf16: not compared: it differs in build (1 against 2), which nobody declared"


def test_a_base_asked_again_may_share_its_batches_with_others() -> None:
    base = log_of(binary(300), identity={"concurrency": 16})
    arm = packed(base, identity={"kv_cache_dtype": "fp8", "concurrency": 16})
    events = compared(AGAIN, base, arm, replace(base, identity={"concurrency": 4}))
    assert verdict_of(events) is Verdict.PASS


def test_a_format_that_the_server_does_not_tell_can_be_declared() -> None:
    base = log_of(binary(300), identity={"declared kv_cache_dtype": "bf16"})
    plan = replace(FORMAT, vary=("declared kv_cache_dtype",))
    events = compared(plan, base, replace(base, label="q4", identity={"declared kv_cache_dtype": "q4_0"}))
    assert claim(events).effect == "format"
    assert verdict_of(events) is Verdict.PASS


CONTROL = ComparePlan(base="0", runs=("1",), control=("2",), draws=500)
SCRAMBLED = {"kv_cache_dtype": "turboquant_4bit_nc", "control": "scramble"}


def test_a_control_is_held_against_the_arm_that_it_scrambles() -> None:
    base = log_of(binary(400), identity={"control": "none"})
    part = [Cell("t", 4096, [0.0] * 60)]
    control = replace(base, label="scrambled", identity=SCRAMBLED, cells=part)
    events = compared(CONTROL, base, packed(base, identity={**SCRAMBLED, "control": "none"}), control)
    assert [
        (e.base, e.arm, e.part, e.common) for e in events if isinstance(e, ArmsPaired) and e.effect == "control"
    ] == [("4bit", "scrambled", True, 60)]
    assert verdict_of(events) is Verdict.PASS


def test_a_control_must_be_one() -> None:
    base = log_of(binary(300), identity={"control": "none"})
    arm = packed(base, identity={**SCRAMBLED, "control": "none"})
    for known, says in (({"control": "none"}, "none"), ({"control": "raw-kv"}, "raw-kv"), ({}, "none")):
        line = f"--control 2: its control is {says}; expected a run of accuracy run --control scramble"
        with pytest.raises(UsageError, match=line):
            compared(CONTROL, base, arm, replace(base, label="c", identity={**known, "tier": "hbm"}))


def test_a_control_that_changes_nothing_makes_the_run_inconclusive() -> None:
    base = log_of(binary(400), identity={"control": "none"})
    arm = packed(base, identity={**SCRAMBLED, "control": "none"})
    text = texts(compared(CONTROL, base, arm, replace(base, label="s", identity=SCRAMBLED)), Verdict.INCONCLUSIVE)
    assert "s: the control did not lower the score of 4bit for sure: 0.00 points" in text
    assert "was the cache read at all?" in text


@pytest.mark.parametrize(
    ("cache", "says"),
    [
        ((0, 0), "4bit: no token was read from the cache in its stored format, so its scores say nothing about it"),
        (None, "4bit: its run does not say which tokens were read from the cache"),
    ],
)
def test_a_cache_that_was_not_read_makes_no_pass(cache: tuple[int, int] | None, says: str) -> None:
    base = log_of(binary(400))
    assert says in texts(compared(FORMAT, base, packed(base, cache=cache)), Verdict.INCONCLUSIVE)


TIER = ComparePlan(base="0", runs=("1",), tier=("2",), draws=500)


def test_a_tier_is_an_effect_of_its_own_at_the_same_format() -> None:
    scores = binary(600)
    base = log_of(scores)
    arm = packed(base)
    gates = (GateEvaluated(arm="dram", round=0, request=-1),)
    dram = packed(base, "dram", identity={"kv_cache_dtype": "turboquant_4bit_nc", "tier": "dram"}, gates=gates)
    events = compared(TIER, base, arm, dram)
    claims = {e.arm: (e.base, e.effect) for e in events if isinstance(e, DifferenceMeasured) and e.primary}
    assert claims == {"4bit": ("bf16", "format"), "dram": ("4bit", "tier")}
    assert verdict_of(events) is Verdict.PASS
    again = (*gates, GateEvaluated(arm="dram", round=0, request=1, reasons=["hbm hits 32"]))
    assert verdict_of(compared(TIER, base, arm, replace(dram, gates=again))) is Verdict.PASS  # measured once more
    text = texts(compared(TIER, base, arm, replace(dram, gates=again[1:])), Verdict.INCONCLUSIVE)
    assert text == "dram: nothing proves that it was served from its tier: hbm hits 32"
    text = texts(compared(TIER, base, arm, replace(dram, gates=())), Verdict.INCONCLUSIVE)
    assert text == "dram: nothing proves that it was served from its tier"


def test_every_arm_has_to_keep_the_margin() -> None:
    scores = binary(1000)
    base = log_of(scores)
    fp8 = packed(base, "fp8", identity={"kv_cache_dtype": "fp8"})
    bits = packed(base, cells=[Cell("t", 4096, flipped(scores, lost=80))])
    events = compared(ComparePlan(base="0", runs=("1", "2")), base, fp8, bits)
    assert [e.arm for e in events if isinstance(e, DifferenceMeasured) and e.primary] == ["fp8", "4bit"]
    assert texts(events, Verdict.FAIL).startswith("4bit against bf16: harm")


def test_a_sample_asked_again_counts_once_by_its_last_answer() -> None:
    log = log_of(binary(10))
    events = log.events()
    late = [replace(e, score=0.0, error="late") for e in events if getattr(e, "index", -1) == 0]  # type: ignore[call-arg]
    arm = arm_of([*events[:-1], *late, events[-1]], "h", Path("p"), "base")
    assert (len(arm.samples), len(arm.scored), arm.repeats) == (10, 9, 0)


def test_a_question_that_stands_twice_in_the_plan_is_one_pair() -> None:
    log = log_of(binary(10))
    twice = [replace(e, key="k") if getattr(e, "index", -1) in (3, 7) else e for e in log.events()]  # type: ignore[call-arg]
    arm = arm_of(twice, "h", Path("p"), "base")
    assert (arm.planned, arm.repeats, arm.included().missing) == (9, 1, 0)


def _resumed_as(change: Callable[[ArmStarted], ArmStarted]) -> list[Event]:
    events = log_of(binary(4)).events()
    start = next(e for e in events if isinstance(e, ArmStarted))
    return [*events, change(start)]


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ([], "run p: holds no run without an arm; expected the folder of an accuracy run"),
        (
            [RunStarted(command="tier-diff", version="0", seed=1, options={})],
            "run p: holds a run of tier-diff without an arm; expected the folder of an accuracy run",
        ),
        (
            _resumed_as(lambda e: replace(e, label="other")),
            "run p: holds arms 'bf16' and 'other'; expected a run folder for each arm",
        ),
        (
            _resumed_as(lambda e: replace(e, identity={**e.identity, "build": "2"})),
            "run p: arm 'bf16' was resumed with other build; run it anew",
        ),
        (
            _resumed_as(lambda e: replace(e, samples_hash="x")),
            "run p: arm 'bf16' was resumed with other samples; run it anew",
        ),
    ],
)
def test_what_is_no_arm_is_refused(events: list[Event], says: str) -> None:
    with pytest.raises(UsageError) as error:
        arm_of(events, "h", Path("p"), "base")
    assert str(error.value) == says


def test_a_run_is_not_compared_with_itself() -> None:
    events = log_of(binary(4)).events()
    with pytest.raises(UsageError, match="run b: is the same as a; a run compared with itself shows nothing"):
        read_arms(ComparePlan(base="a", runs=("b",)), lambda path: (events, "h"))
    with pytest.raises(
        UsageError, match="nothing to compare with BASE: give the run of another arm, or one with --tier"
    ):
        read_arms(ComparePlan(base="a"), lambda path: (events, "h"))


def test_the_plan_survives_the_log() -> None:
    plan = ComparePlan(base="a", runs=("b", "c"), again="d", tier=("e",), margin=2.0, vary=("x", "y"))
    assert ComparePlan.from_log(plan.to_log()) == plan
    with pytest.raises(UsageError, match=r"the run to resume was made with other options \(base\); start a new one"):
        ComparePlan.from_log({k: v for k, v in plan.to_log().items() if k != "base"})


@settings(max_examples=60)
@given(
    n=st.integers(2, 400),
    lost=st.integers(0, 40),
    gained=st.integers(0, 40),
    missing=st.integers(0, 10),
    clusters=st.sampled_from([0, 2, 7]),
    fractional=st.booleans(),
)
def test_figures_agree_with_each_other(
    *, n: int, lost: int, gained: int, missing: int, clusters: int, fractional: bool
) -> None:
    scores = binary(n, 0.5)
    lost, gained = min(lost, int(sum(scores))), min(gained, n - int(sum(scores)))
    cells = [Cell("t", 4096, scores, clusters=clusters, binary=not fractional)]
    base = Log(label="bf16", cells=cells)
    changed = [replace(cells[0], scores=flipped(scores, lost=lost, gained=gained))]
    gone = set(range(min(missing, n - 1)))
    events = compared(replace(FORMAT, draws=200), base, packed(base, cells=changed, change=failed(gone)))
    e = claim(events)
    assert e.pairs + e.missing == n
    assert e.low <= e.difference <= e.high
    assert e.low_worst <= e.low
    assert e.high_best >= e.high
    assert not (shown(e) and harmed(e))
    assert e.undefined or (e.p_noninferior < e.alpha) == (e.low > -e.margin) or abs(e.low + e.margin) < 1e-6
    assert e.arm_score - e.base_score == pytest.approx(e.difference, abs=1e-9)
    assert verdict_of(events) is not Verdict.PASS or shown(e)


def test_dropping_samples_lowers_n_and_pulls_no_score_towards_0() -> None:
    random = np.random.default_rng(3)
    base = log_of(binary(600))
    gone = set(random.choice(600, 60, replace=False).tolist())
    e = claim(compared(FORMAT, base, packed(base, change=failed(gone))))
    assert (e.pairs, e.missing, e.difference) == (540, 60, 0.0)
    assert e.base_score == e.arm_score == pytest.approx(0.8, abs=0.02)


def test_a_comparison_of_6500_pairs_with_10000_draws_takes_less_than_5_seconds() -> None:
    random = np.random.default_rng(5)
    fractional = [
        Cell(f"f{n}", 32768, random.choice([0, 0.25, 0.5, 0.75, 1], 500).tolist(), binary=False) for n in range(5)
    ]
    cells = [*fractional, *(Cell(f"b{n}", 32768, binary(500)) for n in range(8))]
    worse = [replace(c, scores=[1 - s if random.random() < 0.02 else s for s in c.scores]) for c in cells]
    base = Log(label="bf16", cells=cells)
    logs = [(log.events(), log.label) for log in (base, packed(base, cells=worse))]
    plan = ComparePlan(base="0", runs=("1",))
    began = time.process_time()
    events: list[Event] = []
    compare(read_arms(plan, lambda path: logs[int(str(path))]), plan, 1, events.append)
    assert time.process_time() - began < 5
    (e,) = [e for e in events if isinstance(e, DifferenceMeasured) and e.primary]
    assert (e.pairs, e.draws, e.method) == (6500, 10_000, "clustered-t")
