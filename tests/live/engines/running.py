"""Opening an adapter against a fake server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from kvverify.live.answer import Answer
from kvverify.live.engine import Engine
from kvverify.live.engines import registry
from kvverify.live.engines.options import EngineOptions

QUICK = EngineOptions(settle_interval_s=0.0, settle_limit_s=0.5, timeout_s=5.0)
E = TypeVar("E", bound=Engine)


@asynccontextmanager
async def opened(kind: type[E], url: str, options: EngineOptions = QUICK) -> AsyncIterator[E]:
    """Find the engine at ``url``, which must be of ``kind``, and describe it."""
    engine = await registry.find(url, options=options)
    try:
        assert type(engine) is kind
        await engine.describe()
        yield engine
    finally:
        await engine.close()


def answered(prompt: int, cached: int) -> list[Answer]:
    """Return the one answer to a prompt, as the client records it."""
    return [Answer("0", prompt_tokens=prompt, cached_tokens=cached)]
