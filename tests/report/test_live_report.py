"""Reports of live runs: what is shown is what is in the events, whatever is missing from them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from kvverify.event_json import from_json, to_json
from kvverify.events import (
    ConfigurationChecked,
    EngineDescribed,
    Event,
    ExcessMeasured,
    GateEvaluated,
    IsolationMeasured,
    TierFlushed,
    Verdict,
)
from kvverify.report.console import LiveConsole
from kvverify.report.final import print_summary, summary_json
from kvverify.report.html import render_html
from kvverify.report.junit import junit_xml
from kvverify.report.live import live_report
from kvverify.report.markdown import render_markdown
from kvverify.report.summary import summarise
from tests.report.golden import GOLDEN
from tests.report.test_verdict_live import CLEAN, answered, compared, excess, gate, run, session

RUN = Path("run")
DESCRIBED = EngineDescribed(
    engine="lab",
    model="m<1>",
    info={"build": "1.0", "capacity_tokens": {"hbm": 4096}, "options": {"o": 1}},
    notes=["n"],
)
FLUSHED = TierFlushed(tier="hbm", claimed=True, proof="0 hits", poison="48 blocks")
WITH_HITS = GateEvaluated(
    arm="dram", round=0, request=0, counted={"hbm_hit_tokens": 0, "dram_hit_tokens": 192, "loaded_bytes": 2048}
)
EVENTS: list[Event] = [
    DESCRIBED,
    *CLEAN,
    FLUSHED,
    TierFlushed(tier="hbm", claimed=False, detail="no endpoint"),
    WITH_HITS,
    gate("starved", 0, "hbm hits 32"),
    gate("dram-concurrent", -1),
    answered("dram", 1, "status 500"),
    compared("dram", 1, difference=0.5),
    replace(compared("cold", difference=0.5), judged=False),
    compared("dram", what="blocks"),
    excess(-0.1, 0.1),
    replace(answered("dram", 2, "null"), bad_logprob=True),
    session(),
    session(right=False, foreign="session 2"),
    IsolationMeasured(answers=4, qualified=3, right=3, foreign=0, excluded_rate=0.6),
    ConfigurationChecked(check="hash seed", outcome="fault", found="None", breaks="hits", fix="PYTHONHASHSEED=0"),
    ConfigurationChecked(check="log stats", outcome="unknown"),
]


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_any_live_log_can_be_rendered(middle: list[Event]) -> None:
    summary = summarise(run(*middle))
    for text in (render_html(summary, RUN), render_markdown(summary, RUN), junit_xml(summary, RUN)):
        assert str(summary.verdict) in text or summary.verdict is Verdict.PASS
    assert summary_json(summary, RUN)["live"]["line"]
    console = LiveConsole(unit="request", total=9, console=Console(quiet=True))
    for event in run(*middle):
        console.handle(event)


def test_the_tables_hold_what_the_events_do() -> None:
    live = live_report(run(*EVENTS))
    assert live is not None
    tables = {s.title: {row[0]: dict(zip(s.head, row, strict=True)) for row in s.rows} for s in live.sections}
    dram = tables["Arms"]["dram"]
    assert (dram["requests"], dram["failed"], dram["dram hits"], dram["loaded"]) == ("3", "2", "192", "2.00 KiB")
    assert tables["Differences"]["cold"]["verdict"] == "shown, not judged"
    assert tables["Differences"]["hbm-again"]["verdict"] == "noise floor"
    assert tables["Proof of the tier"]["starved"]["missing"] == "hbm hits 32"
    assert tables["Server"]["note"]["value"] == "n"
    assert "2 failed" in live.line


def test_new_prompts_are_shown_where_there_were_any() -> None:
    """A report of an older log stays as it was."""
    alone = IsolationMeasured(answers=4, qualified=3, right=3, foreign=0, excluded_rate=0.6)
    for measured, words in (
        (alone, ""),
        (replace(alone, new_prompts=1500), ", 1,500 prompts that no tier knew computed beside"),
    ):
        live = live_report(run(session(), measured))
        assert live is not None
        assert live.line.endswith(f"3 of 3 answers that count right, 0 foreign{words}")
        table = next(s for s in live.sections if s.title == "Isolation")
        assert len(table.head) == len(table.rows[0]) == (6 if words else 5)
        assert (table.rows[0][-1] == "1,500") is bool(words)


def test_a_pair_that_nothing_proves_is_shown_as_inconclusive() -> None:
    live = live_report(run(*CLEAN[:-2], gate("dram", 0, "no bytes"), *CLEAN[-2:]))
    assert live is not None
    assert {(c.group, c.name): c.verdict for c in live.cases} == {
        ("requests", "answered"): Verdict.PASS,
        ("gate", "hbm"): Verdict.PASS,
        ("gate", "hbm-again"): Verdict.PASS,
        ("gate", "dram"): Verdict.INCONCLUSIVE,
        ("tiers", "dram against hbm, answers"): Verdict.INCONCLUSIVE,
    }


@given(st.lists(st.sampled_from(EVENTS), max_size=12))
def test_junit_without_failures_and_errors_means_pass(middle: list[Event]) -> None:
    summary = summarise(run(*middle))
    suites = ET.fromstring(junit_xml(summary, RUN).split("?>", 1)[1])  # noqa: S314 - ours
    bad = int(suites.attrib["failures"]) + int(suites.attrib["errors"])
    assert (bad == 0) == (summary.verdict is Verdict.PASS)
    assert (int(suites.attrib["failures"]) > 0) >= (summary.verdict is Verdict.FAIL)


def test_a_kernel_run_has_no_live_tables() -> None:
    assert live_report(GOLDEN) is None
    assert "live" not in summary_json(summarise(GOLDEN), RUN)


def test_live_events_survive_the_log() -> None:
    for event in [
        *EVENTS,
        ExcessMeasured(base="hbm", arm="dram", statistic="s", requests=1, floor=0, value=0, excess=0, low=0, high=0),
    ]:
        assert from_json(to_json(event)) == event


def test_the_end_of_the_output_names_arms_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    print_summary(summarise(run(*EVENTS)), RUN)
    out = capsys.readouterr().out
    assert "Arms" in out
    assert "hbm hits 32" in out
    assert "FAIL: 5 requests, 2 failed" in out
