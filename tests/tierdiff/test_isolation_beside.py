"""New prompts beside sessions: the gate adds up to the token with them, they go out one at a time, and fit or are left out."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openai", reason="the live extra is not installed")

from kvverify.errors import UsageError
from kvverify.events import RequestAnswered
from kvverify.live.answer import Answer
from kvverify.live.engine import EngineInfo, Evidence, Expected
from kvverify.live.prompt import Prompt
from kvverify.tierdiff.isolation import gate_of, measured
from kvverify.tierdiff.isolation_beside import Beside, NewPrompts, new_tokens
from kvverify.tierdiff.server import Item
from kvverify.tierdiff.sessions import Session

UNIT = 32


class _Engine:
    def expected(self, tokens: int) -> Expected:
        hit = (tokens - 1) // UNIT * UNIT
        return Expected(hit, hit, tokens - hit, loaded_bytes=hit * 100)


@dataclass
class _Server:
    """What :func:`gate_of` and :meth:`NewPrompts.ask` need of one. The sessions have answered after ``lasts`` new prompts."""

    engine: _Engine = field(default_factory=_Engine)
    info: EngineInfo = field(default_factory=lambda: EngineInfo("engine", "model"))
    shared: bool = False
    round: int = 1
    lasts: int = 0
    sessions: asyncio.Future[None] | None = None
    asked: list[tuple[str, Item]] = field(default_factory=list)

    async def ask(self, arm: str, item: Item) -> tuple[Answer, None]:
        self.asked.append((arm, item))
        if self.sessions and len(self.asked) == self.lasts:
            self.sessions.set_result(None)
        return _answer(item.prompt.tokens, 0), None


def _answer(tokens: int, cached: int, error: str = "") -> Answer:
    return Answer("h", tokens, cached, (1,), ("a",), (-0.5,), error=error)


def _gate(sessions: int, shared_hits: int, new: Sequence[Answer], tokens: int, **off: int) -> list[str]:
    """Return the reasons of a round of ``sessions`` of 206 tokens whose counters moved as they must, but for ``off``."""
    made = [Session(str(n), Prompt([1] * 206, 206, "1", str(n)), shared_tokens=64) for n in range(sessions)]
    hbm, hit = 64 * shared_hits, 192
    moved: dict[str, Any] = {
        "hbm_hit_tokens": hbm,
        "dram_hit_tokens": sessions * hit - hbm,
        "loaded_bytes": (sessions * hit - hbm) * 100,
        "computed_tokens": sessions * 14 + sum(a.prompt_tokens - a.cached_tokens for a in new),
        "queries": sessions * 206 + sum(a.prompt_tokens for a in new),
        "requests": sessions + len(new),
    }
    start: dict[str, Any] = dict.fromkeys(moved, 1000)
    before = Evidence(**start, preemptions=0, running=0)
    after = replace(before, **{name: 1000 + n + off.get(name, 0) for name, n in moved.items()})
    server: Any = _Server()
    answers, beside = [_answer(206, hit)] * sessions, Beside(tuple(new), len(new) * tokens)
    return gate_of(server, "sessions", made, answers, (before, after), poisoned=True, beside=beside).reasons


ROUND: dict[str, Any] = {"sessions": st.integers(2, 8), "count": st.integers(0, 5), "tokens": st.integers(223, 900)}


@given(**ROUND, hits=st.integers(0, 7))
def test_a_round_with_new_prompts_adds_up(sessions: int, count: int, tokens: int, hits: int) -> None:
    assert _gate(sessions, min(hits, sessions - 1), [_answer(tokens, 0)] * count, tokens) == []


@given(
    **ROUND,
    name=st.sampled_from(["computed_tokens", "requests", "dram_hit_tokens", "loaded_bytes"]),
    off=st.sampled_from([-32, -1, 1, 32]),
)
def test_nothing_else_fits_between_them(sessions: int, count: int, tokens: int, name: str, off: int) -> None:
    """One token computed too few, one request of somebody else's: the new prompts leave no room for it."""
    assert _gate(sessions, 0, [_answer(tokens, 0)] * count, tokens, **{name: off})


def test_a_new_prompt_that_hits_or_fails_is_a_reason() -> None:
    assert _gate(4, 0, [_answer(400, 0), _answer(400, 32)], 400, hbm_hit_tokens=32)
    assert "1 of 6 requests failed: gone" in _gate(4, 0, [_answer(400, 0), _answer(400, 0, error="gone")], 400)


@given(lasts=st.integers(1, 9), count=st.integers(0, 6))
def test_they_are_sent_one_after_another_until_the_sessions_have_answered(lasts: int, count: int) -> None:
    """Each prompt once: what a round leaves is sent in the next."""

    class Numbered:
        written = 0

        async def unheard(self, tokens: int) -> Prompt:
            self.written += 1
            return Prompt([self.written], tokens, "", "")

    async def go() -> None:
        writer: Any = Numbered()
        new = NewPrompts(writer, count, 400)
        bodies = []
        for _ in range(2):
            await new.write()
            server: Any = _Server(lasts=lasts, sessions=asyncio.get_running_loop().create_future())
            beside = await new.ask(server, "sessions-new", server.sessions)
            sent = min(count, lasts)
            assert (len(beside.answers), beside.computed_tokens) == (sent, sent * 400)
            assert [(arm, item.request, item.max_tokens) for arm, item in server.asked] == [
                ("sessions-new", n, 1) for n in range(sent)
            ]
            bodies += [item.prompt.body for _, item in server.asked]
        assert bodies == [[n + 1] for n in range(len(bodies))]

    asyncio.run(go())


@given(
    sessions=st.integers(1, 40),
    longest=st.integers(50, 2000),
    block=st.integers(1, 300),
    context=st.none() | st.integers(100, 3000),
    pool=st.none() | st.integers(100, 50000),
)
def test_a_new_prompt_is_longer_than_every_session_and_fits_beside_all(
    sessions: int, longest: int, block: int, context: int | None, pool: int | None
) -> None:
    capacity = {} if pool is None else {"hbm": pool}
    info = EngineInfo("engine", "model", block_tokens=block, max_context=context, capacity_tokens=capacity)
    try:
        tokens = new_tokens(info, sessions, longest)
    except UsageError:
        tokens = max(longest + 1, 320)
        fits = pool is None or sessions * (longest + block) + tokens + 2 * block <= pool
        assert block < 8 or (context is not None and tokens >= context) or not fits
        return
    assert tokens > longest
    assert block >= 8
    assert context is None or tokens < context
    assert pool is None or sessions * longest + tokens < pool


def test_the_summary_counts_each_new_prompt_that_was_answered_once() -> None:
    answered = RequestAnswered(arm="sessions-new", round=1, request=0, prompt_hash="h")
    others = [dataclasses.replace(answered, round=2), dataclasses.replace(answered, request=1, error="gone")]
    assert measured([answered, answered, *others, dataclasses.replace(answered, arm="sessions")]).new_prompts == 2
