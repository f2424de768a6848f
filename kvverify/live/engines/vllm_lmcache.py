"""vLLM with LMCache: as a server of its own (LMCacheMPConnector), or inside vLLM's process (LMCacheConnectorV1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar
from urllib.parse import urlsplit

from kvverify.live.control import ServerProblem
from kvverify.live.engine import Evidence, Expected, FlushFailed
from kvverify.live.engines import lmcache_server
from kvverify.live.engines.geometry import number
from kvverify.live.engines.lmcache_server import LmcacheCounters, LmcacheFacts, LmcacheServer
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.vllm import Vllm, count, prefill_witness
from kvverify.live.engines.vllm_facts import ServerFacts
from kvverify.live.metrics import Metrics, settled

_DEFAULT_CHUNK = 256  # of LMCache inside vLLM, where neither connector option nor environment is visible
_MULTIPROCESS = ("LMCacheMPConnector",)
_IN_PROCESS = ("LMCacheConnectorV1", "LMCacheConnectorV1Dynamic", "LMCacheConnector")


@dataclass(frozen=True, slots=True)
class _Reading:
    """One look at both servers. ``own`` None: LMCache's server was not found."""

    engine: Evidence
    external: int | None
    own: LmcacheCounters | None


class VllmLmcache(Vllm):
    """LMCache as a server. vLLM says how many tokens it took from LMCache, LMCache alone says from which level.

    LMCache looks up the whole prompt even where HBM holds it, so its counters rise without a load. Hence vLLM's hits are
    counted, for DRAM (L1) or disk (L2) as LMCache's counters moved between the same two readings; if these do not fit, for none.
    """

    name = "vllm-lmcache"
    connectors: ClassVar[frozenset[str]] = frozenset(_MULTIPROCESS)
    marks: ClassVar[tuple[str, ...]] = ("vllm:lmcache_mp_",)

    def __init__(self, url: str, options: EngineOptions | None = None) -> None:
        super().__init__(url, options)
        self.server: LmcacheServer | None = None
        self.lmcache: LmcacheFacts | None = None
        self._problem = ""
        self._last: _Reading | None = None
        self._dram = self._disk = 0

    async def prepare(self, facts: ServerFacts) -> None:
        """Find LMCache's own server. Without it nothing can be proved, and a note says so."""
        host = urlsplit(self.control.url).hostname or "localhost"
        url = self.options.lmcache_url or lmcache_server.http_url(facts.connector.extra, host)
        if self.server is not None:
            await self.server.close()
        server = LmcacheServer(url, timeout_s=self.options.timeout_s)
        self.server, self.lmcache, self._problem = server, None, ""
        try:
            found = await server.facts()
        except ServerProblem as problem:
            self._problem = (
                f"LMCache's server is not reachable, so L1 and L2 cannot be told apart ({problem}); give --lmcache-url"
            )
            return
        port = lmcache_server.request_port(facts.connector.extra)
        if facts.dev_mode and found.port is not None and found.port != port:
            self._problem = (
                f"{url} serves port {found.port}, but vLLM's connector uses {port}: another LMCache; give --lmcache-url"
            )
            return
        self.lmcache = found

    def lower_tier(self, facts: ServerFacts) -> str:
        """Return disk where the user asks for LMCache's L2 and there is one, else dram, its L1."""
        return "disk" if self.options.tier == "disk" and self.lmcache and self.lmcache.l2_adapters else "dram"

    def tiers_between(self, facts: ServerFacts) -> tuple[str, ...]:
        """Return L1's tier where L2 is tested: a hit goes to L1 first."""
        return ("dram",) if self.lower_tier(facts) == "disk" else ()

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Say what is missing, and what LMCache 0.5.3 cannot tell."""
        notes = [self._problem] if self._problem else []
        if self.lmcache and self.lmcache.l2_adapters:
            notes.append(
                f"LMCache has L2 adapters ({', '.join(self.lmcache.l2_adapters)}); version 0.5.3 does not tell L1 from L2"
            )
        return notes

    def more_options(self) -> dict[str, Any]:
        """Return the settings of LMCache's server."""
        if self.lmcache is None or self.server is None:
            return {}
        return {
            "lmcache_url": self.server.url,
            "lmcache_chunk_size": self.lmcache.chunk_tokens,
            "lmcache_hash_algorithm": self.lmcache.hash_algorithm,
            "lmcache_l2_adapters": list(self.lmcache.l2_adapters),
            "lmcache_models": [list(model) for model in self.lmcache.models],
        }

    def lower_capacity(self, facts: ServerFacts) -> dict[str, int | None]:
        """Return the tokens that L1 holds, where the bytes of a token are known."""
        pool = self.lmcache.l1_bytes if self.lmcache else None
        each = self.geometry.token_bytes * self.geometry.ranks if self.geometry and self.geometry.exact else 0
        return {"dram": pool // each if pool and each else None}

    def hit_tokens(self, facts: ServerFacts) -> int | None:
        """Return LMCache's chunk."""
        return self.lmcache.chunk_tokens if self.lmcache else None

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return whole chunks; of a prompt that ends with one, its last token is computed again (LMCache 0.5.6)."""
        return min(prompt_tokens // unit * unit, prompt_tokens - 1)

    def expected_witness(self, hit: int, tier: str) -> dict[str, int]:
        """Return the deltas of LMCache's counters: hits, by level if told, and chunks where it copies them itself."""
        if self.lmcache is None:
            return {}
        own, chunks = self._last.own if self._last else None, -(-hit // self.lmcache.chunk_tokens)
        tokens = chunks * self.lmcache.chunk_tokens
        if own is None or own.l1 is None:
            wanted = {"lmcache_hit_tokens": tokens}
        else:
            wanted = {"lmcache_l1_hit_tokens": tokens if tier == "dram" else 0}
            wanted["lmcache_l2_hit_tokens"] = tokens - wanted["lmcache_l1_hit_tokens"]
        if self.lmcache.counts_chunks and self.facts is not None:
            wanted["lmcache_chunks_loaded"] = chunks * self.facts.world_size
        return wanted

    def expected_partial(self, prompt_tokens: int, head_tokens: int) -> Expected:
        """Return what a prompt must show of which HBM holds the first ``head_tokens``: LMCache looks up all of it.

        How many chunks it then loads depends on where the head ends, so they are not expected.

        Raises:
            KvverifyError: :meth:`describe` did not find the block size.
        """
        whole, head = self.expected(prompt_tokens), self.expected(head_tokens)
        return replace(
            whole,
            hit_tokens=whole.hit_tokens - head.hbm_hit_tokens,
            hbm_hit_tokens=head.hbm_hit_tokens,
            witness={name: n for name, n in whole.witness.items() if name != "lmcache_chunks_loaded"},
        )

    async def evidence(self) -> Evidence:
        """Return the counters of both servers once they rest, hits ascribed to levels.

        Raises:
            ServerProblem: no answer, or they do not come to rest.
        """
        now = await settled(self._look, self.options.settle_interval_s, self.options.settle_limit_s)
        earlier, self._last = self._last, now
        if now.own is None or now.external is None:
            return replace(now.engine, dram_hit_tokens=None, disk_hit_tokens=None)
        if earlier is not None and earlier.own is not None and earlier.external is not None:
            has_l2 = bool(self.lmcache and self.lmcache.l2_adapters)
            dram, disk = _ascribed(now.external - earlier.external, earlier.own, now.own, has_l2=has_l2)
            self._dram, self._disk = self._dram + dram, self._disk + disk
        return replace(now.engine, dram_hit_tokens=self._dram, disk_hit_tokens=self._disk, witness=_witness(now.own))

    async def _look(self) -> _Reading:
        scrape = await self.read_metrics()
        own = None
        if self.server is not None and self.lmcache is not None:
            own = lmcache_server.counters(await self.server.scrape())
        external = None if scrape is None else count(scrape, "vllm:external_prefix_cache_hits")
        return _Reading(Evidence() if scrape is None else self.evidence_in(scrape), external, own)

    async def settle(self) -> None:
        """Wait until LMCache has finished the stores that were submitted to it, and counters rest.

        Raises:
            ServerProblem: no answer, or stores that do not end.
        """

        async def so_far() -> tuple[int, int]:  # and not the whole scrape, in which Python's own counters never rest
            assert self.server is not None
            return lmcache_server.stores(await self.server.scrape())

        if self.server is not None and self.lmcache is not None:
            begun, done = await settled(so_far, self.options.settle_interval_s, self.options.settle_limit_s)
            if begun > done:
                raise ServerProblem(f"{self.server.url}: {begun - done} stores were submitted and do not end")
        await self.evidence()

    async def flush(self, tier: str) -> None:
        """Empty HBM through vLLM, or L1 through LMCache's own server; L2 keeps what it has.

        Raises:
            FlushFailed: refused, or not empty afterwards, or there is no way to.
        """
        if tier != "dram":
            await super().flush(tier)
        elif self.server is None or self.lmcache is None:
            raise FlushFailed(f"{self.name}: {self._problem or 'LMCache is not known yet: describe comes first'}")
        else:
            await self.server.clear_l1()

    async def close(self) -> None:
        """Close both connections."""
        await super().close()
        if self.server is not None:
            await self.server.close()


class VllmLmcacheInProcess(Vllm):
    """LMCache inside vLLM. Which of its backends served a hit is not told; hits are counted for DRAM.

    The second source are its own counters, in vLLM's ``/metrics`` where PROMETHEUS_MULTIPROC_DIR is set for the server.
    """

    name = "vllm-lmcache-in-process"
    connectors: ClassVar[frozenset[str]] = frozenset(_IN_PROCESS)
    marks: ClassVar[tuple[str, ...]] = ("lmcache:",)

    def hit_tokens(self, facts: ServerFacts) -> int | None:
        """Return the chunk: the connector's option, else LMCache's default, since its environment is not told."""
        return number(facts.connector.option("lmcache.chunk_size")) or _DEFAULT_CHUNK

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return whole chunks; of a prompt that ends with one, the last token is computed again."""
        return min(prompt_tokens // unit * unit, prompt_tokens - 1)

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Say what LMCache does not tell from inside vLLM."""
        notes = ["which backend of LMCache served a hit is not told; hits count for DRAM"]
        if facts.connector.option("lmcache.chunk_size") is None:
            notes.append(f"LMCACHE_CHUNK_SIZE is not visible from outside: {_DEFAULT_CHUNK} tokens are assumed")
        if not any(name.startswith("lmcache:") for name in facts.metric_names):
            notes.append(
                "LMCache's own counters are not in /metrics (set PROMETHEUS_MULTIPROC_DIR), or it runs without a tier: look "
                "for «degraded mode» in the server's log"
            )
        return notes

    def tier_hits(self, metrics: Metrics) -> tuple[int | None, int | None]:
        """Return all external hits as DRAM's."""
        return count(metrics, "vllm:external_prefix_cache_hits"), 0

    def witness(self, metrics: Metrics) -> dict[str, int]:
        """Return LMCache's own counters, as far as they are there."""
        names = {
            "lmcache_hit_tokens": "lmcache:num_hit_tokens",
            "lmcache_retrieve_requests": "lmcache:num_retrieve_requests",
        }
        found = {name: count(metrics, metric) for name, metric in names.items()}
        return prefill_witness(metrics) | {name: value for name, value in found.items() if value is not None}

    def expected_witness(self, hit: int, tier: str) -> dict[str, int]:
        """Return the tokens that LMCache must have retrieved, where its counters are in ``/metrics``."""
        there = self.facts is not None and any(
            name.startswith("lmcache:num_hit_tokens") for name in self.facts.metric_names
        )
        return {"prefill_transferred_tokens": hit} | ({"lmcache_hit_tokens": hit} if there else {})

    def why_no_flush(self, tier: str) -> str:
        """Return what else can be done."""
        return (
            f"{tier}: this connector is not reset over vLLM's port; restart the server, or give each arm a cache_salt"
        )


def _witness(own: LmcacheCounters) -> dict[str, int]:
    found: Mapping[str, int | None] = {
        "lmcache_hit_tokens": own.hit,
        "lmcache_l1_hit_tokens": own.l1,
        "lmcache_l2_hit_tokens": own.l2,
        "lmcache_chunks_loaded": own.chunks_loaded,
    }
    return {name: value for name, value in found.items() if value is not None}


def _ascribed(taken: int, earlier: LmcacheCounters, now: LmcacheCounters, *, has_l2: bool) -> tuple[int, int]:
    """Return how many of the ``taken`` tokens came from L1 and from L2; none where LMCache's counters do not decide it."""
    if taken <= 0:
        return taken, 0  # below 0: vLLM was restarted, and the gate sees the counter go backwards
    if now.l1 is None or now.l2 is None or earlier.l1 is None or earlier.l2 is None:
        return (taken, 0) if not has_l2 and now.hit - earlier.hit >= taken else (0, 0)
    l1, l2 = now.l1 - earlier.l1, now.l2 - earlier.l2
    if l1 + l2 == taken:
        return l1, l2
    if l1 > taken and not l2:
        return taken, 0
    return (0, taken) if l2 > taken and not l1 else (0, 0)
