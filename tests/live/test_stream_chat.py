"""The parts of a chat answer put together."""

from __future__ import annotations

from typing import Any

import pytest

from kvverify.live.stream import BadAnswer
from kvverify.live.stream_chat import ChatParts

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}


def part(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call(index: int, **function: str) -> dict[str, Any]:
    return {"index": index, "function": function}


def taken(*parts: Any) -> ChatParts:
    chat = ChatParts()
    for number, each in enumerate(parts):
        chat.take(each, float(number + 1))
    return chat


def test_text_is_put_together_and_timed_from_its_first_part() -> None:
    found = taken(
        part(role="assistant", content=""),
        part(content="He"),
        part(content="y"),
        part("stop"),
        {"choices": [], "usage": USAGE},
    ).whole()
    assert (found.text, found.finish, found.output_tokens) == ("Hey", "stop", 3)
    assert (found.prompt_tokens, found.cached_tokens) == (9, 4)
    assert (found.first_at, found.last_at) == (2.0, 3.0)


def test_tool_calls_come_in_pieces_and_stay_as_the_model_wrote_them() -> None:
    found = taken(
        part(tool_calls=[call(0, name="f", arguments="")]),
        part(tool_calls=[call(0, arguments='{"a"')]),
        part(tool_calls=[call(1, name="g", arguments="{}"), call(0, arguments=": 1")]),
        part("tool_calls"),
        {"choices": [], "usage": USAGE},
    ).whole()
    assert found.tool_calls == (("f", '{"a": 1'), ("g", "{}"))
    assert found.text == ""


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([part(content="a"), {"choices": [], "usage": USAGE}], "the stream was cut"),
        ([part("stop", content="a")], "before the usage came"),
        ([part("stop", content=7), {"choices": [], "usage": USAGE}], "text is of another form"),
        ([part("stop"), {"choices": [], "usage": {"prompt_tokens": -1, "completion_tokens": 0}}], "not in tokens"),
    ],
)
def test_what_is_incomplete_is_refused(parts: list[Any], words: str) -> None:
    with pytest.raises(BadAnswer, match=words):
        taken(*parts).whole()


@pytest.mark.parametrize(
    "odd", [7, {"choices": [{"delta": None}]}, {"choices": [{}]}, {"choices": [{"delta": {"tool_calls": [1]}}]}]
)
def test_a_part_of_another_form_is_refused(odd: Any) -> None:
    with pytest.raises(BadAnswer, match="part 0 of the answer is of another form"):
        taken(odd)
