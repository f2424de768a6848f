from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openai")
pytest.importorskip("httpx2")

from kvverify.accuracy.contexts import contexts_scored
from kvverify.accuracy.judge import KEY_VARIABLE, Judge, Judged, question_text, yes_or_no
from kvverify.accuracy.sample import Sample
from kvverify.errors import KvverifyError, UsageError
from kvverify.event_json import from_json, to_json
from kvverify.events_accuracy import SampleAnswered
from tests.live.stub import Stub, serve

CHAT = "/v1/chat/completions"


def chat(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": text}}]}


def by_rubric(body: Any) -> dict[str, Any]:
    """Judge rubrics of the form «has WORD» as a perfect judge would."""
    question = body["messages"][1]["content"]
    answer, rubric = question.split("===")[2], question.split("===")[6]
    return chat("yes" if rubric.strip().removeprefix("has ") in answer else "no")


@pytest.fixture
def stub() -> Iterator[Stub]:
    with serve(Stub()) as made:
        made.replies[CHAT] = by_rubric
        yield made


def task(*rubrics: str, **details: Any) -> Sample:
    return Sample(
        task="t",
        length=0,
        index=3,
        prompt="?",
        metric="rubrics",
        details={"rubrics": list(rubrics), **details},
        max_tokens=9,
    )


def judged(stub: Stub, sample: Sample, answer: str, **options: Any) -> Judged:
    async def run() -> Judged:
        async with Judge(stub.url, "j", pause_s=0.0, **options) as judge:
            return await judge.judge(sample, answer)

    return asyncio.run(run())


def test_the_score_is_passed_by_rubrics_and_every_reply_is_kept(stub: Stub) -> None:
    found = judged(stub, task("has red", "has blue", "has green", "has white"), "red and white")
    assert found.score is not None
    assert (found.score.value, found.score.binary, found.error) == (0.5, False, "")
    assert [(r["rubric"], r["passed"], r["text"]) for r in found.event.rubrics] == [
        ("has red", True, "yes"),
        ("has blue", False, "no"),
        ("has green", False, "no"),
        ("has white", True, "yes"),
    ]
    assert (found.event.key, found.event.index, found.event.judge) == (
        task("has red", "has blue", "has green", "has white").key,
        3,
        "j",
    )
    assert from_json(to_json(found.event)) == found.event


def test_the_first_50_rubrics_count(stub: Stub) -> None:
    found = judged(stub, task(*["has red"] * 50, *["has blue"] * 7), "red")
    assert found.score is not None
    assert (found.score.value, found.event.left_out, len(stub.bodies)) == (1.0, 7, 50)


def test_what_is_sent(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "judge-key")
    monkeypatch.setenv("OPENAI_API_KEY", "another-key")
    judged(stub, task("has red", judge_context="the text it was asked about"), "red")
    [body] = stub.bodies
    assert (body["model"], body["temperature"]) == ("j", 0.0)
    assert "the text it was asked about" in body["messages"][1]["content"]
    assert "authorization: bearer judge-key" in stub.headers[0].lower()
    assert "another-key" not in "".join(stub.headers)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (chat("Perhaps."), "said 'Perhaps.'"),
        (chat("yes and no"), "said 'yes and no'"),
        (chat("yes\nno idea"), "said 'yes no idea'"),
        (chat(""), "said nothing"),
        (chat(None), "said nothing"),
        ({"choices": []}, "expected a chat completion, got {'choices': []}"),
        ([1], "expected a chat completion, got [1]"),
    ],
)
def test_a_judge_that_says_neither_yes_nor_no_makes_the_score_missing(stub: Stub, reply: Any, said: str) -> None:
    stub.replies[CHAT] = lambda body: reply if "has blue" in body["messages"][1]["content"] else by_rubric(body)
    found = judged(stub, task("has red", "has blue"), "red")
    assert found.score is None
    assert found.error == f"judge: 1 of 2 rubrics without a yes or no: {said}"
    assert [r["passed"] for r in found.event.rubrics] == [True, None]


def refused(_: Any) -> Any:
    raise ConnectionResetError


def once(then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    calls: list[int] = []

    def reply(body: Any) -> Any:
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError
        return then(body)

    return reply


def test_a_judge_that_is_cut_off_is_asked_again_and_then_missing(stub: Stub) -> None:
    stub.replies[CHAT] = once(by_rubric)
    found = judged(stub, task("has red"), "red")
    assert found.score is not None
    assert found.event.rubrics[0]["tries"] == 2
    stub.replies[CHAT] = refused
    found = judged(stub, task("has red"), "red")
    assert found.score is None
    assert found.error.startswith("judge: 1 of 1 rubrics without a yes or no: Connection error")
    assert found.event.rubrics[0]["tries"] == 3


def test_a_judge_that_does_not_answer_in_time_is_missing(stub: Stub) -> None:
    del stub.replies[CHAT]
    stub.mode = "slow"
    found = judged(stub, task("has red"), "red", timeout_s=0.2)
    assert found.error == "judge: 1 of 1 rubrics without a yes or no: no answer within 0.2 s"


def test_a_judge_that_sends_no_json_or_is_not_there_is_missing(stub: Stub) -> None:
    del stub.replies[CHAT]
    found = judged(stub, task("has red"), "red")
    assert found.error.startswith("judge: 1 of 1 rubrics without a yes or no: status 404")
    assert found.event.rubrics[0]["tries"] == 1
    stub.pages[CHAT] = "<html>"
    assert judged(stub, task("has red"), "red").score is None


def test_a_judge_is_checked_before_the_run(stub: Stub) -> None:
    async def check() -> None:
        async with Judge(stub.url, "j", pause_s=0.0) as judge:
            await judge.check()

    stub.replies[CHAT] = lambda body: chat("yes" if "word blue." in body["messages"][1]["content"] else "no")
    asyncio.run(check())
    stub.replies[CHAT] = lambda body: chat("yes")
    with pytest.raises(
        KvverifyError, match=rf"^judge j at {stub.url}: asked whether the word blue is green, expected no, said 'yes'$"
    ):
        asyncio.run(check())
    stub.replies[CHAT] = refused
    with pytest.raises(KvverifyError, match="asked whether the word blue is blue, expected yes, Connection error"):
        asyncio.run(check())
    with pytest.raises(UsageError, match="is not the URL of a server"):
        Judge("judge", "j")


def test_the_identity_is_the_model_and_the_prompt() -> None:
    one, other = Judge("http://127.0.0.1:1", "j").identity(), Judge("http://127.0.0.1:2", "k").identity()
    assert one == {**other, "judge_model": "j"}
    assert len(one["judge_prompt"]) == 16
    assert one["judge_rubrics"] == "first 50"


@given(st.text(), st.text(), st.text())
def test_no_answer_ends_its_own_quotation(answer: str, rubric: str, context: str) -> None:
    text = question_text(answer, rubric, context)
    mark = next(line for line in text.splitlines() if line.startswith("===") and line.endswith("==="))
    assert text.count(mark) == (6 if context else 4)


def test_half_a_character_in_an_answer_is_sent_as_a_question_mark(stub: Stub) -> None:
    found = judged(stub, task("has red"), "red \ud800")
    assert found.score is not None


@pytest.mark.parametrize(
    "text",
    ["yes", "Yes.", "**YES**", "It is there.\nyes", "<think>no</think>\nyes", "Answer: yes", "是。", "yes\n\n```"],
)
def test_a_clear_yes(text: str) -> None:
    assert yes_or_no(text) is True


@pytest.mark.parametrize("text", ["no", "No!", "Yes at first.\n\nno", "Verdict: no", "否"])
def test_a_clear_no(text: str) -> None:
    assert yes_or_no(text) is False


@pytest.mark.parametrize("text", ["", "\n", "yes or no", "yesterday", "not yes", "maybe", "yes no", "1"])
def test_neither(text: str) -> None:
    assert yes_or_no(text) is None


@given(st.text())
def test_no_reply_makes_the_reader_raise(text: str) -> None:
    assert yes_or_no(text) in (True, False, None)


def answer(index: int, context: str, value: float, error: str = "") -> SampleAnswered:
    return SampleAnswered(task="t", length=0, index=index, key=str(index), cluster=context, score=value, error=error)


def test_the_total_is_the_mean_of_contexts_and_not_of_tasks() -> None:
    found = contexts_scored("t", [answer(0, "a", 1.0), answer(1, "a", 0.5), answer(2, "a", 0.0), answer(3, "b", 1.0)])
    assert found.contexts == {"a": 0.5, "b": 1.0}
    assert (found.total, found.samples, found.missing, found.empty, found.undefined) == (0.75, 4, 0, 0, "")


def test_missing_scores_are_in_no_mean() -> None:
    some = [answer(0, "a", 1.0), answer(1, "a", 0.0, "judge: timed out"), answer(2, "b", 0.0, "judge: timed out")]
    found = contexts_scored("t", some)
    assert (found.total, found.contexts, found.missing, found.empty) == (1.0, {"a": 1.0}, 2, 1)
    none = contexts_scored("t", some[1:])
    assert (none.undefined, none.missing, none.empty) == ("no sample has a score", 2, 2)
    assert from_json(to_json(found)) == found
