"""The JSON of an answer: the whole text, a fenced block, or the first object or list inside other words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from kvverify.accuracy.checkers.answer_text import AROUND, fenced

_TRIES = 50  # brackets at which JSON inside words is looked for; an answer full of them is no JSON


class NotJson(ValueError):
    """A text that is not one JSON document; the message says where it breaks."""


@dataclass(frozen=True, slots=True)
class JsonAnswer:
    """``found`` says whether there was a document at all; ``format_error`` what is wrong with its form, empty for nothing."""

    value: Any
    found: bool
    format_error: str = ""


def parse(text: str) -> Any:
    """Return the JSON document ``text``: no NaN, no key twice, nothing after it.

    Raises:
        NotJson: anything else.
    """
    return _decoded(text, 0, whole=True)


def read_json(answer: str) -> JsonAnswer:
    """Find the JSON document of an answer. A fence around it is no format error, words around it are."""
    try:
        return JsonAnswer(parse(answer.strip()), found=True)
    except NotJson as problem:
        error = f"not JSON: {problem}"
    block = fenced(answer)
    if block is not None:
        try:
            value = parse(block.body.strip())
        except NotJson as problem:
            error = f"not JSON: {problem}"
        else:
            return JsonAnswer(value, found=True, format_error=f"JSON with {AROUND}" if block.around else "")
    begins = answer.lstrip()[:1] in ("{", "[")
    at, left = -1, 1 if begins else _TRIES  # parts of a document that begins the answer and is broken are no answer
    while left and (at := _next_bracket(answer, at + 1)) >= 0:
        left -= 1
        try:
            value = _decoded(answer, at, whole=False)
        except NotJson:
            continue
        return JsonAnswer(value, found=True, format_error=f"JSON with {AROUND}")
    return JsonAnswer(None, found=False, format_error=error if answer.strip() else "empty answer")


def _next_bracket(text: str, start: int) -> int:
    found = [at for at in (text.find("{", start), text.find("[", start)) if at >= 0]
    return min(found, default=-1)


def _decoded(text: str, at: int, *, whole: bool) -> Any:
    try:
        value, end = _DECODER.raw_decode(text, at)
    except RecursionError:
        raise NotJson("nested too deeply") from None
    except ValueError as problem:  # JSONDecodeError is one, and so is a number of more than 4,300 digits
        raise NotJson(str(problem)) from None
    if whole and text[end:].strip():
        raise NotJson(f"more after the document, at character {end}")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        raise NotJson(f"key {next(key for key in keys if keys.count(key) > 1)!r} twice")
    return made


def _constant(name: str) -> Any:
    raise NotJson(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)
