"""Likelihood tasks: asked with echo, scored as lm-eval scores them, and never taken for a measured cache."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai")
pytest.importorskip("prometheus_client")

from kvverify.accuracy.lm_eval import source
from kvverify.accuracy.lm_eval.echo import BadEcho, likelihood, usage
from kvverify.accuracy.lm_eval.likelihood import encoded, text_of
from kvverify.accuracy.scoring import score
from kvverify.accuracy.source import SourceContext
from kvverify.accuracy.tokens import Bytes
from kvverify.cli.main import run
from kvverify.errors import UsageError
from kvverify.events import ProblemMet, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated
from kvverify.verdicts import reasons
from tests.accuracy.asked import accuracy_run, answers, stub_server
from tests.accuracy.lm_eval.own_task import ROWS, Letters, MakeTask, figures_of_lm_eval, samples_of
from tests.live.stub import Stub

METRICS = [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")]
CHOICES: dict[str, Any] = {
    "output_type": "multiple_choice",
    "doc_to_choice": "{{[answer, answer ~ '0', '1' ~ answer]}}",
    "doc_to_target": 0,
    "metric_list": METRICS,
    "generation_kwargs": None,
    "filter_list": None,
}


def logprob(ids: Sequence[int], place: int) -> float:
    """Return a logprob that all tokens up to ``place`` decide, as a model's does."""
    digest = hashlib.sha256(bytes(token % 256 for token in ids[: place + 1])).digest()
    return -(1 + digest[0]) / 64


def echoed(body: Any, *, cached: int = 0) -> Any:
    """Answer a request as vLLM does: the prompt's logprobs, the first without one, and a generated token's."""
    ids = body["prompt"]
    own = [None, *(logprob(ids, n) for n in range(1, len(ids) + 1))]
    best = [None, *({"a": max(value or 0.0, -0.9), "b": value} for value in own[1:])]
    logprobs = {"tokens": [], "token_logprobs": own, "top_logprobs": best, "text_offset": []}
    details = {"cached_tokens": cached}
    told = {"prompt_tokens": len(ids), "completion_tokens": 1, "prompt_tokens_details": details}
    return {"choices": [{"index": 0, "text": "", "logprobs": logprobs}], "usage": told}


def scored_by_lm_eval(include: str, name: str) -> dict[str, float]:
    """Let lm-eval itself run the task on a model with the logprobs of :func:`logprob`, one token a letter."""

    def loglikelihood(requests: list[Any]) -> list[tuple[float, bool]]:
        found = []
        for context, continuation in requests:
            ids = list((context + continuation).encode())
            values = [logprob(ids, n) for n in range(len(context), len(ids))]
            found.append((sum(values), all(value >= -0.9 for value in values)))
        return found

    return figures_of_lm_eval(include, name, loglikelihood=loglikelihood)


def suite_file(folder: Path, *includes: str) -> Path:
    """Write a suite of the tasks in ``includes``, "name@folder"."""
    file = folder / "choices.toml"
    tasks = [
        f'[[tasks]]\nsource = "lm-eval"\nname = "{name}"\noptions = {{ include = "{where}" }}\n'
        for name, _, where in (text.partition("@") for text in includes)
    ]
    file.write_text('name = "choices"\nkind = "short"\n' + "".join(tasks))
    return file


def raw_kv(tmp_path: Path, suite: Path, reply: Callable[[Any], Any], *more: str) -> tuple[int, list[Any], Stub]:
    """Run the control against a server that answers echoes with ``reply``, and the probe as any server."""
    with stub_server() as server:
        server.echo = reply
        code, events = accuracy_run(tmp_path / "run", [server.url], suite, "--control", "raw-kv", *more)
    return code, events, server


def test_scores_are_those_of_lm_eval_and_the_arm_is_labelled(
    tmp_path: Path, make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_task(**CHOICES)
    suite = suite_file(tmp_path, f"sums@{spec.options['include']}")
    code, events, server = raw_kv(tmp_path, suite, echoed)
    found = sorted(answers(events), key=lambda e: e.index)
    assert [(e.index, e.error) for e in found] == [(n, "") for n in range(40)]
    monkeypatch.chdir(spec.options["include"])  # lm-eval looks for data files there
    theirs = scored_by_lm_eval(spec.options["include"], spec.name)
    assert sum(e.score for e in found) / 40 == pytest.approx(theirs["acc,none"])
    assert sum(e.aspects["acc_norm,none"] for e in found) / 40 == pytest.approx(theirs["acc_norm,none"])
    assert 0.1 < theirs["acc,none"] < 0.9

    arm = next(e for e in events if isinstance(e, ArmStarted))
    assert arm.identity["control"] == "raw-kv"
    assert arm.identity["lm-eval asked"] == "by likelihood (multiple_choice)"
    assert "raw KV: asked with echo, which bypasses every cache, so that scores say nothing of it" in arm.notes
    (read,) = [e for e in events if isinstance(e, CacheReadStated)]
    assert (read.decode_steps, read.hit_tokens) == (0, 0)
    assert code == 3
    assert [reason.verdict for reason in reasons(events)] == [Verdict.INCONCLUSIVE]
    assert "so the score says nothing of the format" in reasons(events)[0].text
    sent = [body for body in server.bodies if body.get("echo")]
    assert len(sent) == 3 * 40
    assert all(e.prompt_tokens == e.sent_tokens for e in found)


def test_likelihood_tasks_are_never_mixed_with_generating_ones(tmp_path: Path, make_task: MakeTask) -> None:
    choose, say = make_task(task="choose", **CHOICES), make_task(task="say")
    both = suite_file(tmp_path, f"choose@{choose.options['include']}", f"say@{say.options['include']}")
    for control in ("raw-kv", "none"):
        with stub_server() as server:
            code, events = accuracy_run(tmp_path / control, [server.url], both, "--control", control)
        assert code == 2
        assert not answers(events)
        (problem,) = [e.problem for e in events if isinstance(e, ProblemMet)]
        expected = {
            "raw-kv": "those alone and with --template none; got rules lm-eval, lm-eval-likelihood and template none",
            "none": "bypasses every cache and says nothing of it: ask them in a run of their own, with --control raw-kv",
        }
        assert expected[control] in problem


def test_a_cache_cannot_be_asked_with_echo(
    tmp_path: Path, make_task: MakeTask, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = suite_file(tmp_path, f"sums@{make_task(**CHOICES).options['include']}")
    words = ["--url", "http://127.0.0.1:9", "--suite", str(suite), "--label", "x", "--control", "raw-kv", "--replay"]
    assert run(["accuracy", "run", *words]) == 2
    assert (
        "--control raw-kv: `echo` bypasses every cache; leave --tier, --replay and --ray out" in capsys.readouterr().err
    )


def test_a_server_that_refuses_echo_is_named(tmp_path: Path, make_task: MakeTask, torch: object) -> None:
    from kvverify.lab.serving import running

    suite = suite_file(tmp_path, f"sums@{make_task(**CHOICES).options['include']}")
    with running() as url:
        code, events = accuracy_run(tmp_path / "run", [url], suite, "--control", "raw-kv", "--samples", "2")
    assert code == 2
    (problem,) = [e.problem for e in events if isinstance(e, ProblemMet)]
    assert "likelihood tasks need `echo` with logprobs, and this server refuses: POST" in problem
    assert not answers(events)


LIES: list[tuple[str, Callable[[Any], Any], str]] = [
    ("ignored", lambda body: _with(body, keep=slice(-1, None)), "echoed tokens and one more, got 1: echo was ignored or cut short"),
    ("cut", lambda body: _with(body, keep=slice(5, None)), "echo was ignored or cut short"),
    ("null", lambda body: _with(body, value=None), "expected a finite logprob, got None"),
    ("infinite", lambda body: _with(body, value=-math.inf), "expected a finite logprob, got -inf"),
    ("no-logprobs", lambda body: {"choices": [{"text": "x"}], "usage": {}}, "expected the logprobs of the echoed prompt, got"),
    ("no-usage", lambda body: {**echoed(body), "usage": None}, "expected usage.prompt_tokens, got None"),
]  # fmt: skip


def _with(body: Any, *, keep: slice = slice(None), value: Any = 0.0) -> Any:
    answer = echoed(body)
    held = answer["choices"][0]["logprobs"]
    if value != 0.0:
        held["token_logprobs"][-2] = value
    for name in ("token_logprobs", "top_logprobs"):
        held[name] = held[name][keep]
    return answer


@pytest.mark.parametrize(("name", "reply", "message"), LIES)
def test_what_is_no_echo_is_no_score(name: str, reply: Callable[[Any], Any], message: str) -> None:
    ids = list(b"Q: 1 plus 2? 3")
    answer = reply({"prompt": ids})
    with pytest.raises(BadEcho, match=message):
        assert likelihood(answer, 12, len(ids)) == usage(answer)


def test_a_server_that_reads_less_than_was_sent_ends_the_run(tmp_path: Path, make_task: MakeTask) -> None:
    def reply(body: Any) -> Any:
        answer = echoed(body)
        answer["usage"]["prompt_tokens"] -= 1
        return answer

    suite = suite_file(tmp_path, f"sums@{make_task(**CHOICES).options['include']}")
    code, events, _ = raw_kv(tmp_path, suite, reply, "--concurrency", "1")
    assert code == 2
    assert "it cuts prompts short" in next(e.problem for e in events if isinstance(e, ProblemMet))
    assert {(e.score, bool(e.error)) for e in answers(events)} == {(0.0, True)}


def test_blanks_at_the_border_belong_to_the_continuation() -> None:
    assert encoded("A:  ", "yes", Letters()) == ([1, *map(ord, "A:  yes")], 3)
    assert encoded("A:", " yes", Bytes()) == (list(b"A: yes"), 2)


def test_whole_texts_are_refused(make_task: MakeTask, context: SourceContext) -> None:
    metric = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
    spec = make_task(output_type="loglikelihood_rolling", metric_list=metric, generation_kwargs=None, filter_list=None)
    with pytest.raises(
        UsageError, match="task sums scores whole texts by their perplexity; expected answers to choose from"
    ):
        samples_of(spec, context)


def test_a_choice_is_scored_by_its_likelihood(make_task: MakeTask, context: SourceContext) -> None:
    sample = samples_of(make_task(**CHOICES), context)[0]
    assert sample.details["doc"] == ROWS[0]
    assert [choice[1] for choice in sample.details["choices"]] == [" 3", " 30", " 13"]
    assert score(sample, text_of([(-1.0, True), (-2.0, False), (-3.0, False)])).value == 1.0
    assert score(sample, text_of([(-4.0, False), (-2.0, True), (-3.0, False)])).value == 0.0
    assert source.facts(make_task(**CHOICES), context)["asked"] == "by likelihood (multiple_choice)"
