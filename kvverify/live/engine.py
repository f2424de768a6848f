"""The plug-in contract of an engine: what a server says of itself, and what it counts.

None means that the engine does not say; it is never zero. Evidence is cumulative: two readings are subtracted.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from kvverify.errors import KvverifyError

TIERS = ("hbm", "dram", "disk")


class FlushFailed(KvverifyError):
    """A tier was not emptied, or the server does not offer to."""

    exit_code = 3


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What is known of a server.

    ``block_tokens`` is the engine's own block, ``hit_tokens`` the unit in which the lower tier is hit (a multiple of it, such as
    LMCache's chunk). ``capacity_tokens`` maps tiers to what they hold. ``kv_layers`` are (KV format, heads of one rank, head
    size) of each layer where they are known, for exact bytes. ``options`` are effective settings as the server tells them, for
    the report and the doctor. ``tiers_between`` lie between HBM and the lower tier, and must be empty for a hit below them.
    ``prompts_in_hbm``: HBM holds so many prompts however short they are; None: as many as fit.
    """

    engine: str  # the adapter's name
    model: str
    build: str = ""
    kv_cache_dtype: str | None = None
    block_tokens: int | None = None
    hit_tokens: int | None = None
    capacity_tokens: dict[str, int] = field(default_factory=dict)
    lower_tier: str = "dram"  # the tier that hits come from when HBM is empty
    tiers_between: tuple[str, ...] = ()
    ranks: int = 1
    kv_layers: tuple[tuple[str, int, int], ...] = ()
    dev_endpoints: tuple[str, ...] = ()
    max_context: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    prompts_in_hbm: int | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """Counters of the server since its start. A token is counted in the tier that it was hit in.

    ``queries`` are prompt tokens that were looked up, ``computed_tokens`` prompt tokens that were computed. ``witness`` holds the
    counters of a second, independent source (LMCache's own server, say), by name.
    """

    hbm_hit_tokens: int | None = None
    dram_hit_tokens: int | None = None
    disk_hit_tokens: int | None = None
    loaded_bytes: int | None = None
    computed_tokens: int | None = None
    queries: int | None = None
    requests: int | None = None
    preemptions: int | None = None
    running: int | None = None  # a gauge, not a counter
    witness: dict[str, int] = field(default_factory=dict)

    def since(self, earlier: Evidence) -> Evidence:
        """Return what was counted between ``earlier`` and now; ``running`` stays as it is now.

        A difference may be negative: a counter that went backwards is for the gate to refuse.
        """
        names = [f.name for f in dataclasses.fields(self) if f.name not in ("running", "witness")]
        values: dict[str, Any] = {}
        for name in names:
            now, before = getattr(self, name), getattr(earlier, name)
            values[name] = None if now is None or before is None else now - before
        witness = {n: v - earlier.witness[n] for n, v in self.witness.items() if n in earlier.witness}
        return Evidence(**values, running=self.running, witness=witness)


@dataclass(frozen=True, slots=True)
class Expected:
    """What a prompt must show when it is served wholly from the lower tier.

    ``hit_tokens`` are those of the lower tier, ``hbm_hit_tokens`` what HBM hits when it holds the prompt; a comparison of the
    tiers needs both equal. ``loaded_bytes`` None: the engine does not count them, or its layout is not known. ``witness`` are
    the exact deltas of the second source, by name.
    """

    hit_tokens: int
    hbm_hit_tokens: int
    computed_tokens: int
    loaded_bytes: int | None = None
    witness: dict[str, int] = field(default_factory=dict)


@runtime_checkable
class Engine(Protocol):
    """What an adapter offers. ``name`` is the word for ``--engine``; an instance belongs to one URL.

    Optional, used where present: ``poison() -> str`` overwrites free HBM blocks and says how, ``scramble() -> str`` overwrites
    what the packed layers of HBM hold and leaves it to be hit, ``digests(prompt token ids) ->
    list[str]`` returns a digest of each block that holds the prompt, ``settle()`` waits until stores under way are done. Of a tier that
    is written and read on command: ``store(name, prompt tokens)`` keeps what HBM holds, ``restore(name)`` brings it back.
    """

    name: str

    async def detect(self) -> bool:
        """Is the server at the URL one of these?"""
        ...

    async def describe(self) -> EngineInfo:
        """Return what the server says of itself."""
        ...

    async def flush(self, tier: str) -> None:
        """Empty ``tier`` and nothing below it.

        Raises:
            FlushFailed: the server refuses, or has no way to.
        """
        ...

    async def evidence(self) -> Evidence:
        """Return the counters once they have settled."""
        ...

    def expected(self, prompt_tokens: int) -> Expected:
        """Return what a prompt of ``prompt_tokens`` tokens must show; :meth:`describe` was called before."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...
