"""Answers in OpenAI's form, with vLLM's additions: token ids, cached tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.lab.engine import Step
from kvverify.lab.plants import Plant
from kvverify.lab.stops import Stops
from kvverify.lab.tokens import Tokenizer


@dataclass(frozen=True)
class Wish:
    """What the client wants to see of an answer."""

    identifier: str
    created: int
    model: str
    prompt: tuple[int, ...]
    chat: bool
    logprobs: int | None
    token_ids: bool
    stops: Stops


class Writer:
    """Turns steps into choices. One for each answer: a character may need several tokens."""

    def __init__(self, wish: Wish, tokenizer: Tokenizer, plant: Plant) -> None:
        self._wish = wish
        self._tokenizer = tokenizer
        self._plant = plant
        self._tokens: list[int] = []
        self._sent = 0  # characters

    def document(
        self, steps: Sequence[Step], finish: str | None, *, stream: bool, first: bool = True
    ) -> dict[str, Any]:
        """Return a whole answer, or a part of one, with ``steps`` as its new tokens."""
        wish = self._wish
        text, offset = self._text(steps, last=finish is not None), self._sent
        self._sent += len(text)
        choice: dict[str, Any] = {"index": 0, "finish_reason": finish, "logprobs": None}
        if wish.chat:
            choice["delta" if stream else "message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        if wish.logprobs is not None:
            choice["logprobs"] = self._chat_logprobs(steps) if wish.chat else self._logprobs(steps, offset)
        if wish.token_ids:
            choice["token_ids"] = [step.token for step in steps]
            if first:
                choice["prompt_token_ids"] = list(wish.prompt)
        return self.envelope([choice], stream=stream)

    def envelope(self, choices: list[dict[str, Any]], *, stream: bool) -> dict[str, Any]:
        """Return the document around ``choices``."""
        wish = self._wish
        kind = ("chat.completion.chunk" if stream else "chat.completion") if wish.chat else "text_completion"
        head = {"id": wish.identifier, "object": kind, "created": wish.created, "model": wish.model}
        return {**head, "choices": choices}

    def usage(self, generated: int, cached: int) -> dict[str, Any]:
        """Return the usage object; ``cached`` are hits of both tiers together."""
        prompt = len(self._wish.prompt)
        counts = {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}
        return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}

    def _text(self, steps: Sequence[Step], *, last: bool) -> str:
        """Return what is new to show: no unfinished character, nothing of a stop or of what may become one."""
        self._tokens += [step.token for step in steps]
        whole = self._tokenizer.decode(self._tokens)
        return self._wish.stops.shown(whole if last else whole.rstrip("\ufffd"), last=last)[self._sent :]

    def _logprob(self, step: Step, value: float) -> float | None:
        if step.number == 1 and self._plant.id == "null-logprob":
            return None
        return math.nan if step.number == 1 and self._plant.id == "nan-logprob" else value

    def _logprobs(self, steps: Sequence[Step], offset: int) -> dict[str, Any]:
        words = [self._tokenizer.decode([step.token]) for step in steps]
        offsets = [offset + sum(map(len, words[:i])) for i in range(len(words))]
        return {
            "text_offset": offsets,
            "token_logprobs": [self._logprob(step, step.logprob) for step in steps],
            "tokens": words,
            "top_logprobs": [
                {self._tokenizer.decode([t]): self._logprob(step, p) for t, p in step.top} for step in steps
            ],
        }

    def _chat_logprobs(self, steps: Sequence[Step]) -> dict[str, Any]:
        def entry(step: Step, token: int, value: float) -> dict[str, Any]:
            word = self._tokenizer.decode([token])
            return {"token": word, "logprob": self._logprob(step, value), "bytes": list(word.encode())}

        return {
            "content": [
                {**entry(s, s.token, s.logprob), "top_logprobs": [entry(s, t, p) for t, p in s.top]} for s in steps
            ]
        }
