"""Emptying vLLM's prefix cache."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.vllm_facts import HOW_TO_START

_TRIES = 20
_PAUSE_S = 0.25


async def reset_prefix_cache(control: Control, *, external: bool) -> None:
    """Reset the prefix cache, and the connector's with ``external``, until the body says success.

    vLLM answers 200 with success false while blocks are in use or a store is under way. Success drops hashes, no bytes, and it
    is answered without any connector too: that the tier is empty, the next evidence shows.

    Raises:
        FlushFailed: refused, no such endpoint, or an answer that does not say success.
    """
    where = f"POST {control.url}/reset_prefix_cache"
    params = {"reset_running_requests": "false", "reset_external": "true" if external else "false"}
    for attempt in range(_TRIES):
        if attempt:
            await asyncio.sleep(_PAUSE_S)
        try:
            answer: Any = await control.post_json("/reset_prefix_cache", params=params)
        except ServerProblem as problem:
            hint = f"; {HOW_TO_START}" if problem.status in (404, 405) else ""
            raise FlushFailed(f"{problem}{hint}") from problem
        if not isinstance(answer, Mapping) or not isinstance(answer.get("success"), bool):
            raise FlushFailed(f"{where}: expected {{'success': true}}, got {answer!r:.200}")
        if answer["success"]:
            return
    raise FlushFailed(
        f"{where}: success false {_TRIES} times; blocks are in use: is another client at work, or a store stuck?"
    )
