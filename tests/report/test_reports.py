"""Every report is made from events alone, says the same, and shows hostile names as what they are."""

from __future__ import annotations

import io
import itertools
import json
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import junitparser
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.events import Event, FailureFound, Verdict
from kvverify.report.files import write_reports
from kvverify.report.final import json_line, print_summary, summary_json
from kvverify.report.folder import RunFolder
from kvverify.report.html import render_html
from kvverify.report.junit import junit_xml
from kvverify.report.markdown import render_markdown
from kvverify.report.summary import Summary, summarise
from kvverify.roundtrip.record import run_record
from kvverify.verdicts import verdict_of
from tests.report.golden import (
    GOLDEN,
    HEADLINE,
    LAYOUTS,
    PASSING,
    batch,
    campaign,
    failure,
    fault,
    finished,
    probed,
    started,
)
from tests.report.test_verdict import MIDDLE

RUN = Path("runs/20260921T140000Z-roundtrip")
REPLAY = f"kvverify replay {RUN}/failures/b1-abc123.json"
HOSTILE = "<script>alert(1)</script>\x1b[31m|`*&\"'\ud800\x00"


class Page(HTMLParser):
    """Tags with their attributes, and whether every tag that was opened was closed."""

    VOID = frozenset({"meta", "link", "br"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def console(events: list[Event], report: Path | None = None) -> str:
    return console_of(summarise(events), report)


def console_of(summary: Summary, report: Path | None = None) -> str:
    stream = io.StringIO()
    print_summary(summary, RUN, report, file=stream)
    return stream.getvalue()


def test_numbers_add_up() -> None:
    summary = summarise(GOLDEN)
    batches = [e for e in GOLDEN if type(e).__name__ == "BatchFinished"]
    assert summary.sequences == sum(e.sequences for e in batches) == 65  # type: ignore[attr-defined]
    cells = [c for rows in summary.mixes.values() for row in rows.values() for c in row.values()]
    assert sum(c.compared_bytes for c in cells) == summary.compared_bytes == 4 * 3 * 2**20
    assert sum(c.sequences for c in cells) == sum(summary.lengths.values()) == 65
    assert sum(c.compared_bytes for c in summary.cases) == summary.compared_bytes
    assert summary.steps["store"] == {"torch": 120, "lmcache": 120}
    assert summary.coverage["lmcache"]["turboquant_4bit_nc"]["LBNHC"].sequences == 5
    assert summary.orders == ["LBNHC", "LHBNC"]


def test_a_failure_found_again_is_one_failure() -> None:
    [found] = summarise(GOLDEN).failures
    assert (found.times, found.event.batch) == (2, 1)
    other = replace(failure(), fingerprint="other")
    assert len(summarise([*GOLDEN, other]).failures) == 2
    # the batch that a resume ran again reports its failure again
    assert summarise([failure(), failure()]).failures[0].times == 1


def test_wall_time_counts_a_killed_attempt_up_to_its_last_event() -> None:
    killed = [started(at=100.0), batch(at=130.0)]
    assert summarise(killed).seconds == 30.0
    assert summarise([*killed, started(at=500.0, resumed=True), finished(at=520.0)]).seconds == 50.0
    assert summarise([]).seconds == 0.0


def test_what_was_not_covered_is_said() -> None:
    lines = summarise(GOLDEN).not_covered
    assert "kernel vllm-triton did not run: triton cannot be imported: No module named 'triton'" in lines
    assert "kernel torch: 1 of 3 layouts not met (qwen-fp8-BLHNC)" in lines
    assert "kernel lmcache: layout deepseek-mla-LBNHC refused: no K/V dimension" in lines
    assert "kernel lmcache: host side not checked" in lines
    assert "planted fault F04 short-copy-width not shown with lmcache: owns its tier" in lines
    assert summarise(PASSING).not_covered == []


def test_what_only_another_kernel_met_is_named() -> None:
    events = [*PASSING[:-1], replace(batch("lmcache"), steps={"fill": 1, "load_part": 2, "store": 0}), finished()]
    lines = summarise(events).not_covered
    assert "kernel lmcache: 2 formats met only with another kernel (turboquant_4bit_nc, fp8_e4m3)" in lines
    assert "kernel lmcache: 2 orders met only with another kernel (LBNHC, BLHNC)" in lines
    assert "kernel lmcache: 3 kinds of step met only with another kernel (store, load, check)" in lines
    assert "kernel torch: 1 kind of step met only with another kernel (load_part)" in lines


def test_the_console_shows_coverage_failures_and_verdict() -> None:
    text = console(GOLDEN, RUN / "report.html")
    assert re.search(r"bf16 \+ turboquant_4bit_nc +3\.00 MiB +– +3\.00 MiB +20", text)
    assert re.search(r"Bytes compared, kernel lmcache\s*\n +formats in the layout +LBNHC +LHBNC +all +sequences", text)
    assert re.search(r"F04 short-copy-width +killed by wrong-bytes, 12 examples, 0\.40 s +n/a: owns its tier", text)
    assert HEADLINE in text
    block = text[text.index("FAIL lmcache on") :].split("\n\n")[0].splitlines()
    assert block[0] == "FAIL lmcache on minimax-tq4-LBNHC, wrong-bytes at step 3, found 2 times"
    assert block[-1].strip() == REPLAY
    assert text.splitlines()[-1] == f"report: {RUN}/report.html"
    assert "\nFAIL: 1 of 1 fault killed, 0 survived; 65 sequences, 12.00 MiB compared with 2 kernels" in text
    assert "\x1b" not in text


def test_a_clean_run_on_the_console_ends_with_its_pass() -> None:
    assert console(PASSING).splitlines()[-1] == "PASS: 60 sequences, 9.00 MiB compared with 1 kernel in 20 s"


def test_an_inconclusive_run_says_why() -> None:
    lines = console([started(), finished()]).splitlines()
    assert lines == [
        "INCONCLUSIVE: 0 sequences, 0 B compared with 0 kernels in 20 s",
        "  INCONCLUSIVE: no sequence was executed",
    ]


def test_many_failures_and_many_formats_stay_readable() -> None:
    failures = [failure(number=n, fingerprint=f"f{n}") for n in range(100)]
    batches = [replace(batch(), formats={f"format{n}": 1}, compared_bytes=n) for n in range(60)]
    text = console([started(), *failures, *batches, finished()])
    assert text.count("kvverify replay") == 10
    assert "and 90 failures more in the report" in text
    assert re.search(r"20 more +190 B +400", text)


def test_json_is_one_line_with_everything() -> None:
    line = json_line(summary_json(summarise(GOLDEN), RUN))
    assert "\n" not in line
    document = json.loads(line)
    assert (document["verdict"], document["exit_code"], document["seed"]) == ("FAIL", 1, 42)
    assert document["compared_bytes"] == 4 * 3 * 2**20
    assert document["failures"][0]["replay"] == REPLAY
    assert {(c["kernel"], c["layout"], c["verdict"]) for c in document["layouts"]} >= {
        ("lmcache", "minimax-tq4-LBNHC", "FAIL"),
        ("torch", "minimax-tq4-LBNHC", "PASS"),
        ("torch", "qwen-fp8-BLHNC", None),
    }
    assert document["faults"][0]["outcome"] == "killed"


def read_junit(events: list[Event], folder: Path) -> dict[tuple[str, str], list[Any]]:
    path = folder / "junit.xml"
    path.write_text(junit_xml(summarise(events), RUN), encoding="utf-8")
    xml = junitparser.JUnitXml.fromfile(str(path))
    cases = [case for suite in xml for case in suite]
    assert xml.tests == len(cases)
    assert xml.failures == sum(isinstance(r, junitparser.Failure) for c in cases for r in c.result)
    assert xml.errors == sum(isinstance(r, junitparser.Error) for c in cases for r in c.result)
    return {(case.classname, case.name): case.result for case in cases}


def test_junit_has_a_case_for_each_kernel_and_layout(tmp_path: Path) -> None:
    cases = read_junit(GOLDEN, tmp_path)
    assert {key for key in cases if key[0] == "kvverify.torch"} == {("kvverify.torch", name) for name in LAYOUTS}
    assert cases["kvverify.torch", "minimax-tq4-LBNHC"] == []
    [broken] = cases["kvverify.lmcache", "minimax-tq4-LBNHC"]
    assert isinstance(broken, junitparser.Failure)
    assert broken.message == HEADLINE
    assert broken.text.splitlines()[-1] == REPLAY
    assert isinstance(cases["kvverify.torch", "qwen-fp8-BLHNC"][0], junitparser.Skipped)
    assert isinstance(cases["kvverify.planted-faults", "F04 short-copy-width with lmcache"][0], junitparser.Skipped)
    [whole] = cases["kvverify", "run"]
    assert isinstance(whole, junitparser.Error)
    assert whole.type == "INCONCLUSIVE"


@given(st.lists(st.sampled_from(MIDDLE), max_size=8), st.booleans())
def test_junit_is_clean_exactly_when_the_verdict_is_pass(middle: list[Event], ended: bool) -> None:
    events = [started(), *middle, *([finished()] if ended else [])]
    text = junit_xml(summarise(events), RUN)
    assert ("<failure" in text or "<error" in text) == (verdict_of(events) is not Verdict.PASS)
    assert ("<failure" in text) == (verdict_of(events) is Verdict.FAIL)


def test_the_page_is_self_contained_and_accessible() -> None:
    text = render_html(summarise(GOLDEN), RUN)
    page = Page(text)
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert not {"script", "img", "iframe", "object", "embed", "base", "form"} & set(names)
    assert all(str(attrs.get(a, "data:")).startswith("data:") for _, attrs in page.tags for a in ("src", "href"))
    assert not re.search(r"url\(|@import|https?://", text)
    assert names.count("caption") == names.count("table")
    assert all(attrs.get("scope") in ("col", "row") for tag, attrs in page.tags if tag == "th")
    assert ("html", {"lang": "en"}) in page.tags
    assert any(attrs.get("name") == "viewport" for _, attrs in page.tags)
    assert "prefers-color-scheme: dark" in text
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(set(ids)) == len(ids)
    assert {attrs["aria-labelledby"] for _, attrs in page.tags if "aria-labelledby" in attrs} <= set(ids)
    levels = [int(name[1]) for name in names if re.fullmatch("h[1-6]", name)]
    assert levels[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels))


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_pages_hold_what_they_must(render: Any) -> None:
    text = render(summarise(GOLDEN), RUN).replace("&#39;", "'").replace("\\_", "_")
    for needed in (
        *("FAIL", HEADLINE, REPLAY, "found    00 00", "minimax-tq4-LBNHC", "turboquant_4bit_nc", "LHBNC", "12.00 MiB"),
        *("no K/V dimension", "deepseek-mla-LBNHC", "killed by wrong-bytes, 12 examples, 0.40 s", "n/a: owns its tier"),
        *("triton cannot be imported", "host side not checked", "store", "120", "0.5.6", "42", str(RUN)),
    ):
        assert needed in text, needed


GPU = {
    "name": "AMD Instinct MI355X",
    "architecture": "gfx950",
    "count": 8,
    "torch": "2.9.1",
    "torch_version_hip": "7.1",
    "driver": "6.16",
}
GPU_LINE = "AMD Instinct MI355X, gfx950, 8 visible, torch 2.9.1 for ROCm 7.1, driver 6.16"


def on_gpu() -> list[Event]:
    """A clean run of one kernel on a GPU; another was not there."""
    begun = replace(started(), options={"device": "cuda"})
    seen = replace(probed("memcpy-batch"), provenance={"library": "HIP", "device": GPU["name"], "gpu": GPU})
    return [begun, seen, campaign("memcpy-batch"), batch("memcpy-batch"), finished()]


@pytest.mark.parametrize("render", [render_html, render_markdown, lambda summary, _run: console_of(summary)])
def test_every_report_says_which_gpu_it_was(render: Any) -> None:
    text = render(summarise(on_gpu()), RUN)
    assert text.count(GPU_LINE) == 1
    assert "GPU" not in render(summarise(PASSING), RUN)


def test_the_device_stands_beside_each_kernel() -> None:
    assert '<th scope="row">memcpy-batch</th><td>cuda</td>' in render_html(summarise(on_gpu()), RUN)
    assert "| memcpy-batch | cuda | HIP |" in render_markdown(summarise(on_gpu()), RUN)
    assert "| torch | cpu | lmcache 0.5.6 |" in render_markdown(summarise(PASSING), RUN)
    assert "| vllm-triton | – |" in render_markdown(summarise(GOLDEN), RUN)
    assert summary_json(summarise(on_gpu()), RUN)["gpu"] == GPU
    assert summary_json(summarise(PASSING), RUN)["gpu"] is None


def test_run_json_holds_the_gpu() -> None:
    record = run_record(on_gpu(), {}, {})
    assert record["gpu"] == GPU
    assert record["kernels"]["memcpy-batch"]["library"] == "HIP"
    assert "gpu" not in run_record(PASSING, {}, {})


@pytest.mark.parametrize("events", [[], [started()], PASSING, [finished()], MIDDLE])
def test_any_log_can_be_rendered(events: list[Event]) -> None:
    summary = summarise(events)
    assert Page(render_html(summary, RUN)).open == []
    assert render_markdown(summary, RUN).startswith(f"# kvverify: {summary.verdict}\n")
    assert console(events)


def hostile_run() -> list[Event]:
    bad: FailureFound = replace(
        failure(HOSTILE), layout=HOSTILE, kind=HOSTILE, headline=HOSTILE, details=["```", HOSTILE], path=HOSTILE
    )
    odd_batch = replace(batch(HOSTILE, HOSTILE), formats={HOSTILE: 1}, steps={HOSTILE: 1}, lengths={HOSTILE: 1})
    odd_campaign = replace(campaign(HOSTILE), layouts={HOSTILE: [HOSTILE]}, refused={HOSTILE: HOSTILE}, notes=[HOSTILE])
    odd_probe = replace(
        probed(HOSTILE),
        provenance={
            HOSTILE: HOSTILE,
            "library": HOSTILE,
            "gpu": {"name": HOSTILE, "runtime": 7, "memory_bytes": HOSTILE},
        },
    )
    odd_fault = fault("n/a", HOSTILE, HOSTILE, reason=HOSTILE)
    odd_start = replace(started(command=HOSTILE), version=HOSTILE, options={HOSTILE: HOSTILE})
    return [odd_start, odd_probe, probed(HOSTILE, HOSTILE), odd_campaign, odd_batch, bad, odd_fault, finished()]


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    events = hostile_run()
    summary = summarise(events)
    page = render_html(summary, Path(HOSTILE.replace("\x00", "")))
    assert not any(tag == "script" for tag, _ in Page(page).tags)
    assert "&lt;script&gt;" in page
    markdown = render_markdown(summary, RUN)
    in_fences = "".join(re.findall(r"^(?P<f>`{3,})text\n.*?^(?P=f)$", markdown, re.MULTILINE | re.DOTALL))
    assert in_fences
    outside = re.sub(r"^(`{3,})text\n.*?^\1$", "", markdown, flags=re.MULTILINE | re.DOTALL)
    assert "<script" not in outside
    for text in (page, markdown, console(events)):
        assert not {"\x1b", "\x00", "\ud800"} & set(text)
    assert len(read_junit(events, tmp_path)) == 3
    write_reports(summary, RunFolder(tmp_path))
    assert {p.name for p in tmp_path.iterdir()} == {"report.html", "report.md", "junit.xml"}


def test_ten_thousand_events_render_in_two_seconds(tmp_path: Path) -> None:
    layouts = [f"layout{n}-LBNHC" for n in range(500)]
    events: list[Event] = [started()]
    events += [batch(f"kernel{n % 4}", layouts[n % 500], n) for n in range(9_000)]
    events += [failure(number=n, fingerprint=f"f{n}") for n in range(1_000)]
    began = time.process_time()
    write_reports(summarise([*events, finished()]), RunFolder(tmp_path))
    assert time.process_time() - began < 2.0
