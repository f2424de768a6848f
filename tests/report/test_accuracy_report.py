"""Reports and verdicts of accuracy runs and comparisons from any events, whatever is missing from them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvverify.event_json import from_json, to_json
from kvverify.events import Event, RunFinished, RunStarted, Verdict
from kvverify.events_accuracy import (
    NOT_JUDGED,
    ArmIncluded,
    ArmsPaired,
    ArmStarted,
    CacheReadStated,
    ContextsScored,
    DifferenceMeasured,
    FlipsMeasured,
    IdentityDiffered,
    SampleAnswered,
    SampleLeftOut,
)
from kvverify.report.accuracy import accuracy_report
from kvverify.report.accuracy_plot import score_picture
from kvverify.report.console import LiveConsole
from kvverify.report.final import summary_json
from kvverify.report.html import render_html
from kvverify.report.junit import junit_xml
from kvverify.report.markdown import render_markdown
from kvverify.report.summary import summarise
from kvverify.verdicts import reasons, verdict_of
from kvverify.verdicts_compare import shown
from tests.policy.recorded import difference
from tests.report.golden import GOLDEN

RUN = Path("run")
ARM = ArmIncluded(
    label="4<bit>",
    role="candidate",
    path="p",
    events_hash="0" * 64,
    identity={"kv_cache_dtype": "q"},
    samples=1000,
    missing=0,
    score=0.8,
    cache_read="7 decode steps",
    packed_reads=7,
)
BASE = replace(ARM, label="bf16", role="base", identity={"kv_cache_dtype": "auto", "model": "m"})
CLAIM = difference(
    half=0.004,
    pairs=1000,
    arm="4<bit>",
    base_only=2,
    arm_only=2,
    discordance=0.004,
    needed=268,
    least_pairs=268,
)
HARM = replace(CLAIM, difference=-0.05, low=-0.06, high=-0.04, low_worst=-0.06, high_best=-0.04, p_mcnemar=0.001)
PAIRED = ArmsPaired(base="bf16", arm="4<bit>", effect="format", common=1000)
PASSING: list[Event] = [BASE, ARM, PAIRED, CLAIM]
COMPARED: list[Event] = [
    *PASSING,
    HARM,
    replace(CLAIM, undefined="one cluster", method=""),
    replace(CLAIM, pairs=0, missing=9, undefined="no pair has both scores"),
    replace(CLAIM, missing=9, draws=100, low_worst=-0.02, bootstrap_low=-0.004, bootstrap_high=0.004),
    replace(CLAIM, scope="task a&b length 4096", primary=False),
    replace(CLAIM, scope="task a&b", primary=False, p_holm=0.001),
    replace(CLAIM, scope="length 4096", primary=False),
    replace(HARM, scope="length 8192", primary=False),
    replace(CLAIM, effect="again", primary=False),
    replace(CLAIM, effect="again", primary=False, p_mcnemar=0.001),
    replace(CLAIM, effect="control", primary=False),
    replace(CLAIM, effect="tier"),
    replace(ARM, finished=False, missing=1000),
    replace(ARM, role="tier", gates=3, gates_open=3, gate_reasons=["hbm hits 32"]),
    replace(ARM, packed_reads=-1, cache_read=""),
    replace(ARM, packed_reads=0, repeats=2, notes=["n"]),
    replace(PAIRED, refused="differs in template (t against u), which nobody declared"),
    replace(PAIRED, only_base=5),
    IdentityDiffered(base="bf16", arm="4<bit>", variable="template", base_value="t", arm_value="u", declared=False),
    FlipsMeasured(base="bf16", arm="4<bit>", pairs=9, rate=0.1, floor=0.0, excess=0.1, low=0.0, high=0.2),
]
ANSWER = SampleAnswered(task="vt", length=4096, index=0, key="k", cluster="", score=0.5, binary=False, prompt_tokens=9)
MEASURED: list[Event] = [
    ArmStarted(
        label="bf16", suite="s", kind="retrieval", identity={"model": "m<1>"}, planned={"vt/4096": 2}, samples_hash="h"
    ),
    ANSWER,
    replace(ANSWER, index=1, key="l", format_error="no JSON", aspects={"parameters": 1.0}),
    replace(ANSWER, index=1, key="l", error="status 500"),
    replace(ANSWER, task="qa/x", length=0),
    SampleLeftOut(task="vt", length=4096, index=1, key="l", reason="longer than the context"),
    ContextsScored(task="vt", total=0.375, contexts={"a<b>": 0.75, "c": 0.0}, samples=3, missing=1, empty=1),
    ContextsScored(task="qa", total=0.0, contexts={}, samples=0, missing=2, empty=2, undefined="no sample has a score"),
    CacheReadStated(
        label="bf16", samples=2, decode_steps=3, hit_tokens=0, continued_tokens=-1, raw_tokens=9, evidence="usage"
    ),
]


def run_of(command: str, *middle: Event) -> list[Event]:
    return [
        RunStarted(command=command, version="0", seed=1, options={}, at=1.0),
        *middle,
        RunFinished(seconds=1.0, at=2.0),
    ]


ANY = st.one_of(
    st.lists(st.sampled_from(COMPARED), max_size=9).map(lambda m: run_of("accuracy compare", *m)),
    st.lists(st.sampled_from(MEASURED), max_size=9).map(lambda m: run_of("accuracy run", *m)),
)


@given(ANY)
def test_any_log_can_be_rendered(events: list[Event]) -> None:
    summary = summarise(events)
    for text in (render_html(summary, RUN), render_markdown(summary, RUN), junit_xml(summary, RUN)):
        assert str(summary.verdict) in text or summary.verdict is Verdict.PASS
        assert "4<bit>" not in text
    assert summary_json(summary, RUN)["accuracy"]["line"]
    console = LiveConsole(console=Console(quiet=True))
    for event in events:
        console.handle(event)


@given(ANY)
def test_junit_without_failures_and_errors_means_pass(events: list[Event]) -> None:
    summary = summarise(events)
    suites = ET.fromstring(junit_xml(summary, RUN).split("?>", 1)[1])  # noqa: S314 - ours
    bad = int(suites.attrib["failures"]) + int(suites.attrib["errors"])
    assert (bad == 0) == (summary.verdict is Verdict.PASS)
    assert (int(suites.attrib["failures"]) > 0) == (summary.verdict is Verdict.FAIL)


@given(st.lists(st.sampled_from(COMPARED), max_size=9))
def test_a_pass_needs_a_claim_that_is_shown_and_nothing_against_it(middle: list[Event]) -> None:
    events = run_of("accuracy compare", *middle)
    if verdict_of(events) is Verdict.PASS:
        claims = [e for e in middle if isinstance(e, DifferenceMeasured) and e.primary]
        assert claims
        assert all(shown(e) for e in claims)
        assert not any(isinstance(e, ArmsPaired) and (e.refused or e.only_base) for e in middle)


def test_the_sound_comparison_passes_and_nothing_at_all_does_not() -> None:
    assert verdict_of(run_of("accuracy compare", *PASSING)) is Verdict.PASS
    (reason,) = reasons(run_of("accuracy compare"))
    assert (reason.verdict, reason.text) == (Verdict.INCONCLUSIVE, "no two arms were compared")
    assert verdict_of(run_of("accuracy compare", *PASSING)[:-1]) is Verdict.INCONCLUSIVE


@pytest.mark.parametrize(
    "figures",
    [
        {"low_worst": -0.0101},
        {"bootstrap_low": -0.02, "draws": 100},
        {"undefined": "one cluster"},
        {"pairs": 267},
        {"base_score": 0.04},
        {"base_score": 0.995},
    ],
)
def test_each_figure_can_keep_a_claim_from_being_shown(figures: dict[str, float]) -> None:
    events = run_of("accuracy compare", BASE, ARM, PAIRED, replace(CLAIM, **figures))  # type: ignore[arg-type]
    assert verdict_of(events) is Verdict.INCONCLUSIVE


def test_a_resumed_comparison_counts_by_its_last_attempt() -> None:
    first, second = run_of("accuracy compare", BASE, ARM, PAIRED, HARM), run_of("accuracy compare", *PASSING)
    assert verdict_of([*first, *second]) is Verdict.PASS
    assert verdict_of([*second, *first]) is Verdict.FAIL


def test_a_picture_needs_two_lengths_and_escapes_its_texts() -> None:
    own = [(e, n) for e, n in ((CLAIM, 4096), (HARM, 8192))]
    picture = ET.fromstring(score_picture(own))  # noqa: S314 - ours
    assert "4<bit>, 8,192: 80.00 (74.00 to 76.00)" in [e.text for e in picture.iter()]
    assert score_picture(own[:1]) == ""
    assert score_picture([(replace(CLAIM, pairs=0), n) for n in (1, 2)]) == ""


def test_other_runs_have_no_accuracy_tables() -> None:
    assert accuracy_report(GOLDEN) is None
    assert "accuracy" not in summary_json(summarise(GOLDEN), RUN)


@pytest.mark.parametrize("event", [*COMPARED, *MEASURED], ids=lambda e: type(e).__name__)
def test_accuracy_events_survive_the_log(event: Event) -> None:
    assert from_json(to_json(event)) == event


def test_a_note_of_several_arms_stands_once() -> None:
    noted = [replace(e, notes=["prefix dropped"]) for e in (BASE, ARM)]
    report = accuracy_report(run_of("accuracy compare", *noted, PAIRED, CLAIM))
    assert report is not None
    assert report.gaps[-1] == "bf16, 4<bit>: prefix dropped"


def test_the_total_over_contexts_is_shown_with_each_context() -> None:
    report = accuracy_report(run_of("accuracy run", *MEASURED))
    assert report is not None
    assert report.line.endswith(", vt over 2 contexts 37.50, qa over 0 contexts n/a")
    tables = {section.title: section.rows for section in report.sections}
    assert tables["Rubrics over contexts"] == [["vt", "37.50", "2", "1", "3", "1"], ["qa", "n/a", "0", "2", "0", "2"]]
    assert tables["Contexts"] == [["vt", "c", "0.00"], ["vt", "a<b>", "75.00"]]
    many = ContextsScored(
        task="t", total=0.5, contexts={f"{n:02}": n / 30 for n in range(30)}, samples=30, missing=0, empty=0
    )
    report = accuracy_report(run_of("accuracy run", MEASURED[0], many))
    assert report is not None
    (each,) = [section for section in report.sections if section.title == "Contexts"]
    assert (len(each.rows), each.rows[0], each.caption[-11:]) == (20, ["t", "00", "0.00"], ", 20 of 30.")


def test_an_answer_that_waits_for_its_judge_is_one_sample_and_no_failure() -> None:
    screen = Console(record=True, width=100, force_terminal=False, file=StringIO())
    console = LiveConsole(console=screen, total=2, unit="sample")
    console.handle(RunStarted(command="accuracy run", version="0", seed=1, options={}, at=0.0))
    waiting = [replace(ANSWER, index=n, score=0.0, error=NOT_JUDGED) for n in (0, 1)]
    judged = [replace(e, error="", score=0.5) for e in waiting]
    for at, event in enumerate([*waiting, *judged], 1):
        console.handle(replace(event, at=20.0 * at))
    text = screen.export_text(clear=False)
    assert "vt 4096: 1 sample of 2" in text
    assert text.count("vt 4096: 2 samples of 2") == 3  # and never more
    assert "failed" not in text
    console.handle(replace(ANSWER, index=1, error="status 500"))
    assert "sample 1 failed: status 500" in screen.export_text()


def test_a_question_that_stands_twice_in_a_plan_was_asked_twice() -> None:
    twice = [ANSWER, replace(ANSWER, index=1)]  # one key
    read = MEASURED[-1]
    assert reasons(run_of("accuracy run", MEASURED[0], *twice, read)) == []
    (reason,) = reasons(run_of("accuracy run", MEASURED[0], twice[0], read))
    assert reason.text == "arm bf16: 1 of 2 samples are missing: 1 not asked"
    left = SampleLeftOut(task="vt", length=4096, index=1, key=ANSWER.key, reason="too long")
    (reason,) = reasons(run_of("accuracy run", MEASURED[0], twice[0], left, read))
    assert reason.text == "arm bf16: 1 of 2 samples are missing: 1 left out, first vt 4096 number 1: too long"
