"""The HTTP side of an LMCache server (known: 0.5.3 and 0.5.6): its settings, its own counters, the clearing of L1."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.geometry import member, number
from kvverify.live.metrics import Metrics, parse

DEFAULT_HTTP_PORT = 8080
_CLEAR_TRIES = 20
_CLEAR_PAUSE_S = 0.25


@dataclass(frozen=True, slots=True)
class LmcacheFacts:
    """Answers of ``/status`` and ``/config``.

    ``port`` is the request port that vLLM connects to, ``models`` are (model, world size), once for each engine whose workers
    registered with the server, ``counts_chunks``: it does the copies itself, in one object a chunk, so that it counts them.
    """

    chunk_tokens: int
    port: int | None
    hash_algorithm: str
    l2_adapters: tuple[str, ...]
    models: tuple[tuple[str, int], ...]
    l1_bytes: int | None
    counts_chunks: bool


@dataclass(frozen=True, slots=True)
class LmcacheCounters:
    """Tokens that lookups hit, whether or not vLLM then loaded them, and chunks loaded.

    ``l1`` and ``l2`` None: LMCache 0.5.3, or no lookup yet.
    """

    hit: int = 0
    l1: int | None = None
    l2: int | None = None
    chunks_loaded: int = 0


class LmcacheServer:
    """An LMCache server's HTTP port. It gets no API key: the key is vLLM's."""

    def __init__(self, url: str, *, timeout_s: float = 30.0) -> None:
        self.control = Control(url, api_key="", timeout_s=timeout_s)
        self.url = self.control.url

    async def facts(self) -> LmcacheFacts:
        """Return the server's settings.

        Raises:
            ServerProblem: no answer, or that of something else than an LMCache server.
        """
        status = await self.control.get_json("/status")
        chunk = number(member(status, "chunk_size")) if isinstance(status, Mapping) else None
        if not chunk or not isinstance(status.get("storage_manager"), Mapping):
            raise ServerProblem(
                f"GET {self.url}/status: not the HTTP port of an LMCache server, it answers {status!r:.120}"
            )
        config = await self.control.get_json("/config")
        workers = [w for w in (status.get("cache_context_meta") or {}).values() if isinstance(w, Mapping)]
        return LmcacheFacts(
            chunk_tokens=chunk,
            port=number(member(config, "mp", "port")),
            hash_algorithm=str(status.get("hash_algorithm") or ""),
            l2_adapters=_adapters(status["storage_manager"]),
            models=_engines(workers),
            l1_bytes=sum(number(m.get("memory_total_bytes")) or 0 for m in _l1_managers(status)) or None,
            counts_chunks=bool(workers) and member(config, "mp", "separate_object_groups") is not True,
        )

    async def scrape(self) -> Metrics:
        """Return the server's metrics.

        Raises:
            ServerProblem: no answer, or no metrics of LMCache in it.
        """
        metrics = parse(await self.control.get_text("/metrics"))
        if not any(name.startswith("lmcache_mp_") for name in metrics.samples):
            raise ServerProblem(
                f"GET {self.url}/metrics: no lmcache_mp_ metric in it; start it without --disable-observability and "
                f"--disable-metrics"
            )
        return metrics

    async def clear_l1(self) -> None:
        """Drop all objects of L1 and look whether they are gone; what is locked stays until its transfer is done.

        Raises:
            FlushFailed: refused, or objects remain.
        """
        left = -1
        for attempt in range(_CLEAR_TRIES):
            if attempt:
                await asyncio.sleep(_CLEAR_PAUSE_S)
            try:
                answer = await self.control.post_json("/cache/clear", {"tier": "l1", "force": False})
                status = await self.control.get_json("/status")
            except ServerProblem as problem:
                raise FlushFailed(str(problem)) from problem
            if member(answer, "status") != "ok":
                raise FlushFailed(f"POST {self.url}/cache/clear: expected status ok, got {answer!r:.200}")
            counts = [number(m.get("total_object_count")) for m in _l1_managers(status)]
            if not counts or None in counts:
                raise FlushFailed(
                    f"GET {self.url}/status: no total_object_count of L1, so the clearing cannot be verified"
                )
            left = sum(filter(None, counts))
            if not left:
                return
        raise FlushFailed(
            f"POST {self.url}/cache/clear: {left} objects stay in L1; are transfers stuck, or clients at work?"
        )

    async def close(self) -> None:
        """Close connections."""
        await self.control.close()


def counters(metrics: Metrics) -> LmcacheCounters:
    """Return LMCache's own counters.

    OpenTelemetry shows a counter only once something was added to it: absent is 0, or not supported. Every lookup adds to all of
    its counters, zeros too, so that after one lookup absent means not supported.
    """
    hit = metrics.total("lmcache_mp_lookup_hit_tokens")
    loaded = round(metrics.total("lmcache_mp_num_chunks_loaded") or 0)
    if hit is None:
        return LmcacheCounters(chunks_loaded=loaded)
    l1, l2 = (metrics.total(f"lmcache_mp_lookup_hit_{level}_tokens") for level in ("l1", "l2"))
    return LmcacheCounters(round(hit), None if l1 is None else round(l1), None if l2 is None else round(l2), loaded)


def stores(metrics: Metrics) -> tuple[int, int]:
    """Return how much was submitted, stores into L1 and objects into L2, and how much of it is finished.

    Both are 0 where the server counts neither (LMCache 0.5.3).
    """
    counted = (
        ("lmcache_mp_num_submitted_stores", "lmcache_mp_num_finished_stores"),
        ("lmcache_mp_l2_store_submitted_objects", "lmcache_mp_l2_store_completed_objects"),
    )
    totals = [(metrics.total(begun), metrics.total(done) or 0) for begun, done in counted]
    known = [(begun, done) for begun, done in totals if begun is not None]
    return round(sum(begun for begun, _ in known)), round(sum(done for _, done in known))


def http_url(extra: Mapping[str, Any], engine_host: str) -> str:
    """Return where the LMCache server's HTTP port should be: on the connector's host, 8080 where no port is told.

    ``localhost`` is meant from the engine's side, hence ``engine_host``.
    """
    urls = extra.get("lmcache.mp.server_urls")
    first = urls[0] if isinstance(urls, list) and urls else str(urls or "").split(",")[0]
    address = str(first or extra.get("lmcache.mp.host") or "localhost").strip().rpartition("://")[2]
    host = address.rpartition(":")[0] if first else address
    if host in ("", "localhost", "127.0.0.1", "0.0.0.0", "*"):  # noqa: S104 -- compared, not bound
        host = engine_host
    arguments = extra.get("lmcache.mp.autostart.server_args") or ""
    parts = arguments.replace("=", " ").split() if isinstance(arguments, str) else [str(part) for part in arguments]
    given = parts[parts.index("--http-port") + 1 : parts.index("--http-port") + 2] if "--http-port" in parts else []
    return f"http://{host}:{given[0] if given else DEFAULT_HTTP_PORT}"


def request_port(extra: Mapping[str, Any]) -> int:
    """Return the port of the LMCache server that the connector's options name."""
    urls = extra.get("lmcache.mp.server_urls")
    first = urls[0] if isinstance(urls, list) and urls else str(urls or "").split(",")[0]
    return number(str(first).rpartition(":")[2]) or number(extra.get("lmcache.mp.port")) or 5555


def _l1_managers(status: Any) -> list[Mapping[str, Any]]:
    """Return the status of each L1; LMCache 0.5.3 has one, 0.5.6 may have several."""
    many = member(status, "storage_manager", "l1_managers")
    one = member(status, "storage_manager", "l1_manager")
    found = list(many.values()) if isinstance(many, Mapping) else [one]
    return [manager for manager in found if isinstance(manager, Mapping)]


def _engines(workers: list[Mapping[str, Any]]) -> tuple[tuple[str, int], ...]:
    """Return (model, world size) of each engine; every one of its workers registers."""
    registered = Counter((str(w.get("model_name")), number(w.get("world_size")) or 1) for w in workers)
    return tuple(engine for engine, count in sorted(registered.items()) for _ in range(-(-count // engine[1])))


def _adapters(storage: Mapping[str, Any]) -> tuple[str, ...]:
    adapters = storage.get("l2_adapters")
    if not isinstance(adapters, list):
        return ()
    return tuple(str(a.get("type") or a.get("name") or "l2") if isinstance(a, Mapping) else "l2" for a in adapters)
