"""The sign-off: four questions, what was tested, what was not covered, made of the committed runs and of recorded ones."""

from __future__ import annotations

import json
import shlex
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import click
import junitparser
import pytest

from kvverify.cli.main import cli, run
from kvverify.cli.page_map import page_map
from kvverify.errors import UsageError
from kvverify.events import Event, FailureFound, RunStarted, Verdict
from kvverify.report.signoff.bytemap import Damage, byte_map, damage
from kvverify.report.signoff.defects import Defect, grouped
from kvverify.report.signoff.document import document
from kvverify.report.signoff.evidence import cut
from kvverify.report.signoff.gather import gather
from kvverify.report.signoff.junit import junit_xml
from kvverify.report.signoff.markdown import render_markdown
from kvverify.report.signoff.plots import bench_points, plots
from kvverify.report.signoff.signoff import Signoff, make_signoff
from tests.policy.recorded import arm, comparison, difference, isolation
from tests.policy.test_release import campaign, selftest
from tests.report.golden import GOLDEN, PASSING
from tests.run_folder import write

RESULTS = Path(__file__).parents[2] / "results"
H200 = [RESULTS / "h200" / name for name in ("roundtrip", "selftest", "minimax", "lmcache-slots")]
LIVE = RESULTS / "live-cpu"


def signoff(paths: Iterable[Path]) -> Signoff:
    return make_signoff(gather(paths), made="2026-12-01", page_of=page_map)


def of_events(folder: Path, *runs: list[Event]) -> Signoff:
    return signoff([write(folder / f"run{n}", events) for n, events in enumerate(runs)])


def verdicts(s: Signoff) -> list[Verdict]:
    return [q.verdict for q in s.questions]


def test_the_committed_h200_runs_make_one_sign_off() -> None:
    s = signoff(H200)
    assert s.verdict is Verdict.FAIL
    assert [q.looked for q in s.questions] == [True, False, False, False]
    assert s.questions[0].answer == (
        "No with vllm-dma, vllm-offload, lmcache-slots: 16 failures of 7 kinds. Yes with the other 8 kernels, on the layouts they met."
    )
    assert s.subject.facts["GPU"][0].startswith("NVIDIA H200, sm_90")
    slots = next(k for k in s.subject.kernels if k.name == "lmcache-slots")
    assert slots.library == "lmcache 0.5.3"
    assert slots.files["lmcache/c_ops.cpython-312-x86_64-linux-gnu.so"].startswith("771f0060e281")
    assert "Nothing ran on a GPU of AMD." in s.gaps.short
    assert any(
        line.startswith("Not run: codecs verify, tier-diff, isolation, doctor, accuracy compare")
        for line in s.gaps.short
    )


def test_every_failure_has_its_replay_line_or_says_that_its_file_is_gone(tmp_path: Path) -> None:
    s = signoff([*H200, write(tmp_path / "survived", selftest("survived"))])
    failures = [d for d in s.defects if not d.title.startswith("planted fault")]
    assert len(failures) == 16
    for d in failures:
        command = d.replay.removeprefix("kvverify replay ")
        assert Path(command).is_file() or d.replay.startswith("no replay: failures/"), d
    assert sum(d.replay.startswith("kvverify replay") for d in failures) == 15
    assert [d.replay for d in s.defects if d.title.startswith("planted fault")] == [
        "kvverify roundtrip --kernel torch --plant F00"
    ]


def test_failures_of_one_kind_stand_together() -> None:
    groups = signoff(
        [RESULTS / "h200" / name for name in ("roundtrip", "offload-dma", "live/lmcache-in-process")]
    ).groups
    assert [(g.title, g.runs) for g in groups] == [
        ("vllm-dma: wrong-bytes, 7 failures on 4 layouts", "roundtrip, offload-dma"),
        ("vllm-dma: race, 2 failures", "roundtrip, offload-dma"),
        ("vllm-offload: race, 2 failures on 2 layouts", "roundtrip, offload-dma"),
        ("vllm-offload: wrong-bytes, 5 failures on 5 layouts", "roundtrip, offload-dma"),
        ("lmcache-slots: wrong-bytes, 3 failures on 3 layouts", "roundtrip"),
        ("lmcache-slots on lbnhc-bf16x1+fp16x1-h4-d128-n16-b589824-sparse15: crashed at step 1", "roundtrip"),
        ("lmcache-in-process: tiers, 6 failures", ""),
    ]
    assert all(g.first.steady for g in groups)  # shown in full is one that a replay shows again
    assert sum(not d.steady for g in groups for d in g.others) == 4
    cut = groups[0].cut(2)
    assert (len(cut.others), cut.more, cut.title) == (2, 4, groups[0].title)


def test_a_kind_of_failure_is_known_when_all_of_it_is() -> None:
    one = Defect("run", "t", "h", [], "r", known="not called", group="k: race")
    (group,) = grouped([one, replace(one, known="")])
    assert (group.known, group.first.known) == ("", "")
    known, other = grouped([replace(one, group="b: race"), replace(one, known="", group="a: race")])
    assert (known.name, other.name, other.known) == ("a: race", "b: race", "not called")


def test_every_command_that_shows_a_failure_again_is_one(tmp_path: Path) -> None:
    """The command line takes it: it is parsed, down to its options, and not run."""
    compared = [e for e in comparison(difference(value=-0.03)) if not isinstance(e, RunStarted)]
    options = {
        "base": str(tmp_path),
        "runs": [str(tmp_path)],
        "again": str(tmp_path),
        "tier": [str(tmp_path)],
        "control": [],
        "margin": 2.0,
    }
    start = RunStarted(at=1.0, command="accuracy compare", version="0", seed=3, options=options)
    paths = [*H200, write(tmp_path / "cost", [start, *compared]), write(tmp_path / "shared", isolation(foreign=1))]
    paths.append(write(tmp_path / "survived", selftest("survived")))
    s = signoff([*paths, *(LIVE / name for name in ("lmcache-skipped", "doctor"))])
    lines = [d.replay for d in s.defects if not d.replay.startswith("no replay")]
    assert {line.split()[1] for line in lines} == {
        "replay",
        "roundtrip",
        "accuracy",
        "isolation",
        "tier-diff",
        "doctor",
    }
    for line in lines:
        parse(cli, shlex.split(line)[1:])
    assert (
        f"kvverify accuracy compare {tmp_path} {tmp_path} --again {tmp_path} --tier {tmp_path} --margin 2.0 --seed 3"
        in lines
    )


def parse(command: click.Command, arguments: list[str]) -> None:
    """Parse arguments as the command line would, down to the last command; click raises where it cannot."""
    with command.make_context(command.name or "kvverify", list(arguments)) as context:
        if isinstance(command, click.Group):
            name, inner, rest = command.resolve_command(context, arguments)
            assert inner is not None, name
            parse(inner, rest)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ([LIVE / "lmcache"], ["INCONCLUSIVE", "PASS", "PASS", "INCONCLUSIVE"]),
        ([LIVE / "lmcache-skipped"], ["INCONCLUSIVE", "PASS", "FAIL", "INCONCLUSIVE"]),
        ([LIVE / "example-SignByte"], ["INCONCLUSIVE", "PASS", "FAIL", "INCONCLUSIVE"]),
        ([LIVE / "no-connector"], ["INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE"]),
        ([RESULTS / "clean-campaigns"], ["PASS", "INCONCLUSIVE", "INCONCLUSIVE", "INCONCLUSIVE"]),
        ([RESULTS / "selftest"], ["INCONCLUSIVE"] * 4),
    ],
)
def test_questions_of_committed_runs(runs: list[Path], expected: list[str]) -> None:
    assert [str(v) for v in verdicts(signoff(runs))] == expected


@pytest.mark.parametrize(
    ("events", "number"),
    [(campaign(), 1), (isolation(), 3), (comparison(difference()), 4), (comparison(difference("tier")), 3)],
)
def test_a_question_that_no_run_looked_at_is_inconclusive(tmp_path: Path, events: list[Event], number: int) -> None:
    s = of_events(tmp_path, events)
    for q in s.questions:
        if q.number == number:
            assert (q.verdict, q.looked) == (Verdict.PASS, True), q
        else:
            assert q.verdict is Verdict.INCONCLUSIVE
            assert q.looked is (q.number == 2 and number == 3 and bool(q.runs))
    assert s.verdict is Verdict.INCONCLUSIVE


def test_without_a_policy_all_four_questions_decide(tmp_path: Path) -> None:
    live = gather([LIVE / "lmcache"])[0].path
    paths = [write(tmp_path / "bytes", campaign()), write(tmp_path / "cost", comparison(difference()))]
    s = signoff([*paths, live])
    assert verdicts(s) == [Verdict.PASS] * 4
    assert s.verdict is Verdict.PASS
    assert signoff([*paths, live, write(tmp_path / "check", selftest("survived"))]).verdict is Verdict.FAIL


@pytest.mark.parametrize(
    ("measured", "verdict", "answer"),
    [
        (difference(value=-0.002), Verdict.PASS, "Less than 1 point: -0.20 points"),
        (difference(value=-0.008), Verdict.INCONCLUSIVE, "Not decided: -0.80 points"),
        (difference(value=-0.03), Verdict.FAIL, "More than the margin of 1 point: -3.00 points"),
    ],
)
def test_what_the_format_costs(tmp_path: Path, measured: Event, verdict: Verdict, answer: str) -> None:
    q = of_events(tmp_path, comparison(measured)).questions[3]  # type: ignore[arg-type]
    assert q.verdict is verdict
    assert q.answer.startswith(answer)


def test_the_cost_of_each_format_is_named_the_largest_loss_first() -> None:
    """The answer named fp8's -1.83 points alone, the first arm's, and called them more than the margin."""
    q = signoff([RESULTS / "h200" / "accuracy" / "compare-formats"]).questions[3]
    assert q.verdict is Verdict.FAIL
    assert q.answer == (
        "More than the margin of 1 point: tq3 -23.12 points (90% interval -24.71 to -21.56), tq4 -12.70 points (90% interval "
        "-14.09 to -11.34). Not decided: fp8 -1.83 points (90% interval -2.69 to -0.98), margin 1 point."
    )
    assert dict(q.figures)["tokens read in the stored format"].startswith("bf16 3,9")


def test_nothing_run_is_inconclusive(tmp_path: Path) -> None:
    assert signoff([]).verdict is Verdict.INCONCLUSIVE
    assert verdicts(of_events(tmp_path, [])) == [Verdict.INCONCLUSIVE] * 4


def test_a_run_named_twice_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a", PASSING)
    with pytest.raises(UsageError, match=r"its events are those of .*; name each run once"):
        gather([path, path])


def test_runs_of_one_name_are_told_apart() -> None:
    runs = gather([RESULTS / "h200" / "selftest", RESULTS / "selftest"])
    assert [run.name for run in runs] == ["h200/selftest", "results/selftest"]


def test_other_builds_are_admitted(tmp_path: Path) -> None:
    s = of_events(tmp_path, comparison(difference()), comparison(difference(), identity={"build": "vllm 0.26.0"}))
    assert (
        "The runs differ in build (vllm 0.32.0; vllm 0.26.0): none of these was tested by all of them." in s.gaps.short
    )


def test_servers_stand_apart_with_what_asked_them_and_what_did_not() -> None:
    s = signoff(
        [RESULTS / "h200" / "live" / name for name in ("native-bf16", "native-tq4", "isolation-bf16", "doctor")]
    )
    first, second = s.subject.servers
    assert (first.engine, first.formats, first.build) == ("vllm-native", "bf16", "vllm 0.26.0")
    assert first.tiers == "hbm of 16,384 tokens, dram of 46,603 tokens"
    assert dict(first.runs) == {"native-bf16": "tier-diff", "isolation-bf16": "isolation", "doctor": "doctor"}
    assert dict(second.runs) == {"native-tq4": "tier-diff"}
    of = "of vllm-native with bf16, turboquant_4bit_nc"
    assert [line for line in s.gaps.short if line.startswith("Not asked of every server")] == [
        f"Not asked of every server: isolation {of}.",
        f"Not asked of every server: doctor {of}.",
    ]
    assert not any("differ in engine" in line for line in s.gaps.short)


def test_what_several_runs_say_is_told_apart() -> None:
    s = signoff([RESULTS / "h200" / "live" / name for name in ("isolation-bf16", "isolation-tq4-first")])
    answers = s.questions[2]
    assert answers.answer == "No in isolation-tq4-first. Yes in isolation-bf16."
    assert answers.reasons == [
        "FAIL: isolation-tq4-first: 35 answers of qualified sessions are wrong, first session 15, round 3"
    ]
    figures = document(s)["questions"][2]["figures"]
    assert figures["isolation-bf16"].startswith("658 of 658")
    assert figures["isolation-tq4-first"].startswith("623 of 658")


def test_the_map_is_of_the_page_with_the_least_damage_and_of_a_whole_one_only_alone(tmp_path: Path) -> None:
    (whole,) = signoff([RESULTS / "h200" / "offload-dma", RESULTS / "h200" / "lmcache-slots"]).maps
    assert "lmcache-slots" in whole.note  # a page of five fields tells more than one of two

    folder = tmp_path / "run"
    failure = FailureFound(
        batch=0,
        kernel="k",
        layout="l",
        kind="wrong-bytes",
        step=0,
        headline="h",
        details=[],
        path="f.json",
        fingerprint="x",
    )
    path = write(folder, [RunStarted(command="roundtrip", version="0", seed=0, options={}), failure])
    recipe = {"layers": [{"kv_format": "bf16", "heads": 2, "head_size": 128}], "version": 1}
    place = "9 wrong bytes: block 0, layer 0 (bf16), token 3, head 1, byte 130 of the cell (v); unknown"
    outcome = {"headline": place, "first": {"layer": "layers.0", "block": 0}}
    (path / "f.json").write_text(json.dumps({"recipe": recipe, "outcome": outcome}))
    (partly,) = signoff([RESULTS / "h200" / "offload-dma", path]).maps
    assert "byte 130 of the cell" in partly.note


def test_the_byte_map_shows_what_the_failure_names() -> None:
    name = "failures/lmcache-slots-00005-wrong-bytes-f9106a7a8f60.json"
    data = json.loads((RESULTS / "h200" / "roundtrip" / name).read_text())
    page = page_map(data["recipe"], data["outcome"]["first"]["layer"])
    assert page is not None
    assert [(f.name, f.cell_byte, f.length) for f in page.fields] == [
        ("k", 0, 32),
        ("k_scale", 32, 4),
        ("v", 36, 32),
        ("v_scale", 68, 4),
    ]
    assert (page.heads, page.tokens, page.page_bytes, page.kv_format) == (2, 16, 2304, "nvfp4")
    hurt = damage(data, page, "kvverify replay x")
    assert hurt.first == (0, 0, 0)
    assert (hurt.heads, hurt.tokens, hurt.cell) == (((0, 1),), ((0, 15),), ((0, 71),))
    svg = str(byte_map(page, hurt, "m").svg)
    assert svg.count('class="damage"') == 2
    assert "first wrong byte: byte 0 of the cell" in svg


@pytest.mark.parametrize(
    ("headline", "expected"),
    [
        (
            "9 wrong bytes: block 0, layer 0 (bf16), token 3, 7-9, head 1, byte 130 of the cell (v); unknown",
            (((1, 1),), ((3, 3), (7, 9)), ((130, 130),)),
        ),
        (
            "9 wrong bytes: block 0, layer 0-1 (bf16, nvfp4), token 3, head 1, bytes 0-9 of the cell (k); unknown",
            ((), (), ()),
        ),
        ("9 wrong bytes: block 0, layer 0 (bf16), whole pages; unknown", (((0, 1),), ((0, 15),), ((0, 511),))),
        ("9 wrong bytes: the guard behind the buffer; token 1, head 1, byte 0 of the cell", ((), (), ())),
        ("prepare raised RuntimeError", ((), (), ())),
    ],
)
def test_damage_is_read_from_the_headline_and_from_nothing_after_it(
    headline: str, expected: tuple[object, ...]
) -> None:
    recipe = {"layers": [{"kv_format": "bf16", "heads": 2, "head_size": 128}], "version": 1}
    page = page_map(recipe, "")
    assert page is not None
    hurt = damage({"outcome": {"headline": headline, "first": {}}}, page, "")
    assert (hurt.heads, hurt.tokens, hurt.cell) == expected
    assert hurt.first is None


def test_a_page_without_damage_is_that_of_a_compared_layout() -> None:
    (figure,) = signoff([RESULTS / "clean-campaigns"]).maps
    assert "No failure damaged it." in figure.note
    assert 'class="damage"' not in figure.svg


def test_recipes_that_have_no_cells_or_are_not_understood_have_no_map() -> None:
    assert page_map({"version": 99}, "") is None
    state = {"layers": [{"kv_format": "mamba_state", "heads": 1, "head_size": 64}], "version": 1}
    page = page_map(state, "")
    assert page is None or page.fields
    hurt = Damage("w", "h", "r", first=(500, 0, 0), heads=((500, 501),), tokens=((0, 1),), cell=((0, 1),))
    full = page_map({"layers": [{"kv_format": "bf16", "heads": 40, "head_size": 8}], "version": 1}, "")
    assert full is not None
    assert 'class="first"' not in byte_map(full, hurt, "m").svg  # beyond the rows that are drawn


def test_pictures_say_in_words_what_they_show(tmp_path: Path) -> None:
    s = of_events(tmp_path, arm("bf16", n=200), arm("4bit", n=200, wrong=range(20)))
    score = s.plots[0]
    assert "bf16: all 100.0 (98.1 to 100.0, n 200)" in score.note
    assert "4bit: all 90.0 (85.1 to 93.4, n 200)" in score.note
    by_length = [
        difference(scope="length 16384", primary=False),
        difference(value=-0.02, scope="length 32768", primary=False),
    ]
    note = of_events(tmp_path / "b", comparison(*by_length)).plots[1].note
    assert "4bit against bf16: 16k +0.00 (-0.50 to +0.50), 32k -2.00 (-2.50 to -1.50)" in note


def test_pictures_of_several_live_runs_keep_them_apart() -> None:
    names = ("native-bf16", "lmcache-in-process")
    figures = {f.title: f for f in signoff([RESULTS / "h200" / "live" / name for name in names]).plots}
    note = figures["First divergence"].note
    assert "lmcache-in-process: dram against hbm: 8 of 8 diverge" in note
    assert "none diverges: native-bf16: cold against hbm" in note
    tokens = figures["Tokens by tier"]
    assert tokens.lead == "Prompt tokens of the requests whose tier was looked at."
    assert tokens.figures[2] == "native-bf16: dram hbm 0, dram 1,264, disk 0, computed 128"


def test_pictures_of_a_live_run() -> None:
    figures = {f.title: f for f in signoff([LIVE / "lmcache-skipped"]).plots}
    assert "dram against hbm: 1 of 1 diverge" in figures["First divergence"].note
    assert "partial against hbm: largest 1.68 over 1 positions" in figures["Logprob difference by position"].note
    assert "lmcache-skipped: dram hbm 0, dram 192, disk 0, computed 16" in figures["Tokens by tier"].note
    assert all(bool(figures[title].svg) for title in ("First divergence", "Tokens by tier"))
    equal = {f.title: f for f in signoff([LIVE / "lmcache"]).plots}
    assert equal["Logprob difference by position"].note.startswith("All logprobs are equal bit for bit, in 6 pairs")
    assert not equal["Logprob difference by position"].svg


def test_error_by_size_comes_from_the_bench() -> None:
    points = bench_points(json.loads((RESULTS / "codecs" / "bench-cpu.json").read_text()))
    figure = plots([], points)[-1]
    assert figure.svg.count("<title>") >= len(points)
    assert "turboquant_4bit_nc: 70 bytes" in figure.note
    damaged: list[object] = [[], {}, {"rows": [{}]}]
    for bad in damaged:
        with pytest.raises(ValueError, match="row"):
            bench_points(bad)


def test_junit_is_read_by_others_and_inconclusive_is_an_error(tmp_path: Path) -> None:
    s = signoff([*H200, LIVE / "lmcache"])
    suites = junitparser.JUnitXml.fromstring(junit_xml(s).encode())
    results = {case.name: case.result for suite in suites for case in suite}
    kinds = {name: type(result[0]).__name__ if result else "pass" for name, result in results.items()}
    assert kinds["1. Do the bytes survive the copy, and nothing else change?"] == "Failure"
    assert kinds["2. Did the request really come from the lower tier?"] == "pass"
    assert kinds["4. What does the format cost?"] == "Error"
    assert kinds["sign-off"] == "Failure"
    root = ET.fromstring(junit_xml(of_events(tmp_path, GOLDEN)))  # noqa: S314 - ours
    assert root.get("errors") == "3"


def test_json_holds_everything_and_cuts_nothing() -> None:
    s = signoff(H200)
    data = json.loads(json.dumps(document(s), default=str))
    assert data["exit_code"] == 1
    assert len(data["tables"]["Layouts by kernel"]) == 181
    assert data["runs"][0]["events_sha256"] == s.runs[0].log_hash
    assert len(data["failures"]) == len(s.defects)
    assert cut(s.sections[0]) is s.sections[0]


def test_markdown_has_the_first_screen_and_every_failure(tmp_path: Path) -> None:
    text = render_markdown(of_events(tmp_path, GOLDEN, comparison(difference())))
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert headings[:5] == [
        "# kvverify sign-off: FAIL",
        "## What was tested",
        "## The four questions",
        "## Not covered",
        "## Failures",
    ]
    assert "no replay: failures/b1-abc123.json is not in the run folder" in text


def test_the_command_writes_a_new_folder_beside_the_runs_and_never_over_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [str(write(tmp_path / "a", campaign())), str(write(tmp_path / "b", selftest("killed")))]
    assert run(["report", *paths]) == 3
    first = tmp_path / "signoff"
    assert {p.name for p in first.iterdir()} == {
        "signoff.html",
        "signoff.md",
        "signoff.xml",
        "signoff.json",
        "manifest.json",
    }
    before = (first / "signoff.json").read_bytes()
    assert run(["report", *paths]) == 3
    assert (tmp_path / "signoff-2" / "signoff.html").is_file()
    assert run(["report", *paths, "--out", str(first)]) == 2
    assert "holds a sign-off (signoff.html); name a new folder" in capsys.readouterr().err
    assert run(["report", *paths, "--out", str(tmp_path / "a")]) == 2
    assert "holds a run (events.ndjson)" in capsys.readouterr().err
    assert (first / "signoff.json").read_bytes() == before
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["events.ndjson"]


def test_one_changed_byte_of_a_log_is_found(tmp_path: Path) -> None:
    paths = [write(tmp_path / "a", campaign()), write(tmp_path / "b", selftest("killed"))]
    run(["report", *map(str, paths), "--out", str(tmp_path / "out")])
    assert run(["verify-report", str(tmp_path / "out")]) == 0
    log = paths[0] / "events.ndjson"
    data = bytearray(log.read_bytes())
    data[100] ^= 1
    log.write_bytes(data)
    assert run(["verify-report", str(tmp_path / "out")]) == 1


def test_bad_bench_files_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(write(tmp_path / "a", campaign())), str(write(tmp_path / "b", selftest("killed")))]
    (tmp_path / "bench.json").write_text("{}")
    assert run(["report", *paths, "--bench", str(tmp_path / "bench.json")]) == 2
    assert "not what codecs bench writes (no rows)" in capsys.readouterr().err
    assert run(["report", paths[0], "--bench", str(tmp_path / "bench.json")]) == 2
    assert "give several runs, or --policy" in capsys.readouterr().err


def test_a_failure_file_that_is_damaged_is_none_and_no_crash(tmp_path: Path) -> None:
    failure = FailureFound(
        batch=0, kernel="k", layout="l", kind="hung", step=0, headline="h", details=[], path="f.json", fingerprint="x"
    )
    path = write(tmp_path / "a", [RunStarted(command="roundtrip", version="0", seed=0, options={}), failure])
    (path / "f.json").write_text("[1")
    assert signoff([path]).defects[0].replay == "no replay: f.json is not in the run folder"
