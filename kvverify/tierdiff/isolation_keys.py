"""Salts and adapters: the same prompt must not be hit across them, in no tier. Only counters can see that, for the text is the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kvverify.events import RequestAnswered, SessionChecked
from kvverify.live.answer import Answer
from kvverify.live.client import Client
from kvverify.live.prompt import Prompt
from kvverify.tierdiff.isolation import ANSWER_TOKENS, Isolation
from kvverify.tierdiff.server import Item, Server
from kvverify.tierdiff.sessions import secret_sessions


@dataclass(frozen=True, slots=True)
class _Asked:
    """An answer and the prompt tokens that any tier, and that lower tiers hit for it; -1: nothing says how many."""

    answer: Answer
    hits: int
    lower_hits: int


async def check_salts(isolation: Isolation) -> None:
    """Send one prompt under two salts, then, once HBM was emptied, under a third."""
    asks = _Asker(isolation.server, "salts", await _prompt(isolation, "salts"))
    run = f"kvverify-{isolation.options.seed}"
    await asks.ask(salt=f"{run}-a")
    again = await asks.ask(salt=f"{run}-a")
    other = await asks.ask(salt=f"{run}-b")
    _crossed(isolation.server, "salt b", "salt a", other, known=again.hits > 0)
    await isolation.server.empty(await isolation.server.canary(1000))
    third = await asks.ask(salt=f"{run}-c")
    back = await asks.ask(salt=f"{run}-a")
    _crossed(isolation.server, "salt c, after a flush", "salt a or b", third, known=back.lower_hits > 0)


async def check_adapters(isolation: Isolation, clients: Mapping[str, Client]) -> None:
    """Send one prompt to the base model and to each adapter; then, out of HBM, each must give its own answer again.

    ``clients`` are those of the adapters, by name.
    """
    server = isolation.server
    asks = _Asker(server, "adapters", await _prompt(isolation, "adapters"))
    await asks.ask()
    own = {"base": (await asks.ask()).answer}
    for name, client in clients.items():
        first = await asks.ask(client)
        again = await asks.ask(client)
        own[name] = again.answer
        _crossed(server, f"adapter {name}", "the base model or another adapter", first, known=again.hits > 0)
    await server.empty(await server.canary(1001))
    for name, client in {"base": server.client, **clients}.items():
        _reloaded(server, name, own, await asks.ask(client))


async def _prompt(isolation: Isolation, name: str) -> Prompt:
    unit, seed = isolation.unit, sum(name.encode()) + isolation.options.seed
    own = max(2, -(-128 // unit))
    made = await secret_sessions(isolation.tokenize, 1, depths=1, unit=unit, shared_units=1, own_units=own, seed=seed)
    return made[0].prompt


class _Asker:
    """Sends one prompt, one request at a time, and reads the counters around each."""

    def __init__(self, server: Server, arm: str, prompt: Prompt) -> None:
        self._server, self._arm, self._prompt, self._number = server, arm, prompt, 0
        server.round = 0

    async def ask(self, client: Client | None = None, salt: str | None = None) -> _Asked:
        """Ask ``client``'s model, or the server's own one."""
        asked = replace(self._server, client=client or self._server.client, salt=salt)
        before = await asked.engine.evidence()
        known: RequestAnswered
        answer, known = await asked.ask(self._arm, Item(self._number, self._prompt, ANSWER_TOKENS))
        delta = (await asked.engine.evidence()).since(before)
        self._number += 1
        lower = [hits for hits in (delta.dram_hit_tokens, delta.disk_hit_tokens) if hits is not None]
        counted = [hits for hits in (delta.hbm_hit_tokens, *lower) if hits is not None]
        return _Asked(answer, max(known.cached_tokens, sum(counted) if counted else -1), sum(lower) if lower else -1)


def _crossed(server: Server, session: str, other: str, asked: _Asked, *, known: bool) -> None:
    """Check that a first request hit nothing. It counts if the very same prompt does hit where it should (``known``)."""
    if asked.answer.error:
        return
    leak = asked.hits > 0
    server.emit(
        SessionChecked(
            session=session,
            round=1,
            right=not leak,
            qualified=known and asked.hits >= 0,
            foreign=other if leak else "",
            detail=f"{asked.hits} tokens were hit that {other} had computed" if leak else "",
        )
    )


def _reloaded(server: Server, name: str, own: Mapping[str, Answer], asked: _Asked) -> None:
    """Check that ``name`` gives from the lower tier the tokens that it gave from HBM."""
    tokens = asked.answer.tokens
    if asked.answer.error or own[name].error:
        return
    right = tokens == own[name].tokens
    others = [n for n, a in own.items() if n != name and not right and not a.error and a.tokens == tokens]
    reloaded = asked.lower_hits > 0
    server.emit(
        SessionChecked(
            session="base model" if name == "base" else f"adapter {name}",
            round=2,
            right=right,
            qualified=reloaded,
            foreign=", ".join(others),
            from_tier=server.info.lower_tier if reloaded else "",
            detail="" if right else f"expected {own[name].text[:60]!r}, got {asked.answer.text[:60]!r}",
        )
    )
