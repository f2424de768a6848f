"""The verdict: what decides, what can never make a pass, and that order and resumes do not change it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.events import EXIT_CODES, BatchFinished, Event, KernelProbed, ProblemMet, RunFinished, Verdict
from kvverify.reasons import worst
from kvverify.report.summary import summarise
from kvverify.verdicts import reasons, verdict_of
from tests.report.golden import GOLDEN, PASSING, batch, campaign, failure, fault, finished, probed, started

PROBLEM = ProblemMet(at=1.0, where="child", problem="could not be started")
MIDDLE: list[Event] = [
    batch(),
    batch("lmcache"),
    batch(sequences=0, compared_bytes=0),
    probed("torch"),
    probed("lmcache"),
    probed("cuda", "no GPU"),
    campaign("torch"),
    failure(),
    failure("torch"),
    fault("killed"),
    fault("survived"),
    fault("n/a", reason="no streams"),
    PROBLEM,
]
middles = st.lists(st.sampled_from(MIDDLE), max_size=8)


def run(*middle: Event) -> list[Event]:
    return [started(), *middle, finished()]


def test_nothing_at_all_is_inconclusive() -> None:
    assert verdict_of([]) is Verdict.INCONCLUSIVE
    assert verdict_of(run()) is Verdict.INCONCLUSIVE
    assert verdict_of(run(probed("torch"), campaign("torch"))) is Verdict.INCONCLUSIVE


def test_a_clean_run_passes() -> None:
    assert verdict_of(PASSING) is Verdict.PASS
    assert reasons(PASSING) == []


@given(middles)
def test_failures_decide_wherever_they_stand(middle: list[Event]) -> None:
    for decisive in (failure(), fault("survived")):
        position = len(middle) // 2
        assert verdict_of(run(*middle[:position], decisive, *middle[position:])) is Verdict.FAIL
        assert verdict_of([*middle, decisive]) is Verdict.FAIL


@given(st.permutations([failure(), failure("torch"), failure(number=9, fingerprint="f"), batch(), PROBLEM]))
def test_the_order_of_failures_does_not_matter(middle: list[Event]) -> None:
    expected = {
        (r.verdict, r.text)
        for r in reasons(run(failure(), failure("torch"), failure(number=9, fingerprint="f"), PROBLEM))
    }
    assert {(r.verdict, r.text) for r in reasons(run(*middle))} == expected


@given(middles)
def test_a_run_without_end_never_passes(middle: list[Event]) -> None:
    assert verdict_of([started(), *middle]) is not Verdict.PASS
    assert verdict_of([started(), *middle, finished(interrupted=True)]) is not Verdict.PASS
    assert verdict_of([*run(*middle), started(resumed=True)]) is not Verdict.PASS


@given(middles)
def test_adding_bad_news_never_makes_a_verdict_better(middle: list[Event]) -> None:
    bad_news = [failure(), fault("survived"), PROBLEM, probed("other", "not there"), fault("n/a", name="F99")]
    order = [Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.FAIL]
    before = order.index(verdict_of(run(*middle)))
    assert all(order.index(verdict_of(run(*middle, bad))) >= before for bad in bad_news)


@given(middles)
def test_the_verdict_is_that_of_the_first_reason(middle: list[Event]) -> None:
    found = reasons(run(*middle))
    assert verdict_of(run(*middle)) is (found[0].verdict if found else Verdict.PASS)
    assert worst([Verdict.PASS, *(r.verdict for r in found)]) is verdict_of(run(*middle))


@pytest.mark.parametrize(
    ("middle", "verdict", "text"),
    [
        ([batch(), PROBLEM], Verdict.ERROR, "child: could not be started"),
        ([batch(), failure(), PROBLEM], Verdict.FAIL, "kernel lmcache: 1 failure"),
        ([probed("torch"), batch(), probed("lmcache")], Verdict.INCONCLUSIVE, "kernel lmcache executed no sequence"),
        ([batch(), campaign("lmcache")], Verdict.INCONCLUSIVE, "kernel lmcache executed no sequence"),
        ([batch(), probed("cuda", "no GPU")], Verdict.INCONCLUSIVE, "kernel cuda did not run: no GPU"),
        ([batch(sequences=0)], Verdict.INCONCLUSIVE, "no sequence was executed"),
        ([batch(compared_bytes=0)], Verdict.INCONCLUSIVE, "no sequence was executed"),
        (
            [batch(), fault("n/a", reason="no streams"), fault("n/a", "lmcache", reason="own tier")],
            Verdict.INCONCLUSIVE,
            "planted fault F04 short-copy-width was killed with no kernel: no streams; own tier",
        ),
        (
            [batch(), fault("killed"), fault("survived", "lmcache")],
            Verdict.FAIL,
            "planted fault F04 short-copy-width survived with kernel lmcache",
        ),
        (
            [batch(), fault("unknown")],
            Verdict.INCONCLUSIVE,
            "planted fault F04 short-copy-width was killed with no kernel: unknown",
        ),
    ],
)
def test_what_keeps_a_run_from_a_pass(middle: list[Event], verdict: Verdict, text: str) -> None:
    assert verdict_of(run(*middle)) is verdict
    assert reasons(run(*middle))[0].text == text


def test_a_selftest_passes_when_every_fault_is_killed_somewhere() -> None:
    assert verdict_of(run(batch(), fault("killed"), fault("n/a", "lmcache", reason="own tier"))) is Verdict.PASS
    assert verdict_of(run(fault("killed"))) is Verdict.PASS
    # but a kernel whose clean control never ran has not shown that it stays silent
    assert verdict_of(run(probed("torch"), fault("killed"))) is Verdict.INCONCLUSIVE


def test_a_resumed_run_is_judged_as_a_whole() -> None:
    first = [started(), probed("torch"), campaign("torch"), batch()]
    again = [started(resumed=True), probed("torch"), campaign("torch"), batch(number=1), finished()]
    assert verdict_of(first) is Verdict.INCONCLUSIVE
    assert verdict_of([*first, *again]) is Verdict.PASS
    assert verdict_of([*first, finished(interrupted=True), *again]) is Verdict.PASS
    assert verdict_of([*first, failure(), *again]) is Verdict.FAIL


def test_the_last_probe_counts_after_a_resume() -> None:
    torch_missing = probed("torch", "cannot be imported")
    assert verdict_of([started(), torch_missing, *PASSING]) is Verdict.PASS
    assert verdict_of([*PASSING, started(resumed=True), torch_missing, finished()]) is Verdict.INCONCLUSIVE


def test_a_failure_in_the_first_sequence_counts_as_having_run() -> None:
    only_failure = run(probed("lmcache"), failure(), batch("lmcache", sequences=0, compared_bytes=0))
    assert [r.verdict for r in reasons(only_failure)] == [Verdict.FAIL]


def test_the_worst_of_several_runs_decides() -> None:
    assert worst([]) is Verdict.INCONCLUSIVE
    assert worst([Verdict.PASS, Verdict.INCONCLUSIVE]) is Verdict.INCONCLUSIVE
    assert worst([Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.PASS]) is Verdict.ERROR
    assert worst(Verdict) is Verdict.FAIL
    assert EXIT_CODES[worst([Verdict.ERROR, Verdict.FAIL])] == 1


def test_the_golden_run_fails_for_its_reasons() -> None:
    assert [r.text for r in reasons(GOLDEN)] == [
        "kernel lmcache: 1 failure",
        "kernel vllm-triton did not run: triton cannot be imported: No module named 'triton'",
    ]
    without = [replace(e, interrupted=True) if isinstance(e, RunFinished) else e for e in GOLDEN]
    assert "the run was interrupted" in [r.text for r in reasons(without)]


def test_the_only_kernel_that_cannot_run_is_told_of_once() -> None:
    """It stood there twice, as a problem and as a kernel that did not run."""
    problem = ProblemMet(where="kernel cuda", problem="no GPU")
    summary = summarise([started(), probed("cuda", "no GPU"), problem, finished()])
    assert [(r.verdict, r.text) for r in summary.reasons] == [(Verdict.ERROR, "kernel cuda did not run: no GPU")]
    assert summary.not_covered == ["kernel cuda did not run: no GPU"]
    other = replace(problem, problem="the process died")
    texts = [r.text for r in reasons([started(), probed("cuda", "no GPU"), other, finished()])]
    assert texts == ["kernel cuda: the process died", "kernel cuda did not run: no GPU"]


def test_a_kernel_that_nobody_named_may_be_missing() -> None:
    ran = BatchFinished(
        batch=0,
        kernel="torch",
        layout="l",
        order="LBNHC",
        sequences=1,
        steps={},
        formats={},
        lengths={},
        compared_bytes=8,
        moved_bytes=8,
        seconds=1.0,
    )
    missing = KernelProbed(kernel="lmcache", available=False, requested=False, reason="not installed")
    assert verdict_of([ran, missing, RunFinished(seconds=1.0)]) is Verdict.PASS
    assert verdict_of([missing, RunFinished(seconds=1.0)]) is Verdict.INCONCLUSIVE
