"""How answers to lm-eval tasks are scored: as lm-eval scores them, and not at all where there is no answer."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from kvverify.accuracy.ask import Asker, Manner, questions_of
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import score
from kvverify.accuracy.source import SourceContext
from kvverify.accuracy.template import template_named
from kvverify.errors import UsageError
from kvverify.events_accuracy import SampleAnswered
from kvverify.live.client import Client
from tests.accuracy.lm_eval.own_task import ROWS, Letters, MakeTask, figures_of_lm_eval, samples_of
from tests.live.stub import Stub, serve

ANSWERS = (
    " {right}",
    "{right}, of 90",
    " I say {right} or 7",
    "7, no: {right}",
    "none",
    "",
    " {right}\nQ: 3",
    "-{right}",
)


def answer_to(prompt: str) -> str:
    """Return an answer that the prompt decides, right or wrong in different ways."""
    first = int(prompt.rsplit("What is ", 1)[1].split(maxsplit=1)[0])
    return ANSWERS[first % len(ANSWERS)].format(right=2 * first + 1)


def scored_by_lm_eval(include: str, name: str) -> dict[str, float]:
    """Let lm-eval itself run the task on a model that answers :func:`answer_to`, ended at the stop strings; return its figures."""

    def generate_until(requests: list[Any]) -> list[str]:
        answers = []
        for prompt, settings in requests:
            text = answer_to(prompt)
            for word in settings["until"]:
                text = text.split(word)[0]
            answers.append(text)
        return answers

    return figures_of_lm_eval(include, name, generate_until=generate_until)


@pytest.mark.parametrize("target", ["{{answer}}", "{{[answer, '7']}}"])
def test_means_are_those_of_lm_eval(
    make_task: MakeTask, context: SourceContext, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    spec = make_task(doc_to_target=target)
    made = samples_of(spec, context)
    scores = [score(sample, answer_to(sample.prompt)) for sample in made]
    monkeypatch.chdir(spec.options["include"])  # lm-eval looks for data files there
    theirs = scored_by_lm_eval(spec.options["include"], spec.name)
    mean = sum(one.value for one in scores) / len(scores)
    assert mean == pytest.approx(theirs["exact_match,first"])
    assert 0.1 < mean < 0.9
    last = [one.aspects["exact_match,last"] for one in scores]
    assert sum(last) / len(last) == pytest.approx(theirs["exact_match,last"]) != mean
    assert all(one.binary for one in scores)


def test_a_server_that_ignores_stop_strings_changes_no_score(make_task: MakeTask, context: SourceContext) -> None:
    sample = samples_of(make_task(options={"score": "exact_match,last"}), context)[0]
    assert score(sample, " 3").value == 1.0
    assert score(sample, " 3\nQ: What is 9 plus 9?\nA: 18").value == 1.0, (
        "what comes after the stop string is no answer"
    )


def test_an_answer_without_the_form_asked_for_is_counted_as_one(make_task: MakeTask, context: SourceContext) -> None:
    sample = samples_of(make_task(), context)[0]
    assert score(sample, " three").format_error == "no answer of the form that filter first looks for"
    assert not score(sample, " 4").format_error
    assert score(sample, " 4").value == 0.0


def test_a_metric_that_a_task_computes_itself(make_task: MakeTask, context: SourceContext) -> None:
    code = "def judge(doc, results):\n    return {'share': len(set(results[0]) & set(doc['answer'])) / len(set(doc['answer']))}\n"
    metric = [{"metric": "share", "aggregation": "mean", "higher_is_better": True}]
    sample = samples_of(make_task(process_results="!function own_code.judge", code=code, metric_list=metric), context)[
        6
    ]
    assert sample.details["doc"]["answer"] == "15"
    found = score(sample, " 5")
    assert (found.value, found.binary) == (0.5, False)


BROKEN = [
    ("doc['page']", {}, "its code failed on the answer to sample 0: KeyError: 'page'"),
    ("1 / 0", {}, "its code failed on the answer to sample 0: ZeroDivisionError"),
    ("17.5", {}, "share,first of sample 0: expected a number from 0 to 1, got 17.5"),
    ("0.5", {"binary": True}, "share,first of sample 0: expected 0 or 1, got 0.5"),
    ("float('nan')", {}, "share,first of sample 0: expected a number, got none"),
    ("'yes'", {}, "share,first of sample 0: expected a number, got none"),
]


@pytest.mark.parametrize(("value", "options", "message"), BROKEN)
def test_what_is_no_score_is_refused(
    make_task: MakeTask, context: SourceContext, value: str, options: dict[str, Any], message: str
) -> None:
    metric = [{"metric": "share", "aggregation": "mean", "higher_is_better": True}]
    code = f"def judge(doc, results):\n    return {{'share': {value}}}\n"
    spec = make_task(process_results="!function own_code.judge", code=code, metric_list=metric, options=options)
    with pytest.raises(UsageError, match=message):
        score(samples_of(spec, context)[0], " 3")


def test_a_task_that_was_not_loaded_here_scores_nothing(make_task: MakeTask, context: SourceContext) -> None:
    sample = samples_of(make_task(), context)[0]
    strange = replace(sample, details={**sample.details, "settings": "0" * 64})
    with pytest.raises(
        UsageError, match="task sums was not loaded in this process: make its samples before answers are scored"
    ):
        score(strange, " 3")


class Words(Letters):
    """As the stub counts: letters, and nothing before them."""

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        return super().ids(text)


def asked(stub: Stub, *samples: Sample) -> list[SampleAnswered]:
    """Return the answers of ``stub``."""

    async def ask() -> list[SampleAnswered]:
        async with Client(stub.url, "m") as client:
            asker = Asker(client, Manner())
            return [await asker.ask(q) for q in questions_of(samples, template_named("none", None, Words()), Words())]

    with serve(stub):
        return asyncio.run(ask())


def test_a_failed_request_is_counted_and_never_scored_as_an_empty_answer(
    make_task: MakeTask, context: SourceContext
) -> None:
    """lm-eval scores a null answer as "", and a task may call that right."""
    code = "def judge(doc, results):\n    return {'silent': float(results[0] == '')}\n"
    metric = [{"metric": "silent", "aggregation": "mean", "higher_is_better": True}]
    spec = make_task(process_results="!function own_code.judge", code=code, metric_list=metric, filter_list=None)
    sample = samples_of(spec, context)[0]
    assert score(sample, "").value == 1.0
    for mode in ("500", "reset", "cut", "no-choices", "null"):
        (event,) = asked(Stub(mode=mode, count=len), sample)
        assert event.error, mode
        assert (event.score, event.key) == (0.0, sample.key)


def test_a_server_that_cuts_prompts_short_gives_no_score(make_task: MakeTask, context: SourceContext) -> None:
    rows = [{**ROWS[0], "question": "hay " * 1200}]
    (sample,) = samples_of(make_task(rows=rows, num_fewshot=0), context)
    whole, cut = asked(Stub(count=len), sample)[0], asked(Stub(count=lambda _: 1919), sample)[0]
    assert (whole.error, whole.prompt_tokens) == ("", len(sample.prompt))
    assert cut.error == f"the server read 1919 prompt tokens, {len(sample.prompt)} were sent"


def test_a_second_arm_never_gets_the_answers_of_the_first(make_task: MakeTask, context: SourceContext) -> None:
    """lm-eval's response cache is keyed on the request alone: with one cache path the second arm is the first."""
    few = samples_of(make_task(), context)[:3]
    one, other = Stub(count=len, tokens=2), Stub(count=len, tokens=3)
    first, second = asked(one, *few), asked(other, *few)
    assert [e.text for e in first] == [" t0 t1"] * 3
    assert [e.text for e in second] == [" t0 t1 t2"] * 3
    assert len(one.bodies) == len(other.bodies) == 3
    assert [json.dumps(body["stop"]) for body in other.bodies] == ['["Q:", "\\n"]'] * 3
    assert [body["max_tokens"] for body in other.bodies] == [12] * 3
