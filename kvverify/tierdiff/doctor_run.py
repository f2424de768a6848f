"""The doctor's run: settings are read, and what no endpoint shows is tried with a few requests."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from kvverify.errors import KvverifyError
from kvverify.events import ProblemMet, RequestAnswered
from kvverify.live.engine import EngineInfo
from kvverify.live.prompts import STORY_TOKENS, equal_length, units_of
from kvverify.tierdiff.connect import Connection, connect, emit_engine
from kvverify.tierdiff.doctor import Seen, diagnose
from kvverify.tierdiff.server import Emit, Item, Server

_TOKENS = 8


@dataclass(frozen=True, slots=True)
class _Look:
    """A request's answer and the tokens it hit, by the counters or else by its usage; None: nothing tells."""

    known: RequestAnswered
    hbm: int | None
    lower: int | None


def doctor(connection: Connection, seed: int, emit: Emit) -> None:
    """Look at a server and emit what was found. What the server, or our way to it, gets wrong is a :class:`ProblemMet`."""
    try:
        asyncio.run(_run(connection, seed, emit))
    except KvverifyError as problem:
        emit(ProblemMet(where=connection.url, problem=str(problem)))


async def _run(connection: Connection, seed: int, emit: Emit) -> None:
    async with connect(connection, seed, emit) as server:
        emit_engine(server)
        try:
            seen = await look(server)
        except KvverifyError as problem:
            seen = Seen(problem=str(problem))
        for result in diagnose(server.info, seen):
            emit(result)


def prompt_tokens(info: EngineInfo, *, room: int) -> int:
    """Return the length of a prompt that both tiers hit alike.

    Raises:
        UsageError: none is known, or none fits.
    """
    return equal_length(info, units_of(info, STORY_TOKENS), room=room)


async def look(server: Server) -> Seen:
    """Send one prompt three times, empty HBM, and send it a fourth time.

    Raises:
        KvverifyError: no prompt fits, or the server does not answer.
    """
    length = prompt_tokens(server.info, room=_TOKENS)
    item = Item(0, await server.writer.write(length, 0), _TOKENS)
    canary = Item(1, await server.writer.write(length, 1), 1)
    expected = server.engine.expected(item.prompt.tokens)
    looks = [await _ask(server, "doctor", item) for _ in range(3)]
    first, second, third = looks
    failed = next((one.known.error for one in looks if one.known.error), "")
    if failed:
        return Seen(problem=f"a request failed: {failed}", expected=expected.hbm_hit_tokens)
    same = (second.known.tokens, second.known.logprobs) == (third.known.tokens, third.known.logprobs)
    reached = [hits for hits in (first.hbm, first.lower) if hits is not None]
    await server.empty(canary)
    fourth = await _ask(server, "doctor-lower", item)
    return Seen(
        second_hit=second.hbm,
        lower_hit=None if fourth.known.error else fourth.lower,
        expected=min(expected.hbm_hit_tokens, expected.hit_tokens),
        repeats=same if second.hbm else None,
        first_hit=sum(reached) if reached else None,
        problem=fourth.known.error,
    )


async def _ask(server: Server, arm: str, item: Item) -> _Look:
    before = await server.engine.evidence()
    _, known = await server.ask(arm, item)
    delta = (await server.engine.evidence()).since(before)
    below = [hits for hits in (delta.dram_hit_tokens, delta.disk_hit_tokens) if hits is not None]
    cached = known.cached_tokens if known.cached_tokens >= 0 else None
    return _Look(known, cached if delta.hbm_hit_tokens is None else delta.hbm_hit_tokens, sum(below) if below else None)
