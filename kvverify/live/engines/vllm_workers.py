"""Calls to kvverify's worker extension inside a vLLM server (:mod:`kvverify.inserver.worker_extension`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.vllm_facts import HOW_TO_START

WORKER_EXTENSION = "kvverify.inserver.worker_extension.KvverifyWorker"


async def call(control: Control, method: str, *args: Any) -> list[dict[str, Any]]:
    """Call a method of the extension and return the answers, one for each rank.

    Raises:
        FlushFailed: the server has no dev endpoints, or runs without the extension.
    """
    try:
        answer = await control.post_json("/collective_rpc", {"method": method, "args": list(args)})
    except ServerProblem as problem:
        raise FlushFailed(f"{problem}; {HOW_TO_START} and --worker-extension-cls {WORKER_EXTENSION}") from problem
    results = answer.get("results") if isinstance(answer, Mapping) else None
    if not isinstance(results, list) or not results or not all(isinstance(r, dict) for r in results):
        raise FlushFailed(f"{method}: expected an answer of each rank, got {answer!r:.200}")
    return results


async def poison(control: Control) -> str:
    """Overwrite all HBM blocks, look for the pattern in each, and say so.

    Raises:
        FlushFailed: no extension, or a block that does not hold the pattern.
    """
    written = await call(control, "kvverify_poison")
    for rank, seen in enumerate(await call(control, "kvverify_poisoned")):
        found, looked = seen.get("poisoned"), seen.get("looked_at")
        if not looked or found != looked:
            raise FlushFailed(
                f"poison: rank {rank}: {found} of {looked} blocks hold the pattern; is a request running?"
            )
    size = sum(int(answer.get("bytes") or 0) for answer in written)
    return f"worker extension: {written[0].get('blocks')} blocks, {size:,} bytes on {len(written)} ranks, all seen"


async def scramble(control: Control) -> str:
    """Overwrite what the packed layers hold without a flush, and say so: what is hit afterwards is garbage.

    Raises:
        FlushFailed: no extension, or a block that was not overwritten.
    """
    written = await call(control, "kvverify_scramble")
    for rank, answer in enumerate(written):
        blocks, seen = answer.get("blocks"), answer.get("scrambled")
        if not blocks or seen != blocks:
            raise FlushFailed(
                f"scramble: rank {rank}: {seen} of {blocks} blocks hold the pattern; is a request running?"
            )
    first = written[0]
    size = sum(int(answer.get("bytes") or 0) for answer in written)
    where = f"{first.get('layers')} of {first.get('of')} layers"
    return (
        f"worker extension: {first.get('blocks')} blocks in {where}, {size:,} bytes on {len(written)} ranks, all seen"
    )


async def digests(control: Control) -> list[str]:
    """Return the digests of all blocks that are no longer poison, sorted; those of several ranks are joined by ``+``.

    Which blocks hold which tokens only the scheduler knows, hence not by block id.

    Raises:
        FlushFailed: no extension.
    """
    untouched = set.intersection(*(set(a.get("blocks") or ()) for a in await call(control, "kvverify_poisoned")))
    joined: dict[int, list[str]] = {}
    for answer in await call(control, "kvverify_digests"):
        for block, digest in zip(answer.get("blocks") or (), answer.get("digests") or (), strict=True):
            if block not in untouched:
                joined.setdefault(int(block), []).append(str(digest))
    return sorted("+".join(parts) for parts in joined.values())
