"""vLLM's own offloading: OffloadingConnector, with or without further tiers, and SimpleCPUOffloadConnector."""

from __future__ import annotations

from typing import Any, ClassVar

from kvverify.live.engines.geometry import number
from kvverify.live.engines.vllm import Vllm, count
from kvverify.live.engines.vllm_facts import ServerFacts
from kvverify.live.engines.vllm_reset import reset_prefix_cache
from kvverify.live.metrics import Metrics

_DISK_TYPES = ("fs", "obj")


class _Offload(Vllm):
    """What both connectors do alike: stores wait for the next engine step, an external reset clears HBM and DRAM."""

    async def flush(self, tier: str) -> None:
        """Empty HBM, or DRAM and with it HBM: the connector is only reset together with the prefix cache.

        Raises:
            FlushFailed: as for :meth:`Vllm.flush`.
        """
        if tier == "dram":
            await reset_prefix_cache(self.control, external=True)
        else:
            await super().flush(tier)

    async def settle(self) -> None:
        """Make the engine step: a store is issued with the step after the one that computed, and reported later still.

        Raises:
            ServerProblem: a request failed, or counters do not come to rest.
        """
        for _ in range(2):
            await self.dummy_request()
            await self.evidence()

    def lower_capacity(self, facts: ServerFacts) -> dict[str, int | None]:
        """Return the tokens that the host pool holds, where the bytes of a token are known; padding may take some."""
        pool = number(facts.connector.option("cpu_bytes_to_use"))
        each = self.geometry.token_bytes * self.geometry.ranks if self.geometry and self.geometry.exact else 0
        return {"dram": pool // each if pool and each else None}


class VllmNative(_Offload):
    """OffloadingConnector: load bytes are counted by the workers and summed over ranks."""

    name = "vllm-native"
    connectors: ClassVar[frozenset[str]] = frozenset({"OffloadingConnector"})
    marks: ClassVar[tuple[str, ...]] = ("vllm:kv_offload_",)

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """Secondary tiers behind DRAM."""
        found = self.facts.connector.option("secondary_tiers") if self.facts else None
        return [tier for tier in found if isinstance(tier, dict)] if isinstance(found, list) else []

    def hit_tokens(self, facts: ServerFacts) -> int | None:
        """Return the tokens of a chunk: ``blocks_per_chunk`` blocks or ``block_size`` tokens, the connector's options."""
        chunk = number(facts.connector.option("block_size"))
        blocks = number(facts.connector.option("blocks_per_chunk")) or 1
        return chunk or (facts.block_tokens * blocks if facts.block_tokens else None)

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return whole chunks, of all tokens; the engine then computes the last one again."""
        return min(prompt_tokens // unit * unit, prompt_tokens - 1)

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Say what an older server or missing settings leave open."""
        notes = []
        if not facts.dev_mode:
            notes.append("the connector's options are not told: one block a chunk and no tier behind DRAM are assumed")
        if self.tiers:
            kinds = ", ".join(str(tier.get("type")) for tier in self.tiers)
            told = "vllm:prompt_tokens_cached_by_source_total" in facts.metric_names
            notes.append(f"tiers behind DRAM: {kinds}" + ("" if told else "; this vLLM does not tell them from DRAM"))
        return notes

    def more_options(self) -> dict[str, Any]:
        """Return the kinds of secondary tiers."""
        return {"secondary_tiers": [str(tier.get("type")) for tier in self.tiers]} if self.tiers else {}

    def tier_hits(self, metrics: Metrics) -> tuple[int | None, int | None]:
        """Return hits by tier; vLLM 0.26 counts external hits alone, DRAM's where no other tier is configured."""
        dram, disk = super().tier_hits(metrics)
        if dram is None and not self.tiers:
            return count(metrics, "vllm:external_prefix_cache_hits"), 0
        return dram, disk

    def loaded_bytes(self, metrics: Metrics) -> int | None:
        """Return loaded bytes. The newer counter appears with the first load, the older, labelled one with the start."""
        loaded = count(metrics, "vllm:kv_offload_load_bytes")
        return count(metrics, "vllm:kv_offload_total_bytes", transfer_type="CPU_to_GPU") if loaded is None else loaded

    def counts_bytes(self) -> bool:
        """Return True: the workers do."""
        return True

    def why_no_flush(self, tier: str) -> str:
        """Return what to do with the tiers that no reset touches."""
        where = ", ".join(str(t.get("root_dir") or t.get("type")) for t in self.tiers if t.get("type") in _DISK_TYPES)
        return f"{tier} outlives every reset; remove what is stored there ({where or 'no such tier is configured'})"


class VllmSimple(_Offload):
    """SimpleCPUOffloadConnector: no byte counter, but blocks are counted when their load is done."""

    name = "vllm-simple"
    connectors: ClassVar[frozenset[str]] = frozenset({"SimpleCPUOffloadConnector"})
    marks: ClassVar[tuple[str, ...]] = ("vllm:simple_kv_offload_",)

    def tier_hits(self, metrics: Metrics) -> tuple[int | None, int | None]:
        """Return hits by tier; vLLM 0.26 counts external hits only."""
        dram, disk = super().tier_hits(metrics)
        return (count(metrics, "vllm:external_prefix_cache_hits"), 0) if dram is None else (dram, disk)

    def witness(self, metrics: Metrics) -> dict[str, int]:
        """Return the blocks loaded, counted at the end of each load. Absent in vLLM 0.26, and before the first load."""
        loaded = count(metrics, "vllm:simple_kv_offload_load_blocks")
        known = any(name.startswith("vllm:simple_kv_offload_") for name in metrics.samples)
        return {"loaded_blocks": loaded or 0} if known else {}

    def expected_witness(self, hit: int, tier: str) -> dict[str, int]:
        """Return the blocks of ``hit`` tokens, where one group holds them all."""
        block = self.info.block_tokens if self.info else None
        counted = self.facts is not None and any(n.startswith(self.marks) for n in self.facts.metric_names)
        if not block or not counted or not self.geometry or not self.geometry.exact:
            return {}
        return {"loaded_blocks": hit // block}

    def lower_tier(self, facts: ServerFacts) -> str:
        """Return the tier of the backend."""
        return "disk" if facts.connector.option("kv_offload_backend") == "disk" else "dram"

    def lower_capacity(self, facts: ServerFacts) -> dict[str, int | None]:
        """Return the tokens of the host pool."""
        return super().lower_capacity(facts) if self.lower_tier(facts) == "dram" else {}

    async def flush(self, tier: str) -> None:
        """Empty HBM, or the pool and HBM with it.

        Raises:
            FlushFailed: as for :meth:`Vllm.flush`, and for a tier that this backend does not have.
        """
        pool = self.lower_tier(self.facts) if self.facts else "dram"
        await super().flush("dram" if tier == pool else "hbm" if tier == "hbm" else "disk")
