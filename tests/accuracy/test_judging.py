"""Rubrics judged at the end of a run, by a judge that fails and by one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")
pytest.importorskip("jsonschema")

from kvverify.cli.main import run
from kvverify.events import ProblemMet
from kvverify.events_accuracy import ArmStarted, ContextsScored, RubricsJudged, SampleAnswered
from kvverify.report.accuracy import accuracy_report
from kvverify.report.log import read_events
from kvverify.verdicts import reasons
from tests.accuracy.asked import accuracy_run, stub_server
from tests.live.stub import Stub, serve

CHAT = "/v1/chat/completions"
RUBRICS = [("a", ["good", "good"]), ("a", ["good", "bad"]), ("b", ["bad"])]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite of three questions in two contexts, whose rubrics tell the stub's judge what to say."""
    lines = [
        {
            "prompt": f"question {n}",
            "metric": "rubrics",
            "details": {"rubrics": [f"{word} {i}" for i, word in enumerate(rubrics)]},
            "max_tokens": 4,
            "cluster": context,
        }
        for n, (context, rubrics) in enumerate(RUBRICS)
    ]
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, lines)))
    file = tmp_path / "rubrics.toml"
    file.write_text(
        f'name = "mine"\nkind = "business"\n[[tasks]]\nsource = "items"\nname = {json.dumps(str(tmp_path / "mine.jsonl"))}\n'
    )
    return file


def judge(body: Any) -> dict[str, Any]:
    text = body["messages"][1]["content"]
    word = "yes" if "word blue." in text or "good" in text else "no"
    return {"choices": [{"message": {"content": word}}]}


def judge_out_of_order(body: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": "hm"}}]} if "bad" in body["messages"][1]["content"] else judge(body)


def last(events: list[Any]) -> dict[int, SampleAnswered]:
    return {e.index: e for e in events if isinstance(e, SampleAnswered)}


def arm(tmp_path: Path, suite: Path, served: Stub, judging: Stub, *more: str) -> tuple[int, list[Any]]:
    return accuracy_run(tmp_path / "run", [served.url], suite, "--judge-url", judging.url, "--judge-model", "j", *more)


def test_scores_are_shares_of_rubrics_and_the_total_is_that_of_contexts(tmp_path: Path, suite: Path) -> None:
    with stub_server() as served, serve(Stub(replies={CHAT: judge})) as judging:
        code, events = arm(tmp_path, suite, served, judging)
    assert (code, reasons(events)) == (0, [])
    assert {n: (e.score, e.binary, e.error) for n, e in last(events).items()} == {
        0: (1.0, False, ""),
        1: (0.5, False, ""),
        2: (0.0, False, ""),
    }
    [contexts] = [e for e in events if isinstance(e, ContextsScored)]
    assert (contexts.contexts, contexts.total, contexts.missing) == ({"a": 0.75, "b": 0.0}, 0.375, 0)
    report = accuracy_report(events)
    assert report is not None
    assert report.line.endswith("over 2 contexts 37.50")
    kept = [e for e in events if isinstance(e, RubricsJudged)]
    assert sorted(len(e.rubrics) for e in kept) == [1, 2, 2]
    [start] = [e for e in events if isinstance(e, ArmStarted)]
    assert (start.identity["judge_model"], start.identity["judge_rubrics"]) == ("j", "first 50")
    assert len(start.identity["judge_prompt"]) == 16


def test_a_failed_judgement_is_missing_and_resume_asks_the_judge_alone(tmp_path: Path, suite: Path) -> None:
    with stub_server() as served, serve(Stub(replies={CHAT: judge_out_of_order})) as judging:
        judging.replies[CHAT] = lambda body: judge(body) if "green" in str(body) else judge_out_of_order(body)
        code, events = arm(tmp_path, suite, served, judging)
        assert code == 3
        errors = {n: e.error for n, e in last(events).items()}
        assert errors == {
            0: "",
            1: "judge: 1 of 2 rubrics without a yes or no: said 'hm'",
            2: "judge: 1 of 1 rubrics without a yes or no: said 'hm'",
        }
        asked = sum("question" in str(body.get("prompt")) for body in served.bodies)
        judging.replies[CHAT] = judge
        code = run(["accuracy", "run", "--resume", str(tmp_path / "run")])
        events = read_events(tmp_path / "run")
        assert (code, reasons(events)) == (0, [])
        assert {n: e.score for n, e in last(events).items()} == {0: 1.0, 1: 0.5, 2: 0.0}
        assert asked == sum("question" in str(body.get("prompt")) for body in served.bodies) == 3


def test_without_a_judge_or_with_one_that_says_yes_to_all_nothing_is_asked(tmp_path: Path, suite: Path) -> None:
    with (
        stub_server() as served,
        serve(Stub(replies={CHAT: lambda _: judge({"messages": [0, {"content": "good"}]})})) as yes,
    ):
        code, events = accuracy_run(tmp_path / "none", [served.url], suite)
        assert code == 2
        [problem] = [e.problem for e in events if isinstance(e, ProblemMet)]
        assert problem.endswith("has rubrics, which a judge scores: give --judge-url and --judge-model")
        code, events = arm(tmp_path, suite, served, yes)
        assert code == 2
        [problem] = [e.problem for e in events if isinstance(e, ProblemMet)]
        assert problem.endswith("asked whether the word blue is green, expected no, said 'yes'")
        assert not any("question" in str(body.get("prompt")) for body in served.bodies)


def test_half_a_judge_is_refused(tmp_path: Path, suite: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run(
        ["accuracy", "run", "--url", "http://127.0.0.1:9", "--suite", str(suite), "--label", "a", "--judge-model", "j"]
    )
    assert code == 2
    assert "--judge-url and --judge-model: a judge is named by both; give the other, too" in capsys.readouterr().err
