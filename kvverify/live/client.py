"""Completion requests through the openai package, and what came back. What went wrong is an error in words, never a value."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import openai

from kvverify.live import stream
from kvverify.live.answer import Answer
from kvverify.live.control import api_key_from_environment, one_line
from kvverify.live.openai_server import OpenAIServer
from kvverify.live.prompt import Prompt, prompt_hash
from kvverify.live.stream_chat import ChatParts

__all__ = ["Answer", "Client"]


class Client(OpenAIServer):
    """Sends greedy completion requests for ``model`` to the server at ``url``, at most ``concurrency`` at a time, never twice.

    ``timeout_s`` bounds a whole request, from its first byte to the last of the answer.
    """

    def __init__(
        self, url: str, model: str, *, api_key: str | None = None, timeout_s: float = 300.0, concurrency: int = 1
    ) -> None:
        super().__init__(url, api_key_from_environment() if api_key is None else api_key, timeout_s)
        self.model = model
        self._turns = asyncio.Semaphore(concurrency)

    async def complete(
        self,
        prompt: str | list[int] | Prompt,
        *,
        max_tokens: int,
        logprobs: int = 1,
        salt: str | None = None,
        extra: dict[str, Any] | None = None,
    ) -> Answer:
        """Return the greedy answer to ``prompt`` of at most ``max_tokens`` tokens, with the logprob of each.

        ``salt`` separates cache entries of servers that know ``cache_salt``; ``extra`` goes into the request as it is. Never
        raises for what the server does: the answer's ``error`` says it.
        """
        body, name = (prompt.body, prompt.hash) if isinstance(prompt, Prompt) else (prompt, prompt_hash(prompt))
        request = {
            **self._greedy(max_tokens),
            "prompt": body,
            "logprobs": logprobs,
            "return_token_ids": True,
            **({"cache_salt": salt} if salt else {}),
            **(extra or {}),
        }
        return await self._send("/completions", request, stream.Parts(), name)

    async def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
        extra: dict[str, Any] | None = None,
    ) -> Answer:
        """Return the greedy answer to a conversation.

        There are no ids and no logprobs: a server that parses tool calls leaves out parts of the answer, and their logprobs. Never
        raises for what the server does: the answer's ``error`` says it.
        """
        request = {
            **self._greedy(max_tokens),
            "messages": list(messages),
            **({"tools": list(tools)} if tools else {}),
            **(extra or {}),
        }
        name = prompt_hash(json.dumps([request["messages"], list(tools)], sort_keys=True, default=dict))
        return await self._send("/chat/completions", request, ChatParts(), name)

    def _greedy(self, max_tokens: int) -> dict[str, Any]:
        return {
            "model": self.model,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "seed": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def _send(self, path: str, request: dict[str, Any], parts: stream.Parts | ChatParts, name: str) -> Answer:
        async with self._turns:
            start, bad_logprob = time.perf_counter(), False
            try:
                async with asyncio.timeout(self.timeout_s):
                    await self._receive(path, request, parts)
                received = parts.whole()
            except (TimeoutError, openai.APITimeoutError):
                error = f"no complete answer within {self.timeout_s:g} s, {parts.number} parts of it came"
            except openai.APIStatusError as problem:
                error = f"status {problem.status_code}: {problem.response.text or problem.message}"
            except openai.APIError as problem:  # refused, reset or cut connections and errors inside the stream
                error = f"{problem.message} {_cause(problem)}after {parts.number} parts of the answer"
            except stream.BadAnswer as problem:
                error, bad_logprob = str(problem), isinstance(problem, stream.BadLogprob)
            except ValueError as problem:  # openai decodes JSON and UTF-8 without a net
                error = f"expected JSON in the stream, got {problem}"
            else:
                return _answer(name, received, start, time.perf_counter())
            seconds = time.perf_counter() - start
            return Answer(name, seconds=seconds, error=one_line(error, self._key), bad_logprob=bad_logprob)

    async def _receive(self, path: str, request: dict[str, Any], parts: stream.Parts | ChatParts) -> None:
        # post() and not completions.create(): decoded JSON as it came, no number made of a string, no model made of each
        # part (18 ms for 256 of them), and 32k token ids are sent in 3 ms and not in 320 ms, for create() checks each
        answer = await self._openai.post(
            path, body=request, cast_to=object, stream=True, stream_cls=openai.AsyncStream[object]
        )
        async with answer:
            async for part in answer:
                parts.take(part, time.perf_counter())


def _cause(problem: openai.APIError) -> str:
    cause = problem.__cause__
    return f"({type(cause).__name__} {cause}) " if cause else ""


def _answer(name: str, received: stream.Received, start: float, end: float) -> Answer:
    """Put an answer together; ``start`` and ``end`` are readings of the clock, in seconds."""
    gaps = received.output_tokens - 1
    return Answer(
        name,
        received.prompt_tokens,
        received.cached_tokens,
        received.tokens,
        received.texts,
        received.logprobs,
        received.text,
        ttft=(received.first_at or end) - start,
        itl=(received.last_at - received.first_at) / gaps if gaps > 0 else 0.0,
        seconds=end - start,
        finish=received.finish,
        output_tokens=received.output_tokens,
        tool_calls=received.tool_calls,
    )
