from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kvverify.accuracy.checkers.json_answer import read_json
from kvverify.accuracy.checkers.parameters import share_right
from kvverify.accuracy.scoring import score
from kvverify.errors import UsageError
from tests.accuracy.checkers.asked import asked

pytest.importorskip("jsonschema")
from kvverify.accuracy.checkers.schema import check_schema

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=12
)
records = st.dictionaries(st.text(min_size=1), values, min_size=1, max_size=5)
SCHEMA = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}, "additionalProperties": False}


def written(value: Any, how: int) -> str:
    """Write JSON in one of the ways that mean the same: indented, in another order, as ASCII, in a fence."""
    text = json.dumps(value, indent=how % 3 or None, sort_keys=bool(how & 4), ensure_ascii=bool(how & 8))
    return f"```json\n{text}\n```" if how & 16 else f" \n{text}\n" if how & 32 else text


@given(records, st.integers(0, 63))
@example({"a": "```\n"}, 16)
def test_a_right_record_scores_1_however_it_is_written(record: dict[str, Any], how: int) -> None:
    found = score(asked("json-fields", json.dumps(record)), written(record, how))
    assert (found.value, found.format_error, found.aspects) == (1.0, "", {"parameters": 1.0})


@given(records, st.data())
def test_any_changed_field_scores_less(record: dict[str, Any], data: st.DataObject) -> None:
    key = data.draw(st.sampled_from(sorted(record)))
    other = data.draw(values)
    assume(share_right(record[key], other) < 1.0)
    found = score(asked("json-fields", json.dumps(record)), json.dumps({**record, key: other}))
    assert found.value == 0.0
    assert found.aspects["parameters"] < 1.0
    assert found.format_error == ""


@given(records, st.text(min_size=1), values)
def test_a_field_that_nobody_asked_for_is_wrong(record: dict[str, Any], key: str, value: Any) -> None:
    assume(key not in record)
    assert score(asked("json-fields", json.dumps(record)), json.dumps({**record, key: value})).value == 0.0


def test_the_share_counts_fields_of_both_sides() -> None:
    expected = {"a": 1, "b": [1, 2], "c": {"d": "x"}}
    assert share_right(expected, {"a": 1.0, "b": [1, 3], "c": {"d": "x"}}) == 3 / 4
    assert share_right(expected, {"a": True, "b": [1, 2], "e": 1}) == 2 / 5
    assert share_right([], {}) == 0.0
    assert share_right(10**400, 1e10) == 0.0


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ("", "empty answer"),
        ("I do not know.", "not JSON: Expecting value"),
        ('{"n": 1', "not JSON: Expecting ',' delimiter"),
        ('{"n": 1, "n": 2}', "not JSON: key 'n' twice"),
        ('{"n": NaN}', "not JSON: NaN is not a JSON value"),
        ('{"n": 1} {"n": 2}', "JSON with text around it"),
        ("[" * 100_000, "not JSON: nested too deeply"),
        ('{"n": ' + "9" * 5000 + "}", "not JSON: Exceeds the limit"),
        ('```json\n{"n": 1,}\n```', "not JSON: "),
        ("<think>{}", "empty answer"),
    ],
)
def test_malformed_json_is_a_format_error(answer: str, error: str) -> None:
    found = score(asked("json-fields", '{"n": 1}'), answer)
    assert found.format_error.startswith(error)
    assert found.value == (1.0 if error == "JSON with text around it" else 0.0)


def test_json_inside_words_is_scored_and_its_form_is_counted_apart() -> None:
    found = score(asked("json-fields", '{"n": 1}'), 'Here is the record [as asked]:\n{"n": 1}\nAnything else?')
    assert (found.value, found.format_error) == (1.0, "JSON with text around it")
    assert score(asked("json-fields", '{"n": 1}'), 'Here it is: {"n": 1}').value == 1.0
    assert score(asked("json-fields", '{"n": 1}'), 'Here it is: {"n": 2}').value == 0.0


def test_reasoning_before_the_answer_does_not_count() -> None:
    found = score(asked("json-fields", '{"n": 1}'), '<think>maybe {"n": 2}</think>\n{"n": 1}')
    assert (found.value, found.format_error) == (1.0, "")


def test_the_end_of_reasoning_inside_a_value_is_part_of_it() -> None:
    """A record whose text was ``</think>`` lost all before it."""
    sample = asked("json-fields", '{"n": "</think>"}')
    assert score(sample, '{"n": "</think>"}').value == 1.0
    assert score(sample, 'the template began it\n</think>\n\n{"n": "</think>"}').value == 1.0


def test_an_answer_prefix_belongs_to_the_document() -> None:
    assert score(asked("json-fields", '{"n": 1}', answer_prefix='{"n"'), ": 1}").value == 1.0


@pytest.mark.parametrize(
    ("answer", "value", "error"),
    [
        ('{"n": 5}', 1.0, ""),
        ('{"n": "5"}', 0.0, "not of the schema: n: '5' is not of type 'integer'"),
        ("{}", 0.0, "not of the schema: document: 'n' is a required property"),
        ("no", 0.0, "not JSON: "),
    ],
)
def test_json_schema(answer: str, value: float, error: str) -> None:
    found = score(asked("json-schema", details={"schema": SCHEMA}), answer)
    assert found.value == value
    assert found.format_error.startswith(error)
    assert bool(found.format_error) == bool(error)


def test_a_record_that_breaks_its_schema_is_a_format_error_besides() -> None:
    found = score(asked("json-fields", '{"n": 1}', details={"schema": SCHEMA}), '{"n": "1"}')
    assert found.value == 0.0
    assert found.format_error == "not of the schema: n: '1' is not of type 'integer'"


def test_a_schema_that_is_none_and_one_that_refers_outside_are_refused() -> None:
    with pytest.raises(UsageError, match=r"^file, line 3: not a JSON schema: 'no' is not valid"):
        check_schema({"type": "no"}, "file, line 3")
    with pytest.raises(UsageError, match=r"refers to 'https://example\.invalid/s', which is not inside it"):
        score(asked("json-schema", details={"schema": {"$ref": "https://example.invalid/s"}}), "{}")


@given(st.text())
def test_no_text_makes_the_reader_raise(text: str) -> None:
    found = read_json(text)
    assert found.found or found.format_error
