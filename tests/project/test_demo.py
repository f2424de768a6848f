"""The demo checks itself: an act that ends otherwise than announced is exit 1, and the page says so."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest

from kvverify.cli import demo, main
from kvverify.cli.demo_acts import ACTS, Act
from kvverify.events import Event, FailureFound, RunFinished, RunStarted, Verdict
from kvverify.lab.plants import PLANTS
from kvverify.report.demo import ActEnded, as_announced, closing_line, judged, render_demo
from kvverify.report.folder import RunFolder
from kvverify.report.section import Section
from kvverify.report.summary import Summary, summarise

KERNEL = next(act for act in ACTS if act.name == "kernel")
FAULT = next(act for act in ACTS if act.name == "kernel-fault")


class Links(HTMLParser):
    """Targets and ids of a page, and elements that would load something."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.targets += [str(given["href"])] if tag == "a" else []
        self.ids += [str(given["id"])] if "id" in given else []
        self.loads += [tag] if tag in ("script", "img", "iframe") or "src" in given else []


def ended(name: str = "tiers", **changes: object) -> ActEnded:
    act = ActEnded(
        name=name,
        title="A server & its <tier>",
        explains="why",
        typed=["kvverify lab", "kvverify tier-diff --url http://127.0.0.1:8000"],
        announced=Verdict.FAIL,
        verdict=Verdict.FAIL,
        shown="token 32 became 109",
        otherwise="",
        seconds=3.0,
        folder=f"1-{name}",
        tables=[Section("Differences", "caption", ["arm", "verdict"], [["dram", "FAIL"]])],
    )
    return dataclasses.replace(act, **changes)  # type: ignore[arg-type]


def failed(headline: str) -> Summary:
    found = FailureFound(
        batch=0,
        kernel="torch",
        layout="l",
        kind="wrong-bytes",
        step=2,
        headline=headline,
        details=[],
        path="failures/f.json",
        fingerprint="f",
    )
    events: list[Event] = [RunStarted(command="roundtrip", version="0", seed=1, options={}), found]
    return summarise([*events, RunFinished(seconds=1.0)])


@pytest.mark.parametrize(
    ("announced", "shows", "code", "wrong"),
    [
        (Verdict.FAIL, "cut off", 1, ""),
        (Verdict.FAIL, "swapped", 1, "nothing found says «swapped»"),
        (Verdict.FAIL, "cut off", 0, "exit code 1 was announced, 0 came"),
        (Verdict.PASS, "", 1, "PASS was announced, FAIL came"),
        (Verdict.INCONCLUSIVE, "cut off", 1, "INCONCLUSIVE was announced, FAIL came"),
    ],
)
def test_an_act_ends_as_announced_only_by_verdict_finding_and_exit_code(
    announced: Verdict, shows: str, code: int, wrong: str
) -> None:
    verdict, shown, otherwise = judged(announced, shows, code, failed("scales were cut off"), "last line")
    assert verdict is Verdict.FAIL
    assert wrong in otherwise
    assert bool(otherwise) is bool(wrong)
    assert shown == ("" if wrong else "scales were cut off")


def test_a_command_that_made_no_run_is_an_error_with_its_last_line() -> None:
    verdict, _, otherwise = judged(Verdict.PASS, "", 2, None, "kvverify: no torch")
    assert verdict is Verdict.ERROR
    assert otherwise == "no run was made, exit code 2: kvverify: no torch"


def test_the_page_links_every_report_and_loads_nothing() -> None:
    acts = [ended("a"), ended("b", otherwise="PASS came", verdict=Verdict.PASS, folder="2-b"), ended("c", folder="")]
    page = render_demo(acts, 4, 60.0, {"platform": "here"})
    links = Links(page)
    assert [t for t in links.targets if not t.startswith("#")] == ["1-a/report.html", "2-b/report.html"]
    assert {t[1:] for t in links.targets if t.startswith("#")} <= set(links.ids)
    assert len(links.ids) == len(set(links.ids))
    assert links.loads == []
    assert "2 of 4 acts ended as announced, 1 did not run, in 1 min 0 s" in page
    assert "A server &amp; its &lt;tier&gt;" in page
    assert page.count("<caption>caption</caption>") == 3
    assert 'class="verdict FAIL"' in page
    assert 'class="verdict PASS"' in render_demo([ended()], 1, 1.0, {})


def test_no_act_is_no_success() -> None:
    assert not as_announced([])
    assert closing_line([], 2, 1.0).startswith("0 of 2 acts ended as announced, 2 did not run")


def test_the_acts_are_commands_and_faults_that_exist() -> None:
    assert len({act.name for act in ACTS}) == len(ACTS)
    assert {act.words[0] for act in ACTS} == {"roundtrip", "tier-diff", "isolation", "doctor"}
    known = {plant.id: plant for plant in PLANTS}
    for act in ACTS:
        assert bool(act.shows) is (act.announced is not Verdict.PASS), act.name
        if act.plant:
            assert str(act.announced) == known[act.plant].verdict
            assert act.words[0] in known[act.plant].seen_by


def test_a_planted_fault_is_found_and_shown(
    torch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, document = demo.play([FAULT], RunFolder.create(tmp_path / "demo", "demo"), seed=1)
    text = capsys.readouterr().out
    assert (code, document["as_announced"]) == (0, True)
    assert "FAIL, as announced" in text
    assert "kvverify replay" in text
    assert "\x1b" not in text
    page = (tmp_path / "demo" / "report.html").read_text()
    assert "of the cell were cut off" in page
    assert (tmp_path / "demo" / "1-kernel-fault" / "report.html").is_file()


@pytest.mark.parametrize(
    "act",
    [
        dataclasses.replace(KERNEL, words=FAULT.words),  # a clean kernel that is not
        dataclasses.replace(FAULT, words=(*KERNEL.words[:3], "--examples", "4")),  # a fault that is not there
        dataclasses.replace(FAULT, words=("roundtrip", "--kernel", "none-such")),  # no run at all
    ],
    ids=["not clean", "not found", "no run"],
)
def test_an_act_that_ends_otherwise_is_exit_1(
    torch: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], act: Act
) -> None:
    code, document = demo.play([act], RunFolder.create(tmp_path / "demo", "demo"), seed=1)
    assert (code, document["exit_code"], document["as_announced"]) == (1, 1, False)
    text = capsys.readouterr().out
    assert "NOT AS ANNOUNCED" in text
    assert "0 of 1 act ended as announced" in text
    assert "not as announced" in (tmp_path / "demo" / "report.html").read_text()


def test_an_interrupted_demo_is_130_and_says_what_did_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ends = iter([ended("kernel")])

    def run_act(*_given: object) -> ActEnded:
        if act := next(ends, None):
            return act
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "run_act", run_act)
    code, document = demo.play([KERNEL, FAULT], RunFolder.create(tmp_path / "demo", "demo"), seed=1)
    assert (code, document["as_announced"]) == (130, False)
    assert "1 of 2 acts ended as announced, 1 did not run" in capsys.readouterr().out
    assert (tmp_path / "demo" / "report.html").is_file()


def test_missing_extras_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(demo, "LIBRARIES", ("no_such_torch", "json"))
    assert main.run(["demo"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("kvverify: no_such_torch not installed; the demo needs: pip install 'kvverify[torch,live]'")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_the_whole_demo(torch: ModuleType, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    pytest.importorskip("httpx2")
    pytest.importorskip("prometheus_client")
    out = tmp_path / "demo"
    command = [sys.executable, "-m", "kvverify", "demo", "--out", str(out), "--json"]
    child = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1200)
    assert child.returncode == 0, child.stdout + child.stderr
    document = json.loads(child.stdout.splitlines()[-1])
    assert [act["verdict"] for act in document["acts"]] == [str(act.announced) for act in ACTS]
    page = Links((out / "report.html").read_text())
    reports = [target for target in page.targets if not target.startswith("#")]
    assert len(reports) == len(ACTS)
    assert all((out / target).is_file() for target in reports)
