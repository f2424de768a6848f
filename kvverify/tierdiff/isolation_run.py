"""The isolation test from its options: find the server, run the sessions, salts and adapters, say which rate of leaks is excluded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from kvverify.errors import KvverifyError
from kvverify.events import Event, GateEvaluated, ProblemMet, RunStarted, SessionChecked
from kvverify.live.client import Client
from kvverify.live.control import Control
from kvverify.live.prompts import Tokenizer
from kvverify.logged_options import LoggedOptions
from kvverify.tierdiff.connect import KNOW_SALTS, Connection, connect, emit_engine
from kvverify.tierdiff.isolation import Done, Isolation, IsolationOptions, check_sessions, measured
from kvverify.tierdiff.isolation_keys import check_adapters, check_salts
from kvverify.tierdiff.server import Emit, Server

_MOST_ADAPTERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationPlan(LoggedOptions):
    """What the user decides: ``sessions`` at once, ``rounds`` times, with up to ``beside`` new prompts each time.

    The rest is as in :class:`Connection`.
    """

    url: str
    engine: str = "auto"
    sessions: int = 32
    rounds: int = 20
    shared: bool = False
    model: str | None = None
    lmcache_url: str | None = None
    timeout_s: float = 300.0
    beside: int = 8

    def connection(self) -> Connection:
        """Return how to reach the server: all sessions are in flight at once, and a new prompt beside them."""
        return Connection(
            url=self.url,
            engine=self.engine,
            concurrency=self.sessions + 1,
            shared=self.shared,
            model=self.model,
            lmcache_url=self.lmcache_url,
            timeout_s=self.timeout_s,
        )


def isolation(plan: IsolationPlan, seed: int, emit: Emit, earlier: Iterable[Event] = ()) -> None:
    """Run the test and emit what happens; rounds that ``earlier`` holds wholly are not run again.

    What the server, or our way to it, gets wrong is a :class:`ProblemMet`.
    """
    known = list(earlier)

    def keep(event: Event) -> None:
        known.append(event)
        emit(event)

    try:
        asyncio.run(_run(plan, seed, keep, known))
    except KvverifyError as problem:
        keep(ProblemMet(where=plan.url, problem=str(problem)))
    if any(isinstance(e, SessionChecked) for e in known):
        emit(measured(known))


async def _run(plan: IsolationPlan, seed: int, emit: Emit, known: list[Event]) -> None:
    # a resumed run must not send what the server may remember of the first attempt
    attempt = sum(isinstance(e, RunStarted) for e in known)
    async with connect(plan.connection(), seed + attempt, emit) as server, Control(plan.url) as control:
        tokenizer = Tokenizer(control, server.info.model)
        adapters = await adapters_of(control, server.info.model)
        salts = server.info.engine.startswith(KNOW_SALTS)
        notes = _notes(adapters, salts=salts)
        emit_engine(server, notes)
        if not await tokenizer.works():
            reason = "the server has no /tokenize: prompts whose secret must come from the cache cannot be made"
            emit(GateEvaluated(arm="sessions", round=0, request=-1, reasons=[reason]))
            return
        options = IsolationOptions(plan.sessions, plan.rounds, seed + attempt, plan.beside)
        test = Isolation(server, tokenizer, options, tuple(notes))
        done: Done = frozenset((e.session, e.round) for e in known if isinstance(e, SessionChecked))
        if salts:
            await check_salts(test)
        if adapters:
            await _adapters(server, test, plan, adapters)
        await check_sessions(test, done)


async def _adapters(server: Server, test: Isolation, plan: IsolationPlan, names: list[str]) -> None:
    async with AsyncExitStack() as stack:
        clients = {}
        for name in names:
            client = Client(plan.url, name, timeout_s=plan.timeout_s)
            clients[name] = await stack.enter_async_context(client)
        await check_adapters(test, clients)


async def adapters_of(control: Control, model: str) -> list[str]:
    """Return the first adapters of ``model`` that the server lists, by the names under which they are asked."""
    answer = await control.get_json("/v1/models")
    cards = answer.get("data") if isinstance(answer, Mapping) else None
    listed = [card for card in cards or () if isinstance(card, Mapping)]
    return [str(card["id"]) for card in listed if card.get("parent") and card.get("id") != model][:_MOST_ADAPTERS]


def _notes(adapters: list[str], *, salts: bool) -> list[str]:
    notes = [] if salts else ["salts left out: kvverify does not know that this engine takes cache_salt"]
    return notes if adapters else [*notes, "adapters left out: the server lists none"]
