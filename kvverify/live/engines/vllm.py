"""vLLM: what every connector has in common, and vLLM without one (no lower tier, so that no gate is ever satisfied)."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from kvverify.errors import KvverifyError
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import EngineInfo, Evidence, Expected, FlushFailed
from kvverify.live.engines import vllm_workers
from kvverify.live.engines.geometry import Geometry
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.vllm_facts import DEV_ENDPOINTS, HOW_TO_START, ServerFacts, read_facts, read_metrics
from kvverify.live.engines.vllm_reset import reset_prefix_cache
from kvverify.live.metrics import Metrics, settled


class Vllm:
    """vLLM at one URL. Subclasses know a connector: how it counts, what it hits, how it is flushed."""

    name = "vllm"
    connectors: ClassVar[frozenset[str]] = frozenset()  # values of kv_connector; empty for vLLM without a known one
    marks: ClassVar[tuple[str, ...]] = ()  # metrics that only this connector has, where dev mode is off

    def __init__(self, url: str, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.control = Control(url, timeout_s=self.options.timeout_s)
        self.facts: ServerFacts | None = None
        self.geometry: Geometry | None = None
        self.info: EngineInfo | None = None

    # --- who is it ----------------------------------------------------------------------------------------------------

    async def detect(self) -> bool:
        """Is this vLLM, with a connector of this adapter's?"""
        try:
            facts = await read_facts(self.control)
        except ServerProblem:
            return False
        return _is_vllm(facts) and self.recognises(facts)

    def recognises(self, facts: ServerFacts) -> bool:
        """Is this adapter the one for a vLLM server with ``facts``?"""
        if not self.connectors:
            return True
        if facts.dev_mode:
            return facts.connector.name in self.connectors
        return any(name.startswith(self.marks) for name in facts.metric_names) if self.marks else False

    async def describe(self) -> EngineInfo:
        """Return what the server says of itself.

        Raises:
            ServerProblem: it does not answer.
            LayoutError: the model that the user named does not exist.
        """
        facts = await read_facts(self.control)
        self.facts = facts
        await self.prepare(facts)
        self.geometry, where = facts.geometry(self.options.model_config)
        notes = [*self._notes(facts), *([] if self.geometry else [f"exact bytes are not known: {where}"])]
        if self.geometry and not self.geometry.exact:
            notes.append("exact bytes are not known: the model has windows, states or several layer groups")
        capacity = {"hbm": facts.capacity_tokens} | self.lower_capacity(facts)
        self.info = EngineInfo(
            engine=self.name,
            model=facts.model,
            build=f"vllm {facts.version}".strip(),
            kv_cache_dtype=facts.setting("cache_dtype"),
            block_tokens=facts.block_tokens,
            hit_tokens=self.hit_tokens(facts),
            capacity_tokens={tier: tokens for tier, tokens in capacity.items() if tokens is not None},
            lower_tier=self.lower_tier(facts),
            tiers_between=self.tiers_between(facts),
            ranks=facts.world_size,
            kv_layers=self.geometry.layers if self.geometry else (),
            dev_endpoints=DEV_ENDPOINTS if facts.dev_mode else (),
            max_context=facts.max_context,
            options=facts.options() | self.more_options(),
            notes=tuple(notes),
        )
        return self.info

    def _notes(self, facts: ServerFacts) -> list[str]:
        notes = []
        if not facts.dev_mode:
            notes.append(f"dev endpoints are missing: no flush, no settings; {HOW_TO_START}")
        if not any(name.startswith("vllm:") for name in facts.metric_names):
            notes.append(
                "the server has no vllm: metrics, so nothing can be proved; start it without --disable-log-stats"
            )
        return notes + self.more_notes(facts)

    # --- what a connector changes -------------------------------------------------------------------------------------

    async def prepare(self, facts: ServerFacts) -> None:
        """Ask a second server, where the connector has one."""

    def lower_tier(self, facts: ServerFacts) -> str:
        """Return the tier that hits come from when HBM is empty."""
        return "dram"

    def tiers_between(self, facts: ServerFacts) -> tuple[str, ...]:
        """Return the tiers above the lower tier that must be emptied beside HBM."""
        return ()

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Return what else the report must say."""
        name = facts.connector.name
        if name:
            return [
                f"kvverify does not know the connector {name}: hits that vLLM does not ascribe to a tier count for none"
            ]
        return ["no KV connector: there is no lower tier"] if facts.dev_mode else []

    def more_options(self) -> dict[str, Any]:
        """Return settings of a second server."""
        return {}

    def lower_capacity(self, facts: ServerFacts) -> dict[str, int | None]:
        """Return the tokens that lower tiers hold."""
        return {}

    def hit_tokens(self, facts: ServerFacts) -> int | None:
        """Return the unit in which the lower tier is hit, in tokens."""
        return facts.block_tokens

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return the tokens that the lower tier hits of a prompt it holds."""
        return (prompt_tokens - 1) // unit * unit

    def tier_hits(self, metrics: Metrics) -> tuple[int | None, int | None]:
        """Return the tokens hit in DRAM and on disk; vLLM 0.26 does not tell the tiers apart."""
        by_source = "vllm:prompt_tokens_cached_by_source"
        return count(metrics, by_source, source="host"), count(metrics, by_source, source="disk")

    def loaded_bytes(self, metrics: Metrics) -> int | None:
        """Return the bytes loaded into HBM, over all ranks."""
        return None

    def counts_bytes(self) -> bool:
        """Does the connector count loaded bytes at all?"""
        return False

    def witness(self, metrics: Metrics) -> dict[str, int]:
        """Return counters of a source other than vLLM's scheduler."""
        return {}

    def expected_witness(self, hit: int, tier: str) -> dict[str, int]:
        """Return the deltas that :meth:`witness` must show for ``hit`` tokens from ``tier``."""
        return {}

    # --- evidence -----------------------------------------------------------------------------------------------------

    async def read(self) -> Evidence:
        """Return the counters as they stand now.

        Raises:
            ServerProblem: the server does not answer.
        """
        metrics = await self.read_metrics()
        return Evidence() if metrics is None else self.evidence_in(metrics)

    async def read_metrics(self) -> Metrics | None:
        """Return a scrape, None where the server has no metrics."""
        return await read_metrics(self.control)

    def evidence_in(self, metrics: Metrics) -> Evidence:
        """Return the counters of one scrape."""
        dram, disk = self.tier_hits(metrics)
        computed = count(metrics, "vllm:prompt_tokens_by_source", source="local_compute")
        return Evidence(
            hbm_hit_tokens=count(metrics, "vllm:prefix_cache_hits"),
            dram_hit_tokens=dram,
            disk_hit_tokens=disk,
            loaded_bytes=self.loaded_bytes(metrics),
            computed_tokens=count(metrics, "vllm:request_prefill_kv_computed_tokens_sum")
            if computed is None
            else computed,
            queries=count(metrics, "vllm:prefix_cache_queries"),
            requests=count(metrics, "vllm:request_success"),
            preemptions=count(metrics, "vllm:num_preemptions"),
            running=count(metrics, "vllm:num_requests_running"),
            witness=self.witness(metrics),
        )

    async def evidence(self) -> Evidence:
        """Return the counters once two readings agree; vLLM publishes them with its next step.

        Raises:
            ServerProblem: no answer, or they do not come to rest.
        """
        return await settled(self.read, self.options.settle_interval_s, self.options.settle_limit_s)

    def expected(self, prompt_tokens: int, tier: str | None = None) -> Expected:
        """Return what a prompt must show that is wholly in the lower tier (``tier``, else the engine's usual one).

        Raises:
            KvverifyError: :meth:`describe` did not find the block size.
        """
        info = self.info
        block, unit = (info.block_tokens, info.hit_tokens) if info else (None, None)
        if info is None or not block or not unit:
            raise KvverifyError(f"{self.control.url}: block size not told, so that no hit length can be expected")
        several = (
            self.geometry.block_tokens if self.geometry else block
        )  # groups are hit together, at a common boundary
        aligned, unit = math.lcm(block, several), math.lcm(unit, several)
        hit = self.lower_hit(prompt_tokens, unit)
        known = self.geometry.load_bytes(hit) if self.geometry and self.counts_bytes() else None
        return Expected(
            hit_tokens=hit,
            hbm_hit_tokens=(prompt_tokens - 1) // aligned * aligned,
            computed_tokens=prompt_tokens - hit,
            loaded_bytes=known,
            witness=self.expected_witness(hit, tier or info.lower_tier),
        )

    # --- control ------------------------------------------------------------------------------------------------------

    async def flush(self, tier: str) -> None:
        """Empty HBM's prefix cache. What it answers is checked; that it is true, the next evidence shows.

        Raises:
            FlushFailed: the server refuses, has no such endpoint, or the tier cannot be emptied.
        """
        if tier != "hbm":
            raise FlushFailed(f"{self.name}: {self.why_no_flush(tier)}")
        await reset_prefix_cache(self.control, external=False)

    def why_no_flush(self, tier: str) -> str:
        """Return why ``tier`` cannot be emptied, and what to do."""
        return f"{tier} cannot be emptied over HTTP; restart the server, or give each arm a cache_salt of its own"

    async def settle(self) -> None:
        """Wait until counters rest."""
        await self.evidence()

    async def poison(self) -> str:
        """Overwrite all HBM blocks through kvverify's worker extension and say how. Flush before.

        Raises:
            FlushFailed: no such extension, or not every block holds the pattern.
        """
        return await vllm_workers.poison(self.control)

    async def scramble(self) -> str:
        """Overwrite what the packed layers hold in HBM, leave the hashes, and say how.

        Raises:
            FlushFailed: no such extension, or not every block holds the pattern.
        """
        return await vllm_workers.scramble(self.control)

    async def digests(self, prompt: list[int]) -> list[str]:
        """Return the digests of all blocks written since :meth:`poison`, sorted: those of ``prompt`` if it ran alone.

        Raises:
            FlushFailed: the server runs without kvverify's worker extension.
        """
        return await vllm_workers.digests(self.control)

    async def dummy_request(self) -> None:
        """Answer two tokens of a short prompt, so that the engine makes a step.

        Its length matters: a prompt of a single token kills vLLM 0.32 with ExampleConnector, which then hits -32 tokens.

        Raises:
            ServerProblem: the request failed.
        """
        model = self.info.model if self.info else ""
        body = {"model": model, "prompt": "one two three four", "max_tokens": 2, "temperature": 0}
        await self.control.post_json("/v1/completions", body)

    async def close(self) -> None:
        """Close connections."""
        await self.control.close()


def prefill_witness(metrics: Metrics) -> dict[str, int]:
    """Return the prompt tokens that prefill statistics ascribe to a transfer.

    The weakest second source: another counter than the hits', but of the same scheduler.
    """
    moved = count(metrics, "vllm:prompt_tokens_by_source", source="external_kv_transfer")
    return {} if moved is None else {"prefill_transferred_tokens": moved}


def count(metrics: Metrics, name: str, **labels: str) -> int | None:
    """Return a counter's total as a whole number, None where the server does not have it."""
    value = metrics.total(name, **labels)
    return None if value is None else round(value)


def _is_vllm(facts: ServerFacts) -> bool:
    return facts.owner == "vllm" or any(name.startswith("vllm:") for name in facts.metric_names)
