"""SGLang with HiCache: host memory behind the radix cache, and a storage backend behind that.

Names are those of SGLang's documentation of its metrics; nothing here was run against a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvverify.errors import KvverifyError
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import EngineInfo, Evidence, Expected, FlushFailed
from kvverify.live.engines.geometry import member, number
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.owner import owned_by
from kvverify.live.engines.vllm import count
from kvverify.live.engines.vllm_facts import read_metrics
from kvverify.live.metrics import Metrics, settled

_INFO_PATHS = ("/server_info", "/get_server_info")  # newer, older
_CLEAR_STORAGE_PATHS = ("/hicache/storage-backend/clear", "/clear_hicache_storage_backend")
_OPTIONS = (
    "attention_backend",
    "chunked_prefill_size",
    "disable_radix_cache",
    "dtype",
    "enable_cache_report",
    "enable_deterministic_inference",
    "enable_hierarchical_cache",
    "enable_metrics",
    "hicache_io_backend",
    "hicache_mem_layout",
    "hicache_ratio",
    "hicache_size",
    "hicache_storage_backend",
    "hicache_write_policy",
    "kv_cache_dtype",
    "page_size",
    "tp_size",
)


class Sglang:
    """SGLang at one URL. HBM is not flushed alone: ``flush_cache`` empties host memory too, so fillers must push it out."""

    name = "sglang"

    def __init__(self, url: str, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.control = Control(url, timeout_s=self.options.timeout_s)
        self.info: EngineInfo | None = None

    async def detect(self) -> bool:
        """Is this SGLang? By the owner of its models."""
        return await owned_by(self.control, "sglang")

    async def describe(self) -> EngineInfo:
        """Return what the server says of itself.

        Raises:
            ServerProblem: it does not answer.
        """
        models = await self.control.get_json("/v1/models")
        said = await self._server_info()
        metrics = await read_metrics(self.control)
        model = member(models, "data")[0]
        host = None if metrics is None else count(metrics, "sglang:hicache_host_total_tokens")
        device = None if metrics is None else count(metrics, "sglang:max_total_num_tokens")
        capacity = {"hbm": number(said.get("max_total_num_tokens")) or device, "dram": host or None}
        page = number(said.get("page_size"))
        self.info = EngineInfo(
            engine=self.name,
            model=str(model.get("id")),
            build=f"sglang {said.get('version', '')}".strip(),
            kv_cache_dtype=said.get("kv_cache_dtype"),
            block_tokens=page,
            hit_tokens=page,
            capacity_tokens={tier: tokens for tier, tokens in capacity.items() if tokens},
            ranks=number(said.get("tp_size")) or 1,
            dev_endpoints=("flush_cache",),
            max_context=number(model.get("max_model_len")),
            options={name: said[name] for name in _OPTIONS if said.get(name) is not None},
            notes=tuple(_notes(said, metrics)),
        )
        return self.info

    async def _server_info(self) -> Mapping[str, Any]:
        for path in _INFO_PATHS:
            try:
                said = await self.control.get_json(path)
            except ServerProblem as problem:
                if problem.status is None:
                    raise
                continue
            if isinstance(said, Mapping):
                return said
        return {}

    async def evidence(self) -> Evidence:
        """Return the counters once two readings agree.

        Raises:
            ServerProblem: no answer, or they do not come to rest.
        """
        return await settled(self._read, self.options.settle_interval_s, self.options.settle_limit_s)

    async def _read(self) -> Evidence:
        metrics = await read_metrics(self.control)
        return Evidence() if metrics is None else _evidence(metrics)

    def expected(self, prompt_tokens: int) -> Expected:
        """Return what a prompt must show: both tiers hit whole pages of all tokens but the last.

        Raises:
            KvverifyError: :meth:`describe` did not find the page size.
        """
        page = self.info.block_tokens if self.info else None
        if not page:
            raise KvverifyError(f"{self.control.url}: page size not told, so that no hit length can be expected")
        hit = (prompt_tokens - 1) // page * page
        return Expected(hit, hit, prompt_tokens - hit, witness={"load_back_tokens": hit})

    async def flush(self, tier: str) -> None:
        """Empty host memory (and HBM with it), or the storage backend.

        Raises:
            FlushFailed: refused, or ``hbm``, which cannot be emptied alone.
        """
        if tier == "hbm":
            raise FlushFailed(
                "sglang: flush_cache empties host memory too; push the prompts out of HBM with filler requests"
            )
        paths = _CLEAR_STORAGE_PATHS if tier == "disk" else ("/flush_cache",)
        problem: ServerProblem | None = None
        for path in paths:  # both answer 400 where they did nothing
            try:
                await self.control.get_text(path)
            except ServerProblem as refused:
                problem = problem if problem and refused.status in (404, 405) else refused
                continue
            return
        raise FlushFailed(f"{problem}; are requests running, or is an admin key needed?") from problem

    async def settle(self) -> None:
        """Wait until counters rest."""
        await self.evidence()

    async def close(self) -> None:
        """Close connections."""
        await self.control.close()


def _notes(said: Mapping[str, Any], metrics: Metrics | None) -> list[str]:
    notes = ["names of endpoints and metrics follow SGLang's documentation; kvverify was not run against it"]
    if metrics is None or not any(name.startswith("sglang:") for name in metrics.samples):
        notes.append("the server has no sglang: metrics, so nothing can be proved; start it with --enable-metrics")
    if said and not said.get("enable_hierarchical_cache"):
        notes.append("there is no lower tier; start the server with --enable-hierarchical-cache")
    elif said.get("hicache_write_policy") not in (None, "write_through"):
        notes.append(
            f"hicache_write_policy {said['hicache_write_policy']}: some prompts do not reach host memory; use write_through"
        )
    if said.get("disable_radix_cache"):
        notes.append("--disable-radix-cache: nothing is ever hit")
    return notes


def _evidence(metrics: Metrics) -> Evidence:
    """Return the counters. One of a source appears with its first hit; without that label (older versions) nothing is told."""
    prompt = count(metrics, "sglang:prompt_tokens")
    samples = metrics.of("sglang:cached_tokens")
    told = prompt is not None and all("cache_source" in sample.labels for sample in samples)
    hits = dict.fromkeys(("device", "host", "storage"), 0)
    for sample in samples:
        source = sample.labels.get("cache_source", "").partition("_")[0]
        hits[source] = hits.get(source, 0) + round(sample.value)
    loaded = count(metrics, "sglang:load_back_tokens")
    return Evidence(
        hbm_hit_tokens=hits["device"] if told else None,
        dram_hit_tokens=hits["host"] if told else None,
        disk_hit_tokens=hits["storage"] if told else None,
        computed_tokens=None if prompt is None else prompt - sum(hits.values()),
        queries=prompt,
        requests=count(metrics, "sglang:num_requests"),
        preemptions=count(metrics, "sglang:num_retracted_requests") or 0,
        running=count(metrics, "sglang:num_running_reqs"),
        witness={} if prompt is None else {"load_back_tokens": loaded or 0},
    )
