"""The verdict of live runs: what a gate does not prove decides nothing, and no silence is a pass."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.events import (
    ConfigurationChecked,
    Event,
    ExcessMeasured,
    GateEvaluated,
    ProblemMet,
    ReplayCompared,
    RequestAnswered,
    SessionChecked,
    Verdict,
)
from kvverify.verdicts import reasons, verdict_of
from tests.report.golden import finished, started


def run(*middle: Event, command: str = "tier-diff") -> list[Event]:
    return [started(command=command), *middle, finished()]


def answered(arm: str, request: int = 0, error: str = "") -> RequestAnswered:
    return RequestAnswered(arm=arm, round=0, request=request, prompt_hash="p", error=error)


def gate(arm: str, request: int = 0, *reasons_: str) -> GateEvaluated:
    return GateEvaluated(arm=arm, round=0, request=request, reasons=list(reasons_))


def compared(
    arm: str, request: int = 0, *, base: str = "hbm", difference: float = 0.0, what: str = "answers"
) -> ReplayCompared:
    return ReplayCompared(
        base=base,
        arm=arm,
        round=0,
        request=request,
        judged=arm != base + "-again",
        positions=16,
        largest_difference=difference,
        what=what,
    )


def excess(low: float, high: float, floor: float = 0.1) -> ExcessMeasured:
    middle = (low + high) / 2
    return ExcessMeasured(
        base="hbm",
        arm="dram",
        statistic="s",
        requests=20,
        floor=floor,
        value=floor + middle,
        excess=middle,
        low=low,
        high=high,
    )


CLEAN: list[Event] = [
    *(answered(arm) for arm in ("hbm", "hbm-again", "dram")),
    *(gate(arm) for arm in ("hbm", "hbm-again", "dram")),
    compared("hbm-again"),
    compared("dram"),
]


def test_clean_is_a_pass() -> None:
    assert reasons(run(*CLEAN)) == []
    assert verdict_of(run(*CLEAN)) is Verdict.PASS


@given(st.sets(st.integers(0, len(CLEAN) - 1)))
def test_without_any_part_of_the_proof_it_is_no_pass(kept: set[int]) -> None:
    if set(range(3, len(CLEAN))) <= kept:  # the answers themselves are no proof
        kept = kept - {3}
    assert verdict_of(run(*(CLEAN[i] for i in sorted(kept)))) is Verdict.INCONCLUSIVE


def test_a_proved_difference_fails_where_the_floor_is_zero() -> None:
    assert verdict_of(run(*CLEAN[:-1], compared("dram", difference=1e-9))) is Verdict.FAIL
    assert verdict_of(run(*CLEAN, compared("dram", difference=1e-9), compared("dram"))) is Verdict.FAIL


def test_a_difference_that_no_gate_proves_does_not_decide() -> None:
    different = compared("dram", difference=1.0)
    for arm in ("hbm", "dram"):
        assert verdict_of(run(*CLEAN[:-1], gate(arm, 0, "no bytes"), different)) is Verdict.INCONCLUSIVE
    assert verdict_of(run(*CLEAN[:-1], gate("dram", -1, "other clients"), different)) is Verdict.INCONCLUSIVE


def test_the_last_gate_of_a_request_counts() -> None:
    assert verdict_of(run(gate("dram", 0, "no bytes"), *CLEAN)) is Verdict.PASS
    assert verdict_of(run(*CLEAN, gate("dram", 0, "no bytes"))) is Verdict.INCONCLUSIVE


def test_a_later_attempt_proves_nothing_of_an_earlier_comparison() -> None:
    different = compared("dram", difference=1.0)
    assert verdict_of(run(*CLEAN[:5], gate("dram", 0, "no bytes"), CLEAN[-2], different, *CLEAN)) is Verdict.PASS
    assert verdict_of(run(*CLEAN[:-1], different, gate("dram", 0, "no bytes"))) is Verdict.FAIL


def test_a_later_attempt_makes_up_for_what_could_not_be_compared() -> None:
    refused = replace(compared("dram"), refused="no digest")
    assert verdict_of(run(refused, *CLEAN)) is Verdict.PASS
    assert verdict_of(run(*CLEAN, refused)) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (0.01, 0.02, Verdict.FAIL),
        (-0.01, 0.02, Verdict.PASS),
        (0.0, 0.1, Verdict.PASS),
        (-0.2, 0.2, Verdict.INCONCLUSIVE),
    ],
)
def test_with_noise_the_excess_decides(low: float, high: float, verdict: Verdict) -> None:
    noisy = [*CLEAN[:-2], compared("hbm-again", difference=0.1), compared("dram", difference=0.1)]
    assert verdict_of(run(*noisy)) is Verdict.INCONCLUSIVE
    assert verdict_of(run(*noisy, excess(low, high))) is verdict


def test_no_single_difference_decides_among_requests_in_flight() -> None:
    arms = ("hbm-concurrent", "hbm-concurrent-again", "dram-concurrent")
    events = [*CLEAN, *(gate(arm, -1) for arm in arms), compared(arms[1], base=arms[0])]
    assert verdict_of(run(*events, compared(arms[2], base=arms[0]))) is Verdict.PASS
    different = compared(arms[2], base=arms[0], difference=1.0)
    assert verdict_of(run(*events, different)) is Verdict.INCONCLUSIVE
    measured = replace(excess(0.1, 0.2, floor=0.0), base=arms[0], arm=arms[2])
    assert verdict_of(run(*events, different, measured)) is Verdict.FAIL


def test_digests_of_blocks_need_no_floor() -> None:
    noisy = [*CLEAN[:-2], compared("hbm-again", difference=0.1), compared("dram"), compared("dram", what="blocks")]
    assert verdict_of(run(*noisy)) is Verdict.PASS
    assert verdict_of(run(*noisy, compared("dram", what="blocks", difference=1.0))) is Verdict.FAIL


@pytest.mark.parametrize(
    "bad",
    [
        replace(compared("dram", 1), refused="hit lengths 608 and 576"),
        answered("dram", 0, "time-out"),
        answered("filler", 3, "status 500"),
        gate("starved", 0, "hbm hits 32"),
    ],
)
def test_what_is_missing_is_inconclusive(bad: Event) -> None:
    assert verdict_of(run(*CLEAN, bad)) is Verdict.INCONCLUSIVE


def test_a_floor_must_be_there_for_every_judged_request() -> None:
    more = [gate("hbm", 1), gate("dram", 1), compared("dram", 1)]
    assert verdict_of(run(*CLEAN, *more)) is Verdict.INCONCLUSIVE
    assert verdict_of(run(*CLEAN, *more, gate("hbm-again", 1), compared("hbm-again", 1))) is Verdict.PASS


def test_a_problem_is_an_error_until_a_resumed_run_does_better() -> None:
    problem = ProblemMet(where="server", problem="gone")
    assert verdict_of(run(*CLEAN, problem)) is Verdict.ERROR
    resumed = [started(command="tier-diff"), problem, finished(), started(command="tier-diff", resumed=True)]
    assert verdict_of([*resumed, *CLEAN, finished()]) is Verdict.PASS


def session(*, right: bool = True, qualified: bool = True, foreign: str = "") -> SessionChecked:
    return SessionChecked(session="s1", round=0, right=right, qualified=qualified, foreign=foreign)


def test_foreign_content_fails_even_of_a_session_that_did_not_qualify() -> None:
    assert verdict_of(run(session(right=False, qualified=False, foreign="s2"), command="isolation")) is Verdict.FAIL
    assert verdict_of(run(session(right=False), command="isolation")) is Verdict.FAIL
    assert verdict_of(run(session(right=False, qualified=False), command="isolation")) is Verdict.INCONCLUSIVE
    assert verdict_of(run(command="isolation")) is Verdict.INCONCLUSIVE


def test_a_right_answer_without_proof_of_its_tier_is_no_pass() -> None:
    """A log whose options do not say how many sessions there were passed with one answer that nothing proved."""
    assert verdict_of(run(session(), command="isolation")) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    ("outcome", "verdict"), [("ok", Verdict.PASS), ("fault", Verdict.FAIL), ("unknown", Verdict.INCONCLUSIVE)]
)
def test_the_doctor(outcome: str, verdict: Verdict) -> None:
    assert verdict_of(run(ConfigurationChecked(check="seed", outcome=outcome), command="doctor")) is verdict
    assert verdict_of(run(command="doctor")) is Verdict.INCONCLUSIVE
