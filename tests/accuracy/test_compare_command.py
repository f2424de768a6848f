"""``kvverify accuracy compare`` from run folders to exit codes and reports."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

pytest.importorskip("scipy")

from kvverify.cli.main import run
from kvverify.events_accuracy import SampleAnswered
from tests.accuracy.arm_logs import Cell, Log, binary, failed, flipped, packed

SCORES = binary(400)
BASE = Log(label="bf16", cells=[Cell("t", 4096, SCORES), Cell("u", 8192, SCORES)])
SAME = packed(BASE)
WORSE = packed(BASE, cells=[replace(c, scores=flipped(SCORES, lost=60)) for c in BASE.cells])


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def compared(capsys: pytest.CaptureFixture[str], *logs: Log, words: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Write the logs, compare them, and return exit code and the document of the last line."""
    paths = [log.write(Path(f"run{n}")) for n, log in enumerate(logs)]
    code = run(["accuracy", "compare", *paths, *words, "--out", "result", "--seed", "3", "--json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, document


@pytest.mark.parametrize(
    ("arm", "code", "verdict"),
    [
        (SAME, 0, "PASS"),
        (WORSE, 1, "FAIL"),
        (replace(SAME, change=failed(set(range(200)))), 3, "INCONCLUSIVE"),
        (replace(SAME, identity={"kv_cache_dtype": "fp8", "template": "u"}), 3, "INCONCLUSIVE"),
    ],
)
def test_exit_codes(capsys: pytest.CaptureFixture[str], arm: Log, code: int, verdict: str) -> None:
    found, document = compared(capsys, BASE, arm)
    assert found == code == document["exit_code"]
    assert document["verdict"] == verdict
    junit = ET.parse("result/junit.xml").getroot()  # noqa: S314 - ours
    bad = int(junit.attrib["failures"]) + int(junit.attrib["errors"])
    assert (bad == 0) == (code == 0)
    assert f"kvverify: {verdict}" in Path("result/report.html").read_text()
    assert f"kvverify: {verdict}" in Path("result/report.md").read_text()


def test_the_document_holds_the_figures(capsys: pytest.CaptureFixture[str]) -> None:
    _, document = compared(capsys, BASE, WORSE)
    found = {e["scope"]: e for e in document["accuracy"]["measured"] if e["event"] == "DifferenceMeasured"}
    assert (found["all"]["base_only"], found["all"]["arm_only"], found["all"]["pairs"]) == (120, 0, 800)
    assert found["all"]["difference"] == pytest.approx(-0.15)
    assert found["all"]["primary"] is True
    claims = document["accuracy"]["tables"]["Claims"]
    assert [(c["arm"], c["score"], c["n"], c["b"], c["c"], c["verdict"]) for c in claims] == [
        ("4bit", "mean of 2 tasks", "800", "120", "0", "FAIL")
    ]
    assert document["accuracy"]["line"].startswith(
        "4bit against bf16, format, less than 1 point: -15.00 points (90% interval -1"
    )


def test_what_is_not_shown_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    scrambled = replace(SAME, label="s", identity={"kv_cache_dtype": "turboquant_4bit_nc", "control": "scramble"})
    _, document = compared(capsys, BASE, SAME)
    assert document["not_covered"] == [
        "4bit: cached reads not shown by a control",
        "no run of the base asked again: what changes by itself is not known",
    ]
    words = []
    for name, log in (
        ("control", replace(scrambled, cells=[replace(c, scores=[0.0] * 400) for c in BASE.cells])),
        ("again", BASE),
    ):
        words += [f"--{name}", replace(log, label=name).write(Path(name))]
    assert run(["accuracy", "compare", "run0", "run1", *words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["not_covered"] == []
    checks = document["accuracy"]["tables"]["Checks"]
    assert [(c["arm"], c["against"], c["what"], c["verdict"]) for c in checks] == [
        ("again", "bf16", "the base asked again", "PASS"),
        ("control", "4bit", "control, must score lower", "PASS"),
    ]
    assert document["accuracy"]["tables"]["Flips"][0]["excess"] == "0.00"


def test_where_the_loss_is(capsys: pytest.CaptureFixture[str]) -> None:
    arm = packed(BASE, cells=[BASE.cells[0], replace(BASE.cells[1], scores=flipped(SCORES, lost=80))])
    _, document = compared(capsys, BASE, arm)
    tables = document["accuracy"]["tables"]
    assert [(t["task"], t["difference"], t["flag"]) for t in tables["Tasks by loss"]] == [
        ("u", "-20.00", "differs"),
        ("t", "0.00", "–"),
    ]
    assert [(t["length"], t["difference"]) for t in tables["Lengths"]] == [
        ("4,096", "0.00"),
        ("8,192", "-20.00"),
    ]
    page = Path("result/report.html").read_text()
    picture = page[page.index("<svg") : page.index("</svg>") + 6]
    ET.fromstring(picture)  # noqa: S314 - ours
    assert "4bit, 8,192: 60.00 (" in picture
    assert "<script" not in page


def test_thirteen_tasks_are_ruler_and_twelve_are_not(capsys: pytest.CaptureFixture[str]) -> None:
    from kvverify.report.suite_mean import RULER_TASKS

    cells = [Cell(task, 4096, binary(40)) for task in sorted(RULER_TASKS)]
    _, document = compared(capsys, replace(BASE, cells=cells), packed(BASE, cells=cells))
    assert document["accuracy"]["tables"]["Claims"][0]["score"] == "RULER mean of 13 tasks"
    log = replace(BASE, cells=cells[1:])
    paths = [log.write(Path("a")), packed(log).write(Path("b"))]
    run(["accuracy", "compare", *paths, "--json"])
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["accuracy"]["tables"]["Claims"][0]["score"] == "mean of 12 tasks"
    assert "RULER" not in document["accuracy"]["line"]


def test_the_names_of_rulers_tasks_are_those_of_the_generator() -> None:
    from kvverify.accuracy.ruler.tasks import TASKS
    from kvverify.report.suite_mean import RULER_TASKS

    assert set(TASKS) <= RULER_TASKS


def test_an_arm_by_itself_has_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    def change(e: SampleAnswered) -> SampleAnswered:
        if e.index == 0:
            return replace(e, error="status 500", score=0.0)
        return replace(e, format_error="no JSON", aspects={"parameters": 0.5}) if e.index == 1 else e

    path = replace(BASE, change=change).write(Path("arm"))
    assert run(["report", path, "--json"]) == 3
    (document,) = json.loads(capsys.readouterr().out.splitlines()[-1])["runs"]
    tables = document["accuracy"]["tables"]
    assert [row["task"] for row in tables["Scores"]] == ["t", "u", "mean of 1 task"]
    assert tables["Scores"][0]["4,096"] == f"{100 * sum(SCORES[1:]) / 399:.2f}"
    first = tables["Samples"][0]
    assert (first["planned"], first["scored"], first["failed"], first["format errors"], first["TTFT"]) == (
        "400",
        "399",
        "1",
        "1",
        "0.50 s",
    )
    assert tables["Missing samples and format errors"][0] == {"what": "failed", "samples": "2", "reason": "status 500"}
    assert tables["Aspects"][0]["mean"] == "50.00"
    assert tables["What was read from the cache"][0]["decode steps"] == "5,600"
    assert {"what": "kv_cache_dtype", "value": "auto"} in tables["Arm"]
    assert document["accuracy"]["line"] == (
        f"arm bf16, suite s: 798 of 800 samples scored, mean of 2 tasks {100 * sum(SCORES[1:]) / 399:.2f}, 2 answers in a wrong format"
    )


def test_the_end_of_the_output_names_claim_and_figures(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [log.write(Path(f"run{n}")) for n, log in enumerate((BASE, WORSE))]
    assert run(["accuracy", "compare", *paths]) == 1
    text = capsys.readouterr()
    assert "Claims" in text.out
    assert "FAIL: 4bit against bf16: harm is shown, -15.00 points" in text.out
    assert "4bit against bf16, format: -15.00 points" in text.err


def test_a_comparison_can_be_made_again_and_reported_again(capsys: pytest.CaptureFixture[str]) -> None:
    code, document = compared(capsys, BASE, SAME)
    assert run(["accuracy", "compare", "--resume", "result", "--json"]) == code == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert again["accuracy"]["tables"] == document["accuracy"]["tables"]
    assert run(["report", "result"]) == 0
    Path("result/events.ndjson").unlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "BASE is missing: the run folder of the arm that the others are compared with"),
        (["arm"], "nothing to compare with BASE: give the run of another arm, or one with --tier"),
        (["arm", "arm"], "run arm: is the same as arm; a run compared with itself shows nothing"),
        (["arm", "none"], "run none: does not exist; expected the folder that an earlier run printed"),
        (["arm", "arm", "--margin", "0"], "Invalid value for '--margin': 0.0 is not in the range 0<x<100."),
        (["--resume", "arm"], "--resume arm: holds a run of accuracy run; expected one of accuracy compare"),
        (["--resume", "arm", "--margin", "2"], "--resume goes on with the run as it was started; leave out --margin"),
    ],
)
def test_what_cannot_be_compared(capsys: pytest.CaptureFixture[str], words: list[str], says: str) -> None:
    BASE.write(Path("arm"))
    assert run(["accuracy", "compare", *words]) == 2
    assert says in capsys.readouterr().err
    assert not Path("runs").exists()


def test_without_scipy_it_is_said_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for command in ("compare", "plan"):
        assert run(["accuracy", command]) == 2
        assert (
            capsys.readouterr().err
            == "kvverify: scipy not installed; accuracy needs: pip install 'kvverify[accuracy]'\n"
        )


def test_shared_documents_can_be_taken_as_given(capsys: pytest.CaptureFixture[str]) -> None:
    base = replace(BASE, cells=[replace(c, clusters=1) for c in BASE.cells])
    arm = packed(base)
    assert compared(capsys, base, arm)[0] == 3
    paths = ["run0", "run1"]
    assert run(["accuracy", "compare", *paths, "--fixed-documents", "--json"]) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert "n 800, on t document 0, u document 0 alone)" in document["accuracy"]["line"]
    assert any("t document 0, u document 0, taken as given" in gap for gap in document["not_covered"])
    size = document["accuracy"]["tables"]["What the samples can show"][0]
    assert (size["independent"], size["needed"], size["by the textbook"], size["smallest margin"]) == (
        "800",
        "268",
        "268",
        "0.34",
    )


def test_an_arm_that_scrambles_nothing_is_no_control(capsys: pytest.CaptureFixture[str]) -> None:
    paths = [log.write(Path(f"run{n}")) for n, log in enumerate((BASE, SAME, replace(BASE, label="again")))]
    assert run(["accuracy", "compare", *paths[:2], "--control", paths[2]]) == 2
    line = f"kvverify: --control {paths[2]}: its control is none; expected a run of accuracy run --control scramble\n"
    assert capsys.readouterr().err == line


def test_without_a_margin_the_suite_s_own_is_tested(capsys: pytest.CaptureFixture[str]) -> None:
    logs = [replace(log, margin=5.0) for log in (BASE, SAME)]
    for words, margin in (((), 0.05), (("--margin", "2"), 0.02)):
        _, document = compared(capsys, *logs, words=(*words, "--draws", "100"))
        (claim,) = [e for e in document["accuracy"]["measured"] if e.get("primary")]
        assert claim["margin"] == margin
        for folder in ("run0", "run1", "result"):
            shutil.rmtree(folder)
