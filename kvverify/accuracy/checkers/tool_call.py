"""Tool calls: the right functions with the right arguments, from the server's own ``tool_calls`` or from the answer's text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.accuracy.checkers.answer_text import AROUND, whole_answer
from kvverify.accuracy.checkers.json_answer import NotJson, parse, read_json
from kvverify.accuracy.checkers.parameters import share_right
from kvverify.accuracy.checkers.schema import violation
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score

_TAGGED = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Call:
    """One call; ``error`` says why it has no ``arguments``."""

    name: str
    arguments: Any
    error: str = ""


def calls_text(calls: Iterable[tuple[str, str]], content: str = "") -> str:
    """Return the text under which ``tool_calls`` of a chat answer are scored and kept: (name, arguments as the model wrote them)."""
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return json.dumps({"tool_calls": listed, **({"content": content} if content else {})}, ensure_ascii=False)


def tool_call(sample: Sample, text: str) -> Score:
    """Score 1 where the calls are those of one reference: a JSON call, a list of calls in any order, ``[]`` for none.

    Format errors: no call where one must be, arguments that are not JSON, a function that was not offered, arguments that break its
    schema, words around the call. Aspects: ``name``, the share of right functions; ``parameters``, the share of right arguments.
    """
    calls, error = read_calls(whole_answer(sample, text))
    error = error or next((wrong for call in calls if (wrong := _misuse(call, _offered(sample)))), "")
    value, names, parameters = max(_against(json.loads(reference), calls) for reference in sample.references)
    if not calls and value == 1.0:
        error = ""  # no call was asked for, and words are no format error
    return Score(value, format_error=error, aspects={"name": names, "parameters": parameters})


def read_calls(answer: str) -> tuple[list[Call], str]:
    """Return the calls of an answer, and what is wrong with its form."""
    tagged = _TAGGED.findall(answer)
    if tagged:
        return [call for body in tagged for call in _tagged(body)], ""
    document = read_json(answer)
    calls = _calls(document.value) if document.found else []
    if not calls:
        empty = document.found and isinstance(document.value, dict) and document.value.get("tool_calls") == []
        return [], "" if empty else f"no call: {document.format_error or 'JSON without name and arguments'}"
    return calls, f"call with {AROUND}" if document.format_error else ""


def _tagged(body: str) -> list[Call]:
    try:
        value = parse(body.strip())
    except NotJson as problem:
        return [Call("", None, f"call is not JSON: {problem}")]
    return _calls(value) or [Call("", None, "call without name and arguments")]


def _calls(value: Any) -> list[Call]:
    if isinstance(value, list):
        return [call for entry in value if isinstance(entry, dict) for call in _calls(entry)]
    if not isinstance(value, dict):
        return []
    if isinstance(value.get("tool_calls"), list):
        return _calls(value["tool_calls"])
    inner = value["function"] if isinstance(value.get("function"), dict) else value
    arguments = inner.get("arguments", inner.get("parameters"))
    if not isinstance(inner.get("name"), str) or arguments is None:
        return []
    return [_call(inner["name"], arguments)]


def _call(name: str, arguments: Any) -> Call:
    if isinstance(arguments, str):  # as the OpenAI interface has them
        try:
            arguments = parse(arguments.strip())
        except NotJson as problem:
            return Call(name, None, f"arguments of {name[:60]} are not JSON: {problem}")
    if not isinstance(arguments, dict):
        return Call(name, None, f"arguments of {name[:60]} are not an object")
    return Call(name, arguments)


def _offered(sample: Sample) -> dict[str, Mapping[str, Any]]:
    """Return the parameters' schema of every tool; a text prompt has its tools in ``details["tools"]``."""
    tools: Sequence[Any] = sample.tools or sample.details.get("tools", ())
    return {tool["function"]["name"]: tool["function"].get("parameters", {}) for tool in tools}


def _misuse(call: Call, offered: Mapping[str, Mapping[str, Any]]) -> str:
    if call.error:
        return call.error
    if call.name not in offered:
        return f"no tool {call.name[:60]!r} was offered"
    broken = violation(offered[call.name], call.arguments)
    return f"arguments of {call.name}: {broken}" if broken else ""


def _against(reference: Any, calls: Sequence[Call]) -> tuple[float, float, float]:
    """Return value, share of names and share of parameters against one reference; each of its calls takes the likest one left."""
    expected = reference if isinstance(reference, list) else [reference]
    most = max(len(expected), len(calls))
    if most == 0:
        return 1.0, 1.0, 1.0
    left, names, parameters = list(calls), 0, 0.0
    for wanted in expected:
        alike = [
            (share_right(wanted["arguments"], call.arguments), at)
            for at, call in enumerate(left)
            if call.name == wanted["name"]
        ]
        if alike:
            share, at = max(alike, key=lambda pair: (pair[0], -pair[1]))
            left.pop(at)
            names, parameters = names + 1, parameters + share
    return float(parameters == most), names / most, parameters / most
