"""The answer to one completion request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one request, or the ``error`` that came instead; then the values are empty.

    ``prompt_tokens`` and ``cached_tokens`` are the server's usage (-1: it does not say), ``tokens`` the generated ids (see
    :func:`kvverify.live.stream.name_of` where the server gives none), ``texts`` their strings, ``logprobs`` their logprobs,
    all of one length. ``finish`` is why the answer ended, as the server says it (stop, length, tool_calls). ``output_tokens`` is
    the server's count, the one number that a chat answer has: it brings neither ids nor logprobs, but ``tool_calls``, (name,
    arguments) as the model wrote them. ``ttft`` is the time to the first token, ``itl`` the mean time between tokens, in seconds.
    """

    prompt_hash: str
    prompt_tokens: int = -1
    cached_tokens: int = -1
    tokens: tuple[int, ...] = ()
    texts: tuple[str, ...] = ()
    logprobs: tuple[float, ...] = ()
    text: str = ""
    ttft: float = 0.0
    itl: float = 0.0
    seconds: float = 0.0
    error: str = ""
    bad_logprob: bool = False  # the error is a logprob that is null or not a number
    finish: str = ""
    output_tokens: int = 0
    tool_calls: tuple[tuple[str, str], ...] = ()
