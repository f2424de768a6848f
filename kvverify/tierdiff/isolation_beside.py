"""New prompts beside sessions: what reads its beginning from a cache shares steps with what reads nothing.

vLLM's TurboQuant attention then ignored the cached beginning wherever the new prompt was at least as long (vllm-project/vllm#46460).
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from kvverify.errors import UsageError
from kvverify.live.answer import Answer
from kvverify.live.engine import EngineInfo
from kvverify.live.prompt import Prompt
from kvverify.live.prompts import STORY_TOKENS, Writer
from kvverify.tierdiff.server import Item, Server

_LEAST_BLOCK = 8  # tokens; the first of a prompt are then enough of its number that no other begins with them


@dataclass(frozen=True, slots=True)
class Beside:
    """Answers to the new prompts of one round, and the tokens that were computed for them: all."""

    answers: tuple[Answer, ...] = ()
    computed_tokens: int = 0


@dataclass(slots=True)
class NewPrompts:
    """Up to ``count`` prompts of ``tokens`` tokens in each round that no tier knows. What a round did not need is for the next."""

    writer: Writer
    count: int
    tokens: int
    _ready: deque[Prompt] = field(default_factory=deque)

    async def write(self) -> None:
        """Write those of a round before it begins: nothing but prompts is to be on the server meanwhile."""
        while len(self._ready) < self.count:
            self._ready.append(await self.writer.unheard(self.tokens))

    async def ask(self, server: Server, arm: str, until: asyncio.Future[Any]) -> Beside:
        """Send one after the other, for a token each, until ``until`` is done: one is in flight for as long as possible."""
        answers = list[Answer]()
        while len(answers) < self.count and not until.done():
            answer, _ = await server.ask(arm, Item(len(answers), self._ready.popleft(), 1))
            answers.append(answer)
        return Beside(tuple(answers), len(answers) * self.tokens)


def new_tokens(info: EngineInfo, sessions: int, session_tokens: int) -> int:
    """Return the tokens of a new prompt: more than any of ``sessions`` of up to ``session_tokens`` tokens, their answers included.

    Raises:
        UsageError: such a prompt does not fit beside all of them, or its beginning may be known.
    """
    tokens, block = max(session_tokens + 1, STORY_TOKENS), info.block_tokens or info.hit_tokens or 1
    if block < _LEAST_BLOCK:
        raise UsageError(f"a block is {block} tokens: a prompt may begin as another did")
    if info.max_context is not None and tokens + 1 > info.max_context:
        raise UsageError(f"{tokens} tokens, more than each session has, are beyond the context of {info.max_context}")
    blocks = sessions * -(-session_tokens // block) + -(-(tokens + 1) // block)
    pool = info.capacity_tokens.get("hbm")
    if pool is not None and (blocks + 1) * block > pool:  # vLLM keeps one block for itself
        raise UsageError(f"{sessions} sessions and one of them take {blocks * block} tokens, HBM holds {pool}")
    return tokens
