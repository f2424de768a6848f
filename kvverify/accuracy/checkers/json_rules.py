"""Answers that must be JSON: of a schema, or with the right fields."""

from __future__ import annotations

import json
from typing import Any

from kvverify.accuracy.checkers.answer_text import whole_answer
from kvverify.accuracy.checkers.json_answer import JsonAnswer, read_json
from kvverify.accuracy.checkers.parameters import share_right
from kvverify.accuracy.checkers.schema import violation
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score


def json_schema(sample: Sample, text: str) -> Score:
    """Score 1 where the answer holds a JSON document of ``details["schema"]``, whatever its values."""
    answer = read_json(whole_answer(sample, text))
    error = answer.format_error
    broken = _violation(sample, answer) if answer.found else error
    return Score(float(answer.found and not broken), format_error=broken or error)


def json_fields(sample: Sample, text: str) -> Score:
    """Score 1 where every field is that of one of the references (JSON texts); aspect ``parameters``: the share that is.

    A document that breaks ``details["schema"]``, where there is one, is a format error besides.
    """
    answer = read_json(whole_answer(sample, text))
    if not answer.found:
        return Score(0.0, format_error=answer.format_error, aspects={"parameters": 0.0})
    share = max(share_right(json.loads(reference), answer.value) for reference in sample.references)
    error = _violation(sample, answer) or answer.format_error
    return Score(float(share == 1.0), format_error=error, aspects={"parameters": share})


def _violation(sample: Sample, answer: JsonAnswer) -> str:
    schema: Any = sample.details.get("schema")
    return f"not of the schema: {broken}" if schema is not None and (broken := violation(schema, answer.value)) else ""
