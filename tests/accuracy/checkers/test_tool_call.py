from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.checkers.tool_call import calls_text
from kvverify.accuracy.scoring import score
from tests.accuracy.checkers.asked import asked

pytest.importorskip("jsonschema")

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS = tuple(
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("weather", "hotels")
)
CALL = {"name": "weather", "arguments": {"city": "Lyon", "days": 3}}
OTHER = {"name": "hotels", "arguments": {"city": "Lyon", "days": 3}}
SAMPLE = asked("tool-call", json.dumps(CALL), tools=TOOLS)

arguments = st.fixed_dictionaries({"city": st.text(), "days": st.integers()})


def forms(call: dict[str, Any]) -> list[str]:
    """Return a call in the ways in which servers and models write it."""
    text = json.dumps(call)
    return [
        text,
        json.dumps([call], indent=2),
        f"```json\n{text}\n```",
        f"<tool_call>\n{text}\n</tool_call>",
        f"I look it up.<tool_call>{text}",
        calls_text([(call["name"], json.dumps(call["arguments"]))]),
        json.dumps({"tool_calls": [{"id": "1", "type": "function", "function": call}]}),
        json.dumps({"name": call["name"], "parameters": call["arguments"]}),
    ]


@given(arguments)
def test_a_right_call_scores_1_in_any_form(given_arguments: dict[str, Any]) -> None:
    call = {"name": "weather", "arguments": given_arguments}
    for text in forms(call):
        found = score(asked("tool-call", json.dumps(call), tools=TOOLS), text)
        assert (found.value, found.format_error, found.aspects) == (1.0, "", {"name": 1.0, "parameters": 1.0}), text


@given(arguments, st.sampled_from(["city", "days"]))
def test_one_changed_argument_costs_its_share(given_arguments: dict[str, Any], key: str) -> None:
    other = given_arguments[key] + (1 if key == "days" else "x")
    text = json.dumps({"name": "weather", "arguments": {**given_arguments, key: other}})
    found = score(asked("tool-call", json.dumps({"name": "weather", "arguments": given_arguments}), tools=TOOLS), text)
    assert (found.value, found.aspects) == (0.0, {"name": 1.0, "parameters": 0.5})


def test_another_function_is_wrong_in_all() -> None:
    found = score(SAMPLE, json.dumps(OTHER))
    assert (found.value, found.format_error, found.aspects) == (0.0, "", {"name": 0.0, "parameters": 0.0})


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("It will rain.", "no call: not JSON: "),
        ('{"city": "Lyon"}', "no call: JSON without name and arguments"),
        ('{"name": "weather", "arguments": "{\\"city\\": "}', "arguments of weather are not JSON: "),
        ('{"name": "weather", "arguments": [1]}', "arguments of weather are not an object"),
        ('{"name": "rain", "arguments": {}}', "no tool 'rain' was offered"),
        (
            '{"name": "weather", "arguments": {"city": "Lyon", "days": "3"}}',
            "arguments of weather: days: '3' is not of type",
        ),
        ("<tool_call>{nonsense</tool_call>", "call is not JSON: "),
        ('<tool_call>{"a": 1}</tool_call>', "call without name and arguments"),
        (calls_text([("weather", "{")]), "arguments of weather are not JSON: "),
        ("", "no call: empty answer"),
    ],
)
def test_format_errors(answer: str, error: str) -> None:
    found = score(SAMPLE, answer)
    assert found.format_error.startswith(error)
    assert found.value == 0.0


def test_words_around_a_right_call_are_a_format_error_alone() -> None:
    found = score(SAMPLE, f"Sure! {json.dumps(CALL)}")
    assert (found.value, found.format_error) == (1.0, "call with text around it")


def test_several_calls_count_in_any_order_and_one_more_is_wrong() -> None:
    both = asked("tool-call", json.dumps([CALL, OTHER]), tools=TOOLS)
    assert score(both, json.dumps([OTHER, CALL])).value == 1.0
    assert score(both, json.dumps(CALL)).aspects == {"name": 0.5, "parameters": 0.5}
    assert score(SAMPLE, json.dumps([CALL, CALL])).aspects == {"name": 0.5, "parameters": 0.5}


def test_where_no_call_is_asked_for_words_are_right_and_a_call_is_wrong() -> None:
    none = asked("tool-call", "[]", tools=TOOLS)
    assert (score(none, "Nothing to do.").value, score(none, "Nothing to do.").format_error) == (1.0, "")
    assert score(none, json.dumps(CALL)).value == 0.0


@given(
    st.text()
    | st.builds(
        json.dumps,
        st.recursive(
            st.none() | st.text(),
            lambda i: (
                st.lists(i) | st.dictionaries(st.sampled_from(["name", "arguments", "tool_calls", "function"]), i)
            ),
        ),
    )
)
def test_no_answer_makes_the_rule_raise(text: str) -> None:
    found = score(SAMPLE, text)
    assert found.value == 0.0
    assert 0.0 <= found.aspects["parameters"] <= 1.0
