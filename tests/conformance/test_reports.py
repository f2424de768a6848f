"""Comparisons with the reference codecs in every report."""

from __future__ import annotations

import io
from pathlib import Path

from junitparser import JUnitXml

from kvverify.event_json import from_json, to_json
from kvverify.events import CodecCompared, Event, KernelProbed, RunFinished, RunStarted
from kvverify.report.final import print_summary, summary_json
from kvverify.report.html import render_html
from kvverify.report.junit import junit_xml
from kvverify.report.markdown import render_markdown
from kvverify.report.summary import summarise

WRONG = "field k_norm: token 3 (outlier channels), head 1, begins 00 3c"


def compared(what: str, *, different: int = 0, near: int = 0, headline: str = "") -> CodecCompared:
    return CodecCompared(
        at=2.0,
        library="vllm",
        format="turboquant_4bit_nc",
        head_size=128,
        what=what,
        compared_bytes=8844,
        different_bytes=different,
        near_midpoint=near,
        headline=headline,
        seconds=0.5,
    )


def log(*comparisons: CodecCompared) -> list[Event]:
    return [
        RunStarted(at=1.0, command="codecs verify", version="0.1.0", seed=7, options={}),
        KernelProbed(at=1.0, kernel="vllm", available=True, provenance={"library": "vllm", "version": "0.32.0"}),
        KernelProbed(
            at=1.0, kernel="lmcache", available=False, requested=False, reason="LMCache is not installed here"
        ),
        *comparisons,
        RunFinished(at=3.0, seconds=2.0),
    ]


def test_the_event_survives_the_log() -> None:
    event = compared("store fp16", different=2, headline=WRONG)
    assert from_json(to_json(event)) == event


def test_a_passing_run_shows_bytes_and_what_did_not_run() -> None:
    summary = summarise(log(compared("store fp16"), compared("dequant", near=4)))
    out = io.StringIO()
    print_summary(summary, Path("run"), file=out)
    text = out.getvalue()
    assert "17,688" in text
    assert "PASS: 2 comparisons, 17.27 KiB compared with 1 kernel in 2.00 s, 4 numbers within float32 error" in text
    assert "lmcache did not run: LMCache is not installed here" in text
    assert summary_json(summary, Path("run"))["comparisons"][1]["near_midpoint"] == 4


def test_a_difference_is_a_failure_everywhere() -> None:
    summary = summarise(log(compared("store fp16", different=2, headline=WRONG), compared("dequant")))
    assert summary.verdict == "FAIL"
    assert WRONG in render_html(summary, Path("run"))
    assert "outlier channels" in render_markdown(summary, Path("run"))
    suite = JUnitXml.fromstring(junit_xml(summary, Path("run")).encode())
    assert (suite.tests, suite.failures, suite.errors) == (3, 1, 0)
