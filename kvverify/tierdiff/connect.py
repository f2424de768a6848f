"""From a URL to the server under test, with its adapter, client and prompts; what every live command begins with."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kvverify.errors import UsageError
from kvverify.events import EngineDescribed
from kvverify.live.client import Client
from kvverify.live.control import Control
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.registry import find
from kvverify.live.prompts import Tokenizer, Writer, count_by_usage
from kvverify.tierdiff.server import Emit, Server, describe

KNOW_SALTS = ("vllm", "lab")  # engines, by the beginning of their adapters' names, that take cache_salt


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How to reach a server. ``tier``: the lower tier to test, of an engine that has several. ``salt``: a ``cache_salt`` of this run; ``shared``: other clients may use it as well."""

    url: str
    engine: str = "auto"
    tier: str | None = None
    concurrency: int = 1
    salt: bool = False
    shared: bool = False
    model: str | None = None  # a model configuration, for exact bytes
    lmcache_url: str | None = None
    timeout_s: float = 300.0
    settle_s: float = 0.25  # counters that agree over this time have settled


@asynccontextmanager
async def connect(to: Connection, seed: int, emit: Emit) -> AsyncIterator[Server]:
    """Find and describe the server; its connections are closed after. ``seed`` must be new for a server that remembers.

    Fillers are drawn without it: one that the server knows already overwrites nothing, and none of them is ever compared.

    Raises:
        ServerProblem: nothing answers, or nobody knows what does.
        UsageError: no such engine or model, or the engine does not serve from the tier that is asked for.
    """
    told = EngineOptions(model_config=to.model, lmcache_url=to.lmcache_url, tier=to.tier, settle_interval_s=to.settle_s)
    engine = await find(to.url, to.engine, told)
    try:
        info = await engine.describe()
        if to.tier not in (None, info.lower_tier):
            raise UsageError(
                f"--tier {to.tier}: {info.engine} at {to.url} serves from {info.lower_tier} when HBM is empty"
            )
        async with (
            Client(to.url, info.model, timeout_s=to.timeout_s, concurrency=to.concurrency) as client,
            Control(to.url) as control,
        ):
            tokenizer = Tokenizer(control, info.model)
            source = tokenizer if await tokenizer.works() else count_by_usage(client, f"kvverify-count-{seed:x}")
            yield Server(
                engine=engine,
                client=client,
                info=info,
                writer=Writer(source, seed),
                fillers=Writer(source, secrets.randbits(40)),
                emit=emit,
                salt=f"kvverify-{seed:x}" if to.salt else None,
                shared=to.shared,
            )
    finally:
        await engine.close()


def emit_engine(server: Server, notes: Sequence[str] = ()) -> None:
    """Log what the server says of itself, with what else is to be said of it."""
    info = server.info
    described = EngineDescribed(engine=info.engine, model=info.model, info=describe(info), notes=[*info.notes, *notes])
    server.emit(described)
