"""The parts of a streamed completion put together, and refused where anything is missing, null or not a number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openai.types import Completion, CompletionChoice


class BadAnswer(ValueError):
    """The server's answer is incomplete or is not what the completions interface promises."""


class BadLogprob(BadAnswer):
    """A logprob is null or not a number: that is no missing answer but a wrong one."""


@dataclass(slots=True)
class Received:
    """What the parts of an answer hold; ``first_part`` and ``last_part`` are the parts with the first and the last token."""

    prompt_tokens: int = -1
    cached_tokens: int = -1
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    text: list[str] = field(default_factory=list)
    first_part: int = 0
    last_part: int = 0


def name_of(text: str) -> int:
    """Return a negative number that stands for a token of which only the string is known; equal strings have equal numbers."""
    return -1 - int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest())


def read(parts: Sequence[Completion]) -> Received:
    """Return what ``parts``, in the order they came, hold.

    Raises:
        BadAnswer: no end or no usage (the stream was cut), a part of another form, counts that disagree, or a logprob that is
            missing, null, or not a finite number.
    """
    found = Received()
    ids: list[int] = []
    texts: list[str] = []
    logprobs: list[float] = []
    ended, usage = False, None
    for number, part in enumerate(parts):
        choices = getattr(part, "choices", None)
        if not isinstance(choices, list):
            raise BadAnswer(f"part {number} of the answer has no choices: {_short(part)}")
        usage = getattr(part, "usage", None) or usage
        for choice in choices:
            if not isinstance(choice, CompletionChoice) or not isinstance(choice.text, str):
                raise BadAnswer(f"part {number} of the answer has no text: {_short(choice)}")
            before = len(logprobs)
            _take(choice, number, ids, texts, logprobs)
            if len(logprobs) > before:
                found.first_part = number if before == 0 else found.first_part
                found.last_part = number
            found.text.append(choice.text)
            ended = ended or choice.finish_reason is not None
    if not ended:
        raise BadAnswer(f"the stream was cut: {len(parts)} parts and {len(logprobs)} tokens came, no finish_reason")
    _take_usage(found, usage, parts[-1], len(logprobs))
    if ids and len(ids) != len(logprobs):
        raise BadAnswer(f"the answer has {len(ids)} token ids and {len(logprobs)} logprobs")
    _refuse_odd("logprob", logprobs, (int, float), "a finite number")
    _refuse_odd("token id", ids, (int,), "a number")
    _refuse_odd("string", texts, (str,), "text")
    found.tokens = tuple(ids) if ids else tuple(map(name_of, texts))
    found.texts, found.logprobs = tuple(texts), tuple(logprobs)
    return found


def _take(choice: CompletionChoice, number: int, ids: list[int], texts: list[str], logprobs: list[float]) -> None:
    """Append the tokens of one part; a part may hold several, or none."""
    given = getattr(choice, "token_ids", None)
    if given:
        ids += given
    scores = choice.logprobs
    if scores is None:
        return
    if scores.tokens is None and scores.token_logprobs is None:  # llama.cpp answers in the form of the chat interface
        content = getattr(scores, "content", None) or ()
        try:
            texts += [str(entry["token"]) for entry in content]
            logprobs += [entry["logprob"] for entry in content]
            ids += [entry["id"] for entry in content if "id" in entry]
        except (TypeError, KeyError) as error:
            raise BadAnswer(
                f"part {number} of the answer has logprobs of an unknown form: {_short(content)}"
            ) from error
        return
    names, values = scores.tokens, scores.token_logprobs
    if not isinstance(names, list) or not isinstance(values, list) or len(names) != len(values):
        raise BadAnswer(f"part {number} of the answer: tokens and logprobs do not pair up: {_short(scores)}")
    texts += names
    logprobs += values


def _take_usage(found: Received, usage: Any, last: Completion, received: int) -> None:
    """Read what the server says of the whole request, and compare it with what came."""
    if usage is None:
        raise BadAnswer(
            "the stream was cut before the usage came, or the server does not know stream_options.include_usage"
        )
    prompt: Any = getattr(usage, "prompt_tokens", None)
    completion: Any = getattr(usage, "completion_tokens", None)
    if not _is_count(prompt) or not _is_count(completion):
        raise BadAnswer(f"the usage is not in tokens: {_short(usage)}")
    if completion != received:
        raise BadAnswer(f"the server generated {completion} tokens, logprobs came for {received}")
    details = getattr(usage, "prompt_tokens_details", None)
    timings = getattr(last, "timings", None)  # of llama.cpp
    cached = getattr(details, "cached_tokens", None)
    if cached is None and isinstance(timings, dict):
        cached = timings.get("cache_n")
    if cached is not None and not _is_count(cached):
        raise BadAnswer(f"the usage's cached tokens are no number of tokens: {_short(usage)}")
    found.prompt_tokens = prompt
    found.cached_tokens = -1 if cached is None else cached


def _refuse_odd(what: str, values: Sequence[Any], types: tuple[type, ...], expected: str) -> None:
    """Refuse values of another type; a bool is none of ``types``, and NaN and infinity are no numbers."""
    if set(map(type, values)) <= {*types} and (str in types or all(map(math.isfinite, values))):
        return
    odd = ((i, v) for i, v in enumerate(values) if type(v) not in types or (str not in types and not math.isfinite(v)))
    position, value = next(odd)
    kind = BadLogprob if what == "logprob" else BadAnswer
    raise kind(f"the {what} of generated token {position} is {value!r}, expected {expected}")


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
