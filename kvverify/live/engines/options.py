"""What the user can tell an engine adapter that the server does not say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an adapter.

    ``model_config`` is a folder, config.json or preset of the served model, for exact bytes. ``lmcache_url`` is the HTTP port
    of an LMCache server, by default found through the connector's configuration. ``tier`` is the lower tier to test, dram or
    disk, of an engine that has both; None for the engine's usual one.

    Counters count as settled when two readings ``settle_interval_s`` apart agree, within ``settle_limit_s``.
    """

    model_config: str | None = None
    lmcache_url: str | None = None
    tier: str | None = None
    settle_interval_s: float = 0.25
    settle_limit_s: float = 10.0
    timeout_s: float = 60.0
