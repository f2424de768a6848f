"""Counters in Prometheus' text form, under vLLM's names."""

from __future__ import annotations

from collections.abc import Mapping

from kvverify.lab.engine import Counters
from kvverify.lab.plants import Plant

# counter -> (label, its values); "" where there is none
_COUNTERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "prefix_cache_queries": ("", ()),
    "prefix_cache_hits": ("", ()),
    "external_prefix_cache_queries": ("", ()),
    "external_prefix_cache_hits": ("", ()),
    "prompt_tokens_cached_by_source": ("source", ("device", "host")),
    "prompt_tokens_by_source": ("source", ("local_compute", "local_cache_hit", "external_kv_transfer")),
    "prompt_tokens_cached": ("", ()),
    "prompt_tokens": ("", ()),
    "generation_tokens": ("", ()),
    "request_success": ("finished_reason", ("length", "stop", "abort")),
    "kv_offload_load_bytes": ("", ()),
    "kv_offload_load_time": ("", ()),
    "kv_offload_store_bytes": ("", ()),
    "num_preemptions": ("", ()),
}


def render(counters: Counters, model: str, usage: float, cache_config: Mapping[str, object], plant: Plant) -> str:
    """Return the page. ``cache_config`` becomes the labels of ``vllm:cache_config_info``."""
    common = {"engine": "0", "model_name": model}
    lines: list[str] = []

    def add(name: str, kind: str, samples: list[tuple[dict[str, str], float]], suffix: str = "") -> None:
        lines.append(f"# TYPE vllm:{name}{suffix} {kind}")
        for labels, value in samples:
            lines.append(f"vllm:{name}{suffix}{_labels({**common, **labels})} {float(value)!r}")

    def value(name: str) -> float:
        if plant.id == "counters-stuck":
            return 0.0
        return 1e12 - counters.values[name] if plant.id == "counters-back" else counters.values[name]

    for name, (label, words) in _COUNTERS.items():
        samples = [({label: word}, value(f"{name}/{word}")) for word in words] if label else [({}, value(name))]
        add(name, "counter", samples, "_total")
    computed = "request_prefill_kv_computed_tokens"
    lines.append(f"# TYPE vllm:{computed} histogram")
    requests = sum(value(f"request_success/{word}") for word in ("length", "stop", "abort"))
    for suffix, number in (("_bucket", requests), ("_count", requests), ("_sum", value(computed))):
        labels = {**common, "le": "+Inf"} if suffix == "_bucket" else common
        lines.append(f"vllm:{computed}{suffix}{_labels(labels)} {float(number)!r}")
    add("num_requests_running", "gauge", [({}, counters.running)])
    add("num_requests_waiting", "gauge", [({}, len(counters.waiting))])
    add("kv_cache_usage_perc", "gauge", [({}, usage)])
    add("cache_config_info", "gauge", [({name: str(setting) for name, setting in cache_config.items()}, 1)])
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    quoted = (f'{name}="{text}"' for name, text in labels.items())
    return "{" + ",".join(quoted) + "}"
