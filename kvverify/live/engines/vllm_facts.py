"""What a vLLM server says of itself, with or without its dev endpoints. Names are those of vLLM 0.26 and 0.32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engines.geometry import (
    Geometry,
    geometry_of,
    known_format,
    known_model,
    member,
    number,
    with_dtype,
    words,
)
from kvverify.live.metrics import Metrics, parse

DEV_ENDPOINTS = ("collective_rpc", "reset_prefix_cache", "server_info")
FAULT_CONNECTOR = "kvverify.inserver.fault_connector"  # FaultyX behaves as X does
HOW_TO_START = "start the server with VLLM_SERVER_DEV_MODE=1"
_CACHE = (
    "block_size",
    "cache_dtype",
    "enable_prefix_caching",
    "kv_cache_dtype_skip_layers",
    "kv_cache_layout",
    "kv_offloading_backend",
    "kv_offloading_size",
    "num_gpu_blocks",
    "prefix_caching_hash_algo",
    "sliding_window",
)
_CONFIG = {  # option: where it stands in /server_info's vllm_config
    "attention_backend": ("attention_config", "backend"),
    "data_parallel_size": ("parallel_config", "data_parallel_size"),
    "device": ("device_config", "device"),
    "dtype": ("model_config", "dtype"),
    "enforce_eager": ("model_config", "enforce_eager"),
    "kv_load_failure_policy": ("kv_transfer_config", "kv_load_failure_policy"),
    "max_logprobs": ("model_config", "max_logprobs"),
    "max_num_batched_tokens": ("scheduler_config", "max_num_batched_tokens"),
    "max_num_seqs": ("scheduler_config", "max_num_seqs"),
    "pipeline_parallel_size": ("parallel_config", "pipeline_parallel_size"),
    "tensor_parallel_size": ("parallel_config", "tensor_parallel_size"),
    "worker_extension_cls": ("parallel_config", "worker_extension_cls"),
    "world_size": ("parallel_config", "world_size"),
}
_ENVIRONMENT = ("VLLM_BATCH_INVARIANT", "VLLM_USE_SIMPLE_KV_OFFLOAD", "VLLM_ATTENTION_BACKEND", "VLLM_KV_CACHE_LAYOUT")


@dataclass(frozen=True, slots=True)
class Connector:
    """The KV connector that moves a request's blocks, taken out of what wraps it; ``name`` is empty where there is none."""

    name: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    wrapped_by: str = ""

    def option(self, key: str) -> Any:
        """Return one of the connector's extra options, None where it is not set."""
        return self.extra.get(key)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Answers of ``/version``, ``/v1/models``, ``/metrics`` and, in dev mode, ``/server_info``.

    ``config`` is empty without dev mode. ``cache`` are the labels of ``vllm:cache_config_info``, empty where log statistics
    are off.
    """

    version: str
    model: str
    root: str
    owner: str
    max_context: int | None
    cache: Mapping[str, str]
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metric_names: frozenset[str]

    @property
    def dev_mode(self) -> bool:
        """Does the server answer its dev endpoints?"""
        return bool(self.config)

    def setting(self, name: str) -> Any:
        """Return an effective cache setting: a value from ``/server_info``, else a label's text; None: not told."""
        value = member(self.config, "cache_config", name)
        if value is None:
            value = self.cache.get(name)
        return None if value in (None, "None") else value

    @property
    def block_tokens(self) -> int | None:
        """Tokens of a block as the engine uses it; often not what was asked for."""
        return number(self.setting("block_size"))

    @property
    def capacity_tokens(self) -> int | None:
        """Tokens that HBM holds; older versions give blocks alone."""
        told = number(self.setting("kv_cache_size_tokens"))
        blocks, size = number(self.setting("num_gpu_blocks")), self.block_tokens
        return told or (blocks * size if blocks and size else None)

    @property
    def tensor_parallel(self) -> int:
        """Ranks that hold a slice of the heads each."""
        return number(member(self.config, "parallel_config", "tensor_parallel_size")) or 1

    @property
    def world_size(self) -> int:
        """Workers of one engine, tensor and pipeline parallel."""
        return number(member(self.config, "parallel_config", "world_size")) or self.tensor_parallel

    @property
    def connector(self) -> Connector:
        """The KV connector, from ``/server_info`` alone."""
        return _unwrapped(member(self.config, "kv_transfer_config") or {})

    def geometry(self, named: str | None) -> tuple[Geometry | None, str]:
        """Return the cache's geometry, or None, and where it was read or why it is not known.

        Raises:
            LayoutError: ``named``, the user's model, does not exist or cannot be served in this KV dtype.
        """
        dtype = str(self.setting("cache_dtype") or "")
        if not known_format(dtype):
            return (
                None,
                f"KV dtype {dtype or 'not told'}: kvverify knows no such format" if dtype else "KV dtype not told",
            )
        windowed = not self.config or self.setting("sliding_window") is not None or _has_states(self)
        text = str(member(self.config, "model_config", "hf_config") or "")
        model, where = known_model(named, self.root, text, windowed=windowed)
        if model is None:
            return None, where
        model = with_dtype(model, str(member(self.config, "model_config", "dtype") or ""))
        skipped = words(self.setting("kv_cache_dtype_skip_layers"))
        geometry = geometry_of(
            model, dtype, tp=self.tensor_parallel, block_tokens=self.block_tokens, skip_layers=skipped
        )
        return geometry, where

    def options(self) -> dict[str, Any]:
        """Return effective settings under vLLM's own names; what is not told is left out."""
        found = {name: self.setting(name) for name in _CACHE}
        found |= {name: member(self.config, *path) for name, path in _CONFIG.items()}
        found |= {name: self.environment.get(name) for name in _ENVIRONMENT}
        connector = self.connector
        if self.config:
            found |= {
                "kv_connector": connector.name or None,
                "kv_connector_extra_config": dict(connector.extra) or None,
            }
            found["kv_connector_wrapped_by"] = connector.wrapped_by or None
        options = {name: value for name, value in found.items() if value not in (None, "")}
        return options | {"log_stats": any(name.startswith("vllm:") for name in self.metric_names)}


def _has_states(facts: ServerFacts) -> bool:
    return any(facts.setting(name) is not None for name in ("mamba_block_size", "mamba_page_size_padded"))


def _unwrapped(config: Mapping[str, Any], wrapped_by: str = "") -> Connector:
    """Return the innermost connector. MultiConnector loads from the first child that hits: certain with one child only."""
    name = str(config.get("kv_connector") or "")
    extra = config.get("kv_connector_extra_config") or {}
    children = extra.get("connectors") if name == "MultiConnector" else None
    if isinstance(children, list) and len(children) == 1:
        return _unwrapped(children[0], name)
    if config.get("kv_connector_module_path") == FAULT_CONNECTOR and name.startswith("Faulty"):
        return Connector(name.removeprefix("Faulty"), dict(extra), name)
    return Connector(name, dict(extra), wrapped_by)


async def read_facts(control: Control) -> ServerFacts:
    """Ask the server for everything; what an endpoint does not offer stays empty.

    Raises:
        ServerProblem: the server does not answer, or serves no model.
    """
    models = await control.get_json("/v1/models")
    served = member(models, "data") if isinstance(models, Mapping) else None
    if not isinstance(served, list) or not served or not isinstance(served[0], Mapping):
        raise ServerProblem(f"GET {control.url}/v1/models: expected a list of models, got {models!r:.200}")
    first = served[0]
    metrics = await read_metrics(control)
    info = await _offered(control, "/server_info", config_format="json")
    labels = metrics.of("vllm:cache_config_info") if metrics else ()
    return ServerFacts(
        version=str(member(await _offered(control, "/version"), "version") or ""),
        model=str(first.get("id") or ""),
        root=str(first.get("root") or first.get("id") or ""),
        owner=str(first.get("owned_by") or ""),
        max_context=number(first.get("max_model_len")),
        cache=labels[0].labels if labels else {},
        config=_mapping(info, "vllm_config"),
        environment=_mapping(info, "vllm_env"),
        metric_names=frozenset(metrics.samples) if metrics else frozenset(),
    )


async def read_metrics(control: Control) -> Metrics | None:
    """Return a scrape of ``/metrics``; None where the server has no such endpoint."""
    try:
        return parse(await control.get_text("/metrics"))
    except ServerProblem as problem:
        if problem.status is None:  # no answer at all, or another format: not "no endpoint"
            raise
        return None


async def _offered(control: Control, path: str, **params: str) -> Mapping[str, Any]:
    """Return what a GET answers, empty where the server refuses it."""
    try:
        answer = await control.get_json(path, **params)
    except ServerProblem as problem:
        if problem.status is None:
            raise
        return {}
    return answer if isinstance(answer, Mapping) else {}


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = values.get(name)
    return found if isinstance(found, Mapping) else {}
