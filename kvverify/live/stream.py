"""The parts of a streamed completion put together, and refused where anything is missing, null or not a number."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class BadAnswer(ValueError):
    """The server's answer is incomplete or is not what the completions interface promises."""


class BadLogprob(BadAnswer):
    """A logprob is null or not a number: that is no missing answer but a wrong one."""


def name_of(text: str) -> int:
    """Return a negative number that stands for a token of which only the string is known; equal strings have equal numbers."""
    return -1 - int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).digest())


@dataclass(frozen=True, slots=True)
class Received:
    """A whole answer; times are readings of the caller's clock when the first and the last token came."""

    prompt_tokens: int
    cached_tokens: int
    tokens: tuple[int, ...]
    texts: tuple[str, ...]
    logprobs: tuple[float, ...]
    text: str
    first_at: float
    last_at: float
    finish: str
    output_tokens: int
    tool_calls: tuple[tuple[str, str], ...] = ()


class Parts:
    """Takes the parts of an answer one by one. Kept are values alone: kept parts make the garbage collector dear."""

    def __init__(self) -> None:
        self.number = 0
        self._ids: list[int] = []
        self._texts: list[str] = []
        self._logprobs: list[float] = []
        self._text: list[str] = []
        self._finish = ""
        self._usage: Any = None
        self._timings: Any = None  # of llama.cpp
        self._first_at = self._last_at = 0.0

    def take(self, part: Any, now: float) -> None:
        """Take the next part, decoded JSON that came ``now``; it may hold several tokens, or none.

        Raises:
            BadAnswer: the part is of another form.
        """
        try:
            if part.get("usage") is not None:
                self._usage, self._timings = part["usage"], part.get("timings")
            for choice in part["choices"]:
                self._text.append(choice["text"])
                if choice.get("finish_reason") is not None:
                    self._finish = str(choice["finish_reason"])
                if ids := choice.get("token_ids"):
                    self._ids += ids
                if scores := choice.get("logprobs"):
                    self._take_logprobs(scores)
                    self._last_at = now
                    self._first_at = self._first_at or now
        except (AttributeError, TypeError, KeyError) as error:
            raise BadAnswer(f"part {self.number} of the answer is of another form: {short(part)}") from error
        self.number += 1

    def _take_logprobs(self, scores: Any) -> None:
        if "content" in scores:  # llama.cpp answers in the form of the chat interface
            content = scores["content"]
            self._texts += [entry["token"] for entry in content]
            self._logprobs += [entry["logprob"] for entry in content]
            self._ids += [entry["id"] for entry in content if "id" in entry]
        else:
            self._texts += scores["tokens"]
            self._logprobs += scores["token_logprobs"]

    def whole(self) -> Received:
        """Return the answer after its last part.

        Raises:
            BadAnswer: no end or no usage (the stream was cut), counts that disagree, or a logprob that is missing, null, or
                not a finite number.
        """
        count = len(self._logprobs)
        if not self._finish:
            raise BadAnswer(f"the stream was cut: {self.number} parts and {count} tokens came, no finish_reason")
        prompt_tokens, cached_tokens, generated = take_usage(self._usage, self._timings)
        if generated != count:
            raise BadAnswer(f"the server generated {generated} tokens, logprobs came for {count}")
        for what, values in (("strings", self._texts), ("ids", self._ids)):
            if len(values) != count and (values or what == "strings"):
                raise BadAnswer(f"the answer has {len(values)} token {what} and {count} logprobs")
        _refuse_odd("logprob", self._logprobs, (int, float), "a finite number")
        _refuse_odd("token id", self._ids, (int,), "a number")
        _refuse_odd("string", [*self._texts, *self._text], (str,), "text")
        return Received(
            prompt_tokens,
            cached_tokens,
            tuple(self._ids) if self._ids else tuple(map(name_of, self._texts)),
            tuple(self._texts),
            tuple(self._logprobs),
            "".join(self._text),
            self._first_at,
            self._last_at,
            self._finish,
            count,
        )


def take_usage(usage: Any, timings: Any) -> tuple[int, int, int]:
    """Return prompt, cached (-1: not told) and generated tokens as the server counts them.

    Raises:
        BadAnswer: no usage came, or it is not in tokens.
    """
    if usage is None:
        raise BadAnswer(
            "the stream was cut before the usage came, or the server does not know stream_options.include_usage"
        )
    try:
        prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if cached is None and timings is not None:
            cached = timings.get("cache_n")
    except (AttributeError, TypeError, KeyError) as error:
        raise BadAnswer(f"the usage is of another form: {short(usage)}") from error
    if not _is_count(prompt) or not _is_count(completion):
        raise BadAnswer(f"the usage is not in tokens: {short(usage)}")
    if cached is not None and not _is_count(cached):
        raise BadAnswer(f"the usage's cached tokens are no number of tokens: {short(usage)}")
    return prompt, -1 if cached is None else cached, completion


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


def short(value: Any) -> str:
    """Return ``value`` for an error line."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:120]}…"
