"""Servers that answer as the recorded ones did: vLLM 0.26 and 0.32, LMCache 0.5.3 and 0.5.6, over real sockets.

Metric pages come from prometheus_client, as in the real servers. What each number means is in the tests.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

Handler = Callable[[dict[str, str], Any], Any]  # query, body -> document, text, or (status, either)


@dataclass
class Routes:
    """A server's handlers by method and path, and what it was asked."""

    handlers: dict[tuple[str, str], Handler] = field(default_factory=dict)
    asked: list[tuple[str, str, dict[str, str], Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def calls(self, path: str) -> list[tuple[dict[str, str], Any]]:
        """Return query and body of each call of ``path``."""
        return [(query, body) for _, asked, query, body in self.asked if asked == path]


@contextmanager
def serve(routes: Routes) -> Iterator[str]:
    """Serve ``routes`` on a free port and give the URL."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer("GET")

        def do_POST(self) -> None:
            self._answer("POST")

        def _answer(self, method: str) -> None:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(raw) if raw else None
            routes.asked.append((method, parts.path, query, body))
            routes.headers.append(dict(self.headers))
            handler = routes.handlers.get((method, parts.path))
            answer = (404, {"detail": "Not Found"}) if handler is None else handler(query, body)
            status, document = answer if isinstance(answer, tuple) else (200, answer)
            data = document.encode() if isinstance(document, str) else json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Page:
    """A metrics page. A counter that was never touched is absent, as in LMCache."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._made: dict[str, Any] = {}

    def add(self, name: str, amount: float = 0, **labels: str) -> None:
        """Add to a counter, and make it first where needed."""
        self._of(Counter, name, labels).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._of(Gauge, name, labels).set(value)

    def text(self) -> str:
        """Return the page."""
        return generate_latest(self.registry).decode()

    def _of(self, kind: type[Any], name: str, labels: dict[str, str]) -> Any:
        if name not in self._made:
            self._made[name] = kind(name, name, list(labels), registry=self.registry)
        return self._made[name].labels(**labels) if labels else self._made[name]


SMOLLM2 = "HuggingFaceTB/SmolLM2-135M"  # a preset of kvverify's: vLLM tells no more than the model's path


class FakeVllm(Routes):
    """vLLM with one served model. ``answer`` counts one request as vLLM does."""

    def __init__(
        self,
        connector: str = "",
        extra: dict[str, Any] | None = None,
        *,
        version: str = "0.32.0",
        dev: bool = True,
        block: int = 32,
        cache_dtype: str = "auto",
        config: dict[str, Any] | None = None,
        transfer: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.connector, self.block, self.new = connector, block, version >= "0.30"
        self.page = Page()
        self.success: list[bool] = []  # what the next flushes answer; True when used up
        cache = {
            "block_size": block,
            "cache_dtype": cache_dtype,
            "enable_prefix_caching": True,
            "kv_cache_dtype_skip_layers": [],
            "num_gpu_blocks": 100,
            "prefix_caching_hash_algo": "sha256",
            "sliding_window": None,
        }
        if self.new:
            cache["kv_cache_size_tokens"] = 100 * block
        labels = {name: str(value) for name, value in cache.items()} | {"engine": "0"}
        self.page.set("vllm:cache_config_info", 1, **labels)
        self._start()
        wired = {"kv_connector": connector, "kv_connector_extra_config": extra or {}, "kv_load_failure_policy": "fail"}
        self.info = {
            "vllm_config": {
                "model_config": {
                    "model": SMOLLM2,
                    "dtype": "torch.bfloat16",
                    "enforce_eager": True,
                },
                "cache_config": cache,
                "device_config": {"device": "cpu"},
                "parallel_config": {
                    "tensor_parallel_size": 1,
                    "pipeline_parallel_size": 1,
                    "world_size": 1,
                    "worker_extension_cls": "",
                },
                "kv_transfer_config": {**wired, **(transfer or {})} if connector else None,
                **(config or {}),
            },
            "vllm_env": {"VLLM_BATCH_INVARIANT": False},
            "system_env": {},
        }
        card = {"id": "served", "object": "model", "owned_by": "vllm", "root": SMOLLM2, "max_model_len": 4096}
        self.handlers = {
            ("GET", "/v1/models"): lambda query, body: {"object": "list", "data": [card]},
            ("GET", "/version"): lambda query, body: {"version": version},
            ("GET", "/metrics"): lambda query, body: self.page.text(),
            ("POST", "/v1/completions"): self._complete,
        }
        if dev:
            self.handlers[("GET", "/server_info")] = lambda query, body: self.info
            self.handlers[("POST", "/reset_prefix_cache")] = lambda query, body: {
                "success": self.success.pop(0) if self.success else True
            }

    def _start(self) -> None:
        """Make the counters that are there from the start; those of offloading, but for the older ones, come with a load."""
        for name in ("prefix_cache_queries", "prefix_cache_hits", "external_prefix_cache_queries"):
            self.count(name)
        for name in ("external_prefix_cache_hits", "num_preemptions"):
            self.count(name)
        for source in ("local_compute", "local_cache_hit", "external_kv_transfer"):
            self.count("prompt_tokens_by_source", source=source)
        for reason in ("stop", "length", "abort"):
            self.count("request_success", finished_reason=reason)
        if self.new:
            for source in ("device", "host", "p2p", "disk", "external_unspecified"):
                self.count("prompt_tokens_cached_by_source", source=source)
        if self.connector.endswith("OffloadingConnector"):
            for way in ("CPU_to_GPU", "GPU_to_CPU"):
                self.count("kv_offload_total_bytes", transfer_type=way)
        self.page.set("vllm:num_requests_running", 0, engine="0", model_name="served")

    def count(self, name: str, amount: float = 0, **labels: str) -> None:
        """Add to one of vLLM's counters."""
        self.page.add(f"vllm:{name}", amount, engine="0", model_name="served", **labels)

    def answer(self, prompt: int, *, device: int = 0, external: int = 0, source: str = "", loaded: int = 0) -> None:
        """Count a prompt of which HBM hit ``device`` tokens, the connector ``external``, loading ``loaded`` bytes."""
        self.count("prefix_cache_queries", prompt)
        self.count("prefix_cache_hits", device)
        self.count("external_prefix_cache_queries", prompt - device)
        self.count("external_prefix_cache_hits", external)
        self.count("prompt_tokens_by_source", prompt - device - external, source="local_compute")
        self.count("prompt_tokens_by_source", device, source="local_cache_hit")
        self.count("prompt_tokens_by_source", external, source="external_kv_transfer")
        self.count("request_success", 1, finished_reason="length")
        if self.new:
            self.count("prompt_tokens_cached_by_source", device, source="device")
            self.count("prompt_tokens_cached_by_source", external, source=source or "external_unspecified")
        if loaded:
            self.count("kv_offload_load_bytes", loaded)
            self.count("kv_offload_total_bytes", loaded, transfer_type="CPU_to_GPU")

    def _complete(self, query: dict[str, str], body: Any) -> Any:
        self.answer(1)
        return {"choices": [{"text": "x"}]}


class FakeLmcache(Routes):
    """The HTTP port of an LMCache server; a counter appears once something was added to it."""

    def __init__(
        self, *, chunk: int = 64, port: int = 5555, split: bool = True, l2: bool = False, separate: bool = False
    ) -> None:
        super().__init__()
        self.chunk, self.split, self.objects = chunk, split, 0
        self.stuck = False  # clearing leaves the objects
        self.page = Page()
        self.page.set("lmcache_mp_l1_memory_usage_bytes", 0)
        self.config = {"mp": {"port": port, "chunk_size": chunk, "separate_object_groups": separate}}
        self.adapters = [{"is_healthy": True, "type": "FSL2Adapter"}] if l2 else []
        self.handlers = {
            ("GET", "/status"): lambda query, body: self.status(),
            ("GET", "/config"): lambda query, body: self.config,
            ("GET", "/metrics"): lambda query, body: self.page.text(),
            ("POST", "/cache/clear"): self._clear,
        }

    def status(self) -> dict[str, Any]:
        """Return what /status answers; 0.5.6 has ``l1_managers`` beside ``l1_manager``."""
        manager = {"total_object_count": self.objects, "memory_total_bytes": 1 << 30}
        storage: dict[str, Any] = {"is_healthy": True, "l1_manager": manager, "l2_adapters": self.adapters}
        if self.split:
            storage["l1_managers"] = {"default": manager}
        worker = {"model_name": "served", "world_size": 1, "kv_cache_layout": {}}
        meta = {"registered_gpu_ids": [7], "cache_context_meta": {"7": worker}}
        return {"chunk_size": self.chunk, "hash_algorithm": "blake3", "storage_manager": storage, **meta}

    def look_up(self, prompt: int, *, l1: int = 0, l2: int = 0, loaded_chunks: int = 0) -> None:
        """Count a lookup; LMCache 0.5.3 does not split by level."""
        labels = {"cache_salt": "", "model_name": "served"}
        self.page.add("lmcache_mp_lookup_requested_tokens", prompt // self.chunk * self.chunk, **labels)
        self.page.add("lmcache_mp_lookup_hit_tokens", l1 + l2, **labels)
        if self.split:
            self.page.add("lmcache_mp_lookup_hit_l1_tokens", l1, **labels)
            self.page.add("lmcache_mp_lookup_hit_l2_tokens", l2, **labels)
        if loaded_chunks:
            self.page.add("lmcache_mp_num_chunks_loaded", loaded_chunks, worker_id="7", model_name="served")

    def _clear(self, query: dict[str, str], body: Any) -> Any:
        assert body == {"tier": "l1", "force": False}
        self.objects = self.objects if self.stuck else 0
        return {"status": "ok", "cleared": {"tier": "l1"}}
