"""A client of the standard library for the lab, and prompts that it can answer."""

from __future__ import annotations

import json
import random
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvverify.lab.serving import Options, running

MODEL = "lab-tiny"
BLOCK = 32
_WORDS = (
    "the",
    "of",
    "and",
    "to",
    "in",
    "that",
    "was",
    "his",
    "he",
    "it",
    "with",
    "is",
    "for",
    "as",
    "had",
    "you",
    "not",
    "be",
)


@dataclass(frozen=True)
class Answered:
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    cached: int
    prompt: int


@dataclass(frozen=True)
class Asking:
    """One lab. ``get`` and ``post`` raise urllib's HTTPError."""

    url: str

    def get(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:  # noqa: S310 - our own server
            return str(answer.read().decode())

    def post(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        request = urllib.request.Request(self.url + path, json.dumps(body or {}).encode(), method="POST")  # noqa: S310
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            document: dict[str, Any] = json.loads(answer.read())
            return document

    def refused(self, path: str, body: dict[str, Any]) -> tuple[int, str]:
        try:
            answer = self.post(path, body)
        except urllib.error.HTTPError as error:
            return error.code, str(json.loads(error.read())["error"]["message"])
        raise AssertionError(f"not refused: {answer}")

    def complete(self, prompt: str | list[int], max_tokens: int = 10, **extra: Any) -> Answered:
        wish = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "logprobs": 1, "return_token_ids": True}
        document = self.post("/v1/completions", {**wish, **extra})
        choice, usage = document["choices"][0], document["usage"]
        return Answered(
            choice["text"],
            tuple(choice["token_ids"]),
            tuple(choice["logprobs"]["token_logprobs"]),
            usage["prompt_tokens_details"]["cached_tokens"],
            usage["prompt_tokens"],
        )

    def flush(self, *, external: bool = False) -> None:
        assert self.post(f"/reset_prefix_cache?reset_external={str(external).lower()}") == {"success": True}

    def poison(self, **body: Any) -> int:
        return int(self.post("/lab/poison", body)["poisoned_blocks"])

    def digests(self, prompt: str) -> list[str | None]:
        found: list[str | None] = self.post("/lab/digests", {"prompt": prompt})["digests"]
        return found

    def counters(self) -> dict[str, float]:
        """Every sample by its name and, after a slash, source."""
        found = {}
        for line in self.get("/metrics").splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                source = name.split('source="')[1].split('"')[0] if 'source="' in name else ""
                short = name.split("{")[0].removeprefix("vllm:").removesuffix("_total")
                found[f"{short}/{source}" if source else short] = float(value)
        return found

    def counted(self, before: dict[str, float]) -> dict[str, float]:
        """What was counted since ``before``, without zeros."""
        return {name: v - before[name] for name, v in self.counters().items() if v != before[name]}


@contextmanager
def lab(**options: Any) -> Iterator[Asking]:
    with running(Options(**options)) as url:
        yield Asking(url)


def secret_prompt(secret: str, tokens: int = 300, seed: int = 0) -> str:
    """A prompt of ``tokens`` bytes that the lab answers with `` SECRET.``; ``seed`` decides everything else in it."""
    source = random.Random(f"{seed}")
    start = f"Session {source.random():.6f}. The secret code of this session is {secret}. "
    end = " The secret code of this session is"
    filler = " ".join(source.choice(_WORDS) for _ in range(tokens))
    return start + filler[: tokens - len(start) - len(end)] + end
