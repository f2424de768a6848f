"""Suites over lm-eval from the command line to the event log, against stubs and the lab."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("openai")
pytest.importorskip("prometheus_client")

from kvverify.events import ProblemMet
from kvverify.events_accuracy import ArmStarted, CacheReadStated, SampleLeftOut
from kvverify.verdicts import reasons
from tests.accuracy.asked import accuracy_run, answers, stub_server
from tests.accuracy.lm_eval.own_task import PLAIN, MakeTask


def suite_file(folder: Path, include: str, more: str = "") -> Path:
    """Write a suite of task ``sums``."""
    file = folder / "sums.toml"
    task = f'[[tasks]]\nsource = "lm-eval"\nname = "sums"\noptions = {{ include = "{include}"{more} }}\n'
    file.write_text(f'name = "sums"\nkind = "short"\n{task}')
    return file


def test_every_question_is_asked_once_and_its_score_can_be_paired(tmp_path: Path, make_task: MakeTask) -> None:
    spec = make_task(generation_kwargs={**PLAIN["generation_kwargs"], "max_gen_toks": 4})
    arms = []
    for name, tokens in (("base", 4), ("candidate", 4)):
        with stub_server(
            tokens=tokens
        ) as server:  # it answers " t0 t1 t2 t3", of which the filter takes the first number
            code, events = accuracy_run(tmp_path / name, [server.url], suite_file(tmp_path, spec.options["include"]))
        assert (code, reasons(events)) == (0, [])
        arms.append(events)
    base, candidate = (sorted(answers(events), key=lambda e: e.index) for events in arms)
    assert [e.index for e in base] == list(range(40))
    assert [e.key for e in base] == [e.key for e in candidate]
    assert {(e.task, e.score, e.binary, e.text) for e in base} == {("sums", 0.0, True, " t0 t1 t2 t3")}
    arm = next(e for e in arms[0] if isinstance(e, ArmStarted))
    assert arm.planned == {"sums/0": 40}
    assert {"lm-eval version": "0.4.13", "lm-eval score": "exact_match,first"}.items() <= arm.identity.items()
    assert arm.identity["lm-eval documents"].startswith("40 sha256 ")


def test_questions_beyond_the_context_are_left_out_and_counted(tmp_path: Path) -> None:
    """lm-eval would cut their beginning away, the examples first, and score what comes back."""
    with stub_server(context=900) as server:
        code, events = accuracy_run(tmp_path / "run", [server.url], "word-problems", "--samples", "6")
    assert code == 3
    left = [e for e in events if isinstance(e, SampleLeftOut)]
    assert len(left) == 6
    assert all("tokens and 160 to generate, the context is 900" in e.reason for e in left)
    assert not answers(events)
    assert len([body for body in server.bodies if "max_tokens" in body]) == 1, "the probe, and no question"


def test_a_task_that_needs_likelihoods_is_refused_before_anything_is_asked(tmp_path: Path, make_task: MakeTask) -> None:
    accuracy = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    changes = {"doc_to_choice": ["1", "2"], "doc_to_target": 0, "generation_kwargs": None, "filter_list": None}
    spec = make_task(output_type="multiple_choice", metric_list=accuracy, **changes)
    with stub_server() as server:
        code, events = accuracy_run(tmp_path / "run", [server.url], suite_file(tmp_path, spec.options["include"]))
    assert code == 2
    (problem,) = [e.problem for e in events if isinstance(e, ProblemMet)]
    assert "that needs `echo`, which bypasses every cache and says nothing of it" in problem


def test_the_lab_answers_word_problems(tmp_path: Path, torch: object) -> None:
    from kvverify.lab.serving import running

    with running() as url:
        code, events = accuracy_run(tmp_path / "run", [url], "word-problems", "--samples", "2", "--concurrency", "1")
    assert (code, reasons(events)) == (0, [])
    found = answers(events)
    assert [e.index for e in found] == [0, 1]
    assert all(e.prompt_tokens == e.sent_tokens > 800 and e.output_tokens > 0 and not e.error for e in found)
    (read,) = [e for e in events if isinstance(e, CacheReadStated)]
    assert read.decode_steps == sum(e.output_tokens - 1 for e in found) > 0
