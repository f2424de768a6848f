"""vLLM with ExampleConnector: one safetensors file for each layer of each prompt, on disk."""

from __future__ import annotations

from typing import ClassVar

from kvverify.live.engines.vllm import Vllm, count, prefill_witness
from kvverify.live.engines.vllm_facts import ServerFacts
from kvverify.live.metrics import Metrics

_DEFAULT_FOLDER = "/tmp"  # noqa: S108 -- ExampleConnector's own default


class VllmExample(Vllm):
    """A prompt is found as a whole or not at all, and loaded as a whole even where HBM holds a part of it.

    It counts nothing itself, hence the weakest of second sources; that bytes were loaded, poison and comparison show.
    """

    name = "vllm-example"
    connectors: ClassVar[frozenset[str]] = frozenset({"ExampleConnector", "SharedStorageConnector"})

    def lower_tier(self, facts: ServerFacts) -> str:
        """Return disk: there is no tier between."""
        return "disk"

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return the hit length: one token is taken off, and another one in rounding down (``align_to_block_size``)."""
        return max(prompt_tokens - 2, 0) // unit * unit

    def tier_hits(self, metrics: Metrics) -> tuple[int | None, int | None]:
        """Return all external hits as disk's: the connector has nothing else."""
        return 0, count(metrics, "vllm:external_prefix_cache_hits")

    def witness(self, metrics: Metrics) -> dict[str, int]:
        """Return what prefill statistics ascribe to a transfer."""
        return prefill_witness(metrics)

    def expected_witness(self, hit: int, tier: str) -> dict[str, int]:
        """Return the tokens that prefill must not have computed."""
        return {"prefill_transferred_tokens": hit}

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Say where the files are."""
        return [f"the tier's files are on the server's disk under {self._folder(facts)}"]

    def why_no_flush(self, tier: str) -> str:
        """Return where the files are."""
        return f"{tier} is a folder on the server's disk; remove what is in {self._folder(self.facts)}"

    @staticmethod
    def _folder(facts: ServerFacts | None) -> str:
        told = facts.connector.option("shared_storage_path") if facts else None
        return str(told or _DEFAULT_FOLDER)
