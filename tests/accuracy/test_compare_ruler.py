"""Two full arms of a shipped RULER suite must get an interval; what one haystack for all samples can show, and what ten can."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest

pytest.importorskip("scipy")
pytest.importorskip("tokenizers")
pytest.importorskip("wonderwords")

from kvverify.accuracy.compare import ComparePlan, compare, read_arms
from kvverify.accuracy.draw import Draw
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import score
from kvverify.accuracy.suite import load_suite
from kvverify.events import Event, GateEvaluated, RunFinished, RunStarted, Verdict
from kvverify.events_accuracy import DifferenceMeasured, SampleAnswered
from kvverify.report.accuracy import accuracy_report
from kvverify.verdicts import reasons, verdict_of
from kvverify.verdicts_compare import harmed, shown
from tests.accuracy.arm_logs import Cell, Log
from tests.accuracy.ruler.ingredients import context

HARD = 0.25  # of the needles are not found by any arm: the base has room to lose
PACKED = {"kv_cache_dtype": "turboquant_4bit_nc", "control": "none"}


@cache
def samples_of(offsets: object = None) -> tuple[Sample, ...]:
    """Return the samples of niah-2k, with a token for each byte; ``offsets`` in place of the suite's."""
    suite = load_suite("niah-2k")
    if offsets is not None:
        changed = [replace(t, options={"offsets": offsets}) if t.options else t for t in suite.tasks]
        suite = replace(suite, tasks=tuple(changed))
    return tuple(Draw(suite, context()).samples())


@dataclass(frozen=True)
class Asked(Cell):
    """Scores of real samples."""

    samples: Sequence[Sample] = ()

    def _answer(self, index: int, score: float) -> SampleAnswered:
        sample = self.samples[index]
        return replace(super()._answer(index, score), key=sample.key, cluster=sample.cluster)


def arm(
    label: str,
    samples: Sequence[Sample],
    identity: Mapping[str, Any],
    *,
    lost: float = 0.0,
    only: int = 500,
    **more: Any,
) -> Log:
    """Return the log of an arm that finds each needle by chance, a share ``lost`` less often than the base; ``only`` samples of a task."""
    cells: dict[str, list[Sample]] = {}
    for sample in samples:
        if sample.index < only:
            cells.setdefault(sample.task, []).append(sample)
    asked = []
    for task, own in cells.items():
        scored = [score(s, " ".join(_found(s, label, lost))) for s in own]
        binary = all(s.binary for s in scored)
        asked.append(Asked(task, own[0].length, [s.value for s in scored], binary, samples=own))
    return Log(label=label, cells=asked, identity=identity, **more)


def _found(sample: Sample, label: str, lost: float) -> list[str]:
    hard, own = random.Random(sample.key), random.Random(f"{label} {sample.key}")
    return [r for r in sample.references if hard.random() >= HARD and own.random() >= lost]


def compared(plan: ComparePlan, *logs: Log) -> list[Event]:
    known = {str(i): (log.events(), f"hash {i}") for i, log in enumerate(logs)}
    events: list[Event] = [RunStarted(command="accuracy compare", version="0", seed=1, options=plan.to_log())]
    compare(read_arms(plan, lambda path: known[str(path)]), plan, 1, events.append)
    return [*events, RunFinished(seconds=1.0)]


def claims(events: Sequence[Event]) -> dict[str, DifferenceMeasured]:
    return {e.arm: e for e in events if isinstance(e, DifferenceMeasured) and e.primary}


def texts(events: list[Event]) -> str:
    return "\n".join(r.text for r in reasons(events))


PLAIN = {"kv_cache_dtype": "auto", "control": "none"}


def test_full_arms_of_niah_2k_as_they_will_be_run_have_intervals_and_verdicts() -> None:
    samples = samples_of()
    assert len(samples) == 2000
    scrambled = {**PACKED, "control": "scramble", "tier": "hbm"}
    gates = (GateEvaluated(arm="dram", round=0, request=-1),)
    logs = [
        arm("bf16", samples, PLAIN),
        arm("4bit", samples, PACKED, lost=0.001),
        arm("3bit", samples, {**PACKED, "kv_cache_dtype": "turboquant_3bit_nc"}, lost=0.06),
        arm("bf16 again", samples, PLAIN, lost=0.0005),
        arm("dram", samples, {**PACKED, "tier": "dram"}, lost=0.001, only=125, gates=gates),
        arm("scrambled", samples, scrambled, lost=0.9, only=20),
    ]
    plan = ComparePlan(base="0", runs=("1", "2"), again="3", tier=("4",), control=("5",), draws=1000)
    events = compared(plan, *logs)
    found = claims(events)
    assert {label: (e.base, e.effect, e.pairs, e.clusters) for label, e in found.items()} == {
        "4bit": ("bf16", "format", 2000, 2000),
        "3bit": ("bf16", "format", 2000, 2000),
        "dram": ("4bit", "tier", 500, 500),
    }
    assert shown(found["4bit"])
    assert found["4bit"].high - found["4bit"].low < 0.01
    assert harmed(found["3bit"])
    assert verdict_of(events) is Verdict.FAIL
    assert [r.text[:33] for r in reasons(events) if r.verdict is Verdict.FAIL] == ["3bit against bf16: harm is shown,"]
    checks = {e.arm: e for e in events if isinstance(e, DifferenceMeasured) and e.effect in ("again", "control")}
    assert (checks["scrambled"].base, checks["scrambled"].high_best < 0) == ("4bit", True)
    assert "control did not lower" not in texts(events)


def test_a_tier_is_held_against_hits_in_hbm_or_it_is_said_that_it_was_not() -> None:
    samples = samples_of()
    gates = (GateEvaluated(arm="dram", round=0, request=-1),)
    dram = arm("dram", samples, {**PACKED, "tier": "dram"}, only=125, gates=gates)
    plan = ComparePlan(base="0", tier=("1",), draws=200)
    gap = "dram against 4bit: 4bit computed its prompts, so the difference is that of a hit as well; "
    for tier, said in (("none", True), ("hbm", False)):
        report = accuracy_report(compared(plan, arm("4bit", samples, {**PACKED, "tier": tier}), dram))
        assert report is not None
        assert any(line.startswith(gap) for line in report.gaps) is said


def test_an_fp8_arm_between_bf16_and_4_bit_is_one_more_run() -> None:
    samples = samples_of()
    fp8 = {**PLAIN, "kv_cache_dtype": "fp8"}
    logs = arm("bf16", samples, PLAIN), arm("fp8", samples, fp8), arm("4bit", samples, PACKED, lost=0.06)
    scrambled = arm("scrambled", samples, {**PACKED, "control": "scramble", "tier": "hbm"}, lost=0.9, only=20)
    events = compared(ComparePlan(base="0", runs=("1", "2"), control=("3",), draws=200), *logs, scrambled)
    found = claims(events)
    assert {label: (e.base, shown(e), harmed(e)) for label, e in found.items()} == {
        "fp8": ("bf16", True, False),  # what is measured can keep a claim
        "4bit": ("bf16", False, True),  # so the loss is that of 4 bits, and not of being quantised
    }
    (control,) = [e for e in events if isinstance(e, DifferenceMeasured) and e.effect == "control"]
    assert control.base == "4bit"  # the format that was scrambled, not the nearest in score
    report = accuracy_report(events)
    assert report is not None
    verdicts = {case.name: case.verdict for case in report.cases if case.group == "claim"}
    assert verdicts == {
        "fp8 against bf16, format, less than 1 point": Verdict.PASS,
        "4bit against bf16, format, less than 1 point": Verdict.FAIL,
    }


def test_two_packed_formats_are_compared_with_one_of_them_as_the_base() -> None:
    samples = samples_of()
    four = arm("4bit", samples, PACKED, lost=0.01)
    three = arm("3bit", samples, {**PACKED, "kv_cache_dtype": "turboquant_3bit_nc"}, lost=0.013)
    e = claims(compared(ComparePlan(base="0", runs=("1",), draws=200), four, three))["3bit"]
    assert e.p_mcnemar > 0.05
    assert e.needed_to_differ > e.pairs  # how many it takes to tell 3 bits from 4


def test_one_haystack_for_all_samples_has_no_interval_unless_it_is_taken_as_given() -> None:
    samples = samples_of(1)
    logs = arm("bf16", samples, PLAIN), arm("4bit", samples, PACKED, lost=0.001)
    plan = ComparePlan(base="0", runs=("1",), draws=1000)
    events = compared(plan, *logs)
    assert verdict_of(events) is Verdict.INCONCLUSIVE
    assert texts(events) == (
        "4bit against bf16: no interval: one cluster in niah_multikey_1/2048, niah_multivalue/2048, niah_single_2/2048: how much "
        'clusters vary cannot be seen in one; take more of them (RULER\'s essay tasks: offsets = "random"), or claim for this one '
        "alone with --fixed-documents"
    )
    events = compared(replace(plan, fixed_documents=True), *logs)
    assert verdict_of(events) is Verdict.PASS
    assert claims(events)["4bit"].given == "emerson-essays"
    report = accuracy_report(events)
    assert report is not None
    assert "n 2,000, on emerson-essays alone)" in report.line
    assert (
        "samples share emerson-essays, taken as given: claims hold for nothing else, other texts may lose more"
        in report.gaps
    )


def test_ten_haystacks_weigh_too_much_to_show_a_point() -> None:
    samples = samples_of(10)
    same = compared(
        ComparePlan(base="0", runs=("1",), draws=1000), arm("bf16", samples, PLAIN), arm("4bit", samples, PACKED)
    )
    e = claims(same)["4bit"]
    assert (e.difference, e.clusters) == (0.0, 510)
    assert e.smallest_margin == pytest.approx(-e.low, abs=1e-6)
    assert "510 independent samples and documents, of which one weighs too much, could not show less than" in texts(
        same
    )
    assert verdict_of(same) is Verdict.INCONCLUSIVE


def test_shared_documents_that_are_given_are_named_and_not_all_of_them() -> None:
    cells = [Cell("t", 4096, [0.0, 1.0] * 300, clusters=5)]
    base = Log(label="bf16", cells=cells, identity=PLAIN)
    plan = ComparePlan(base="0", runs=("1",), draws=200, fixed_documents=True)
    found = claims(compared(plan, base, replace(base, label="4bit", identity=PACKED)))["4bit"]
    assert found.given == "t document 0, t document 1, t document 2 and 2 more"
    assert (found.method, found.clusters) == ("tango", 600)
