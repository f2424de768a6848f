"""Asks a server for the logprobs of a text that is given: ``/v1/completions`` with ``echo``, one request for each choice."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.accuracy.ask import Question, answered
from kvverify.accuracy.lm_eval.likelihood import Likelihood, encoded, text_of
from kvverify.accuracy.source import Tokenizer
from kvverify.errors import EnvironmentProblem
from kvverify.events_accuracy import SampleAnswered
from kvverify.live.answer import Answer
from kvverify.live.control import Control, ServerProblem

REFUSED = range(400, 500)


class BadEcho(ValueError):
    """The server's answer is not the echo of what was sent."""


@dataclass(slots=True)
class EchoAsker:
    """Asks samples of the rule "lm-eval-likelihood" of one endpoint, number ``endpoint``."""

    control: Control
    model: str
    tokenizer: Tokenizer
    endpoint: int = 0

    async def ask(self, question: Question) -> SampleAnswered:
        """Return the scored answer: its text holds the likelihoods, its token counts are sums over the choices.

        Raises:
            EnvironmentProblem: the server refuses ``echo``.
        """
        sample, began = question.sample, time.perf_counter()
        found: list[Likelihood] = []
        sent = told = cached = 0
        error = ""
        for context, continuation in sample.details["choices"]:
            ids, start = encoded(context, continuation, self.tokenizer)
            try:
                answer = await self._echo(ids)
                found.append(likelihood(answer, start, len(ids)))
                counts = usage(answer)
            except (ServerProblem, BadEcho) as problem:
                error = str(problem)
                break
            sent, told, cached = sent + len(ids), told + counts[0], cached + counts[1]
        seconds = time.perf_counter() - began
        got = Answer(question.key[:16], told, cached, text=text_of(found), seconds=seconds, finish="echo", error=error)
        return answered(Question(sample, question.key, question.text, sent), got, self.endpoint)

    async def _echo(self, ids: list[int]) -> Any:
        body = {"model": self.model, "prompt": ids, "max_tokens": 1, "temperature": 0.0, "logprobs": 1, "echo": True}
        try:
            return await self.control.post_json("/v1/completions", body)
        except ServerProblem as problem:
            if problem.status in REFUSED:
                raise EnvironmentProblem(
                    f"likelihood tasks need `echo` with logprobs, and this server refuses: {problem}"
                ) from problem
            raise


def likelihood(answer: Any, start: int, sent: int) -> Likelihood:
    """Return the likelihood of the tokens from ``start`` to ``sent``, the number that was sent; one more was generated.

    Raises:
        BadEcho: the tokens are not as many, or have no logprobs.
    """
    try:
        choice = answer["choices"][0]["logprobs"]
        own, best = choice["token_logprobs"], choice["top_logprobs"]
    except (LookupError, TypeError) as problem:
        raise BadEcho(f"expected the logprobs of the echoed prompt, got {str(answer)[:120]}") from problem
    if not isinstance(own, Sequence) or not isinstance(best, Sequence) or not len(own) == len(best) == sent + 1:
        count = len(own) if isinstance(own, Sequence) else "no list"
        raise BadEcho(
            f"expected logprobs of {sent} echoed tokens and one more, got {count}: echo was ignored or cut short"
        )
    values = [_number(value) for value in own[start:sent]]
    if not values:
        raise BadEcho("expected a continuation of one token at least, got none")
    greedy = all(value >= max(map(_number, _values(top))) for value, top in zip(values, best[start:sent], strict=True))
    return math.fsum(values), greedy


def usage(answer: Any) -> tuple[int, int]:
    """Return how many prompt tokens the server read, and how many of them from a cache (0 where it does not say).

    Raises:
        BadEcho: it does not say what it read.
    """
    told = answer.get("usage") if isinstance(answer, Mapping) else None
    read = told.get("prompt_tokens") if isinstance(told, Mapping) else None
    if type(read) is not int:
        raise BadEcho(f"expected usage.prompt_tokens, got {str(told)[:80]}")
    details = told.get("prompt_tokens_details") if isinstance(told, Mapping) else None
    cached = details.get("cached_tokens") if isinstance(details, Mapping) else None
    return read, cached if type(cached) is int else 0


def _values(top: Any) -> list[Any]:
    if not isinstance(top, Mapping) or not top:
        raise BadEcho(f"expected the best logprobs of each token, got {str(top)[:80]}")
    return list(top.values())


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise BadEcho(f"expected a finite logprob, got {value!r}")
    return float(value)
