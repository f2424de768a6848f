"""Names that the adapters use, looked up in the sources of vLLM and LMCache that are installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest


def sources(package: str, *parts: str) -> str:
    """Return the text of some of an installed package's modules, without importing it."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    root = Path(found.submodule_search_locations[0])
    files = [
        file for part in parts for file in ([root / part] if part.endswith(".py") else (root / part).rglob("*.py"))
    ]
    missing = [str(file) for file in files if not file.is_file()]
    if missing:
        pytest.fail(f"{package} is of another version than the adapters know: no {missing[0]}")
    return "\n".join(file.read_text() for file in files)


VLLM_METRICS = [
    "cache_config_info",
    "external_prefix_cache_hits",
    "kv_offload_load_bytes",
    "kv_offload_total_bytes",
    "num_preemptions",
    "num_requests_running",
    "prefix_cache_hits",
    "prefix_cache_queries",
    "prompt_tokens_by_source",
    "prompt_tokens_cached_by_source",
    "request_prefill_kv_computed_tokens",
    "request_success",
    "simple_kv_offload_load_blocks_total",
]


@pytest.mark.parametrize("name", VLLM_METRICS)
def test_vllm_metrics(name: str) -> None:
    text = sources("vllm", "v1/metrics", "v1/simple_kv_offload", "distributed/kv_transfer/kv_connector/v1/offloading")
    assert f'"vllm:{name}"' in text


def test_vllm_labels() -> None:
    assert {"local_compute", "external_kv_transfer"} <= set(
        re.findall(r'"(\w+)"', sources("vllm", "v1/metrics/stats.py"))
    )
    assert {"host", "disk"} <= set(re.findall(r'"(\w+)"', sources("vllm", "v1/metrics/cache_hit_source.py")))
    assert '"CPU_to_GPU"' in sources("vllm", "distributed/kv_transfer/kv_connector/v1/offloading/metrics.py")


CONNECTORS = [
    ("ExampleConnector", "example_connector.py"),
    ("LMCacheConnectorV1", "lmcache_connector.py"),
    ("LMCacheMPConnector", "lmcache_mp_connector.py"),
    ("OffloadingConnector", "offloading_connector.py"),
    ("SimpleCPUOffloadConnector", "simple_cpu_offload_connector.py"),
]


@pytest.mark.parametrize(("name", "module"), CONNECTORS)
def test_vllm_connectors(name: str, module: str) -> None:
    assert re.search(
        rf"^(class )?{name}\b", sources("vllm", f"distributed/kv_transfer/kv_connector/v1/{module}"), re.MULTILINE
    )
    assert f'"{name}"' in sources("vllm", "distributed/kv_transfer/kv_connector/factory.py")


def test_vllm_endpoints() -> None:
    text = sources("vllm", "entrypoints/serve")
    for route in ("/server_info", "/reset_prefix_cache", "/collective_rpc", "/version", "/tokenize"):
        assert f'"{route}"' in text
    assert {"reset_running_requests", "reset_external", "config_format"} <= set(re.findall(r"(\w+): ", text))


def test_vllm_settings() -> None:
    cache = sources("vllm", "config/cache.py")
    for name in ("block_size", "cache_dtype", "kv_cache_dtype_skip_layers", "kv_cache_size_tokens", "num_gpu_blocks"):
        assert re.search(rf"^    {name}: ", cache, re.MULTILINE)
    connector = sources("vllm", "distributed/kv_transfer/kv_connector/v1")
    for name in ("blocks_per_chunk", "block_size", "shared_storage_path", "kv_offload_backend"):
        assert f'"{name}"' in connector
    assert "(num_tokens - 1) // block_size * block_size" in connector  # ExampleConnector takes one token more off


LMCACHE_METRICS = ["lookup_hit", "lookup_hit_l1", "lookup_hit_l2", "num_chunks_loaded", "num_submitted_stores"]


@pytest.mark.parametrize("name", [*LMCACHE_METRICS, "num_finished_stores"])
def test_lmcache_metrics(name: str) -> None:
    assert f'"lmcache_mp.{name}"' in sources("lmcache", "v1/mp_observability/subscribers/metrics")


def test_lmcache_endpoints_and_fields() -> None:
    apis = sources("lmcache", "v1/multiprocess/http_apis")
    for route in ("/status", "/config", "/cache/clear"):
        assert f'"{route}"' in apis
    status = sources("lmcache", "v1/multiprocess/server.py", "v1/multiprocess/modules", "v1/distributed")
    for field in ("chunk_size", "storage_manager", "l2_adapters", "l1_manager", "l1_managers", "total_object_count"):
        assert f'"{field}"' in status
    assert '"cache_context_meta"' in status
    assert "separate_object_groups" in sources("lmcache", "v1/multiprocess/config.py")
    connector = sources("lmcache", "integration/vllm")
    for option in ("lmcache.mp.server_urls", "lmcache.mp.host", "lmcache.mp.port", "lmcache.mp.autostart.server_args"):
        assert f'"{option}"' in connector
    assert '"lmcache:num_hit_tokens"' in sources("lmcache", "observability.py")
