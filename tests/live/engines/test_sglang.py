"""SGLang with HiCache, by its documentation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvverify.live.engine import FlushFailed
from kvverify.live.engines.sglang import Sglang
from kvverify.live.gate import evaluate
from tests.live.engines.fakes import Page, Routes, serve
from tests.live.engines.running import answered, opened

INFO = {
    "version": "0.5.9",
    "page_size": 64,
    "tp_size": 2,
    "kv_cache_dtype": "auto",
    "enable_hierarchical_cache": True,
    "hicache_write_policy": "write_through",
    "max_total_num_tokens": 50_000,
}


class FakeSglang(Routes):
    def __init__(self, info: dict[str, Any] | None = None, path: str = "/server_info") -> None:
        super().__init__()
        self.page = Page()
        for name in ("prompt_tokens", "num_requests"):
            self.page.add(f"sglang:{name}", model_name="m")
        self.page.set("sglang:num_running_reqs", 0, model_name="m")
        self.page.set("sglang:hicache_host_total_tokens", 200_000, model_name="m")
        card = {"id": "m", "owned_by": "sglang", "max_model_len": 8192}
        self.handlers = {
            ("GET", "/v1/models"): lambda query, body: {"data": [card]},
            ("GET", path): lambda query, body: INFO | (info or {}),
            ("GET", "/metrics"): lambda query, body: self.page.text(),
            ("GET", "/flush_cache"): lambda query, body: "Cache flushed.\n",
        }

    def answer(self, prompt: int, loaded: int | None = None, **hits: int) -> None:
        self.page.add("sglang:prompt_tokens", prompt, model_name="m")
        self.page.add("sglang:num_requests", 1, model_name="m")
        for source, tokens in hits.items():
            self.page.add("sglang:cached_tokens", tokens, model_name="m", cache_source=source)
        if loaded is not None:
            self.page.add("sglang:load_back_tokens", loaded, model_name="m")


@pytest.mark.parametrize("path", ["/server_info", "/get_server_info"])
def test_a_hit_in_host_memory(path: str) -> None:
    async def run() -> None:
        server = FakeSglang(path=path)
        with serve(server) as url:
            async with opened(Sglang, url) as engine:
                info = engine.info
                assert info is not None
                assert (info.build, info.block_tokens, info.ranks) == ("sglang 0.5.9", 64, 2)
                assert info.capacity_tokens == {"hbm": 50_000, "dram": 200_000}
                expected = engine.expected(600)
                assert (expected.hit_tokens, expected.hbm_hit_tokens) == (576, 576)
                reasons = []
                for hits, loaded in (({"host": 576}, 576), ({"device": 576}, None), ({"host": 576}, 0), ({}, 0)):
                    before = await engine.evidence()
                    server.answer(600, loaded, **hits)
                    after = await engine.evidence()
                    told = answered(600, 576)
                    reasons.append(evaluate("dram", before, after, expected, told, info, poisoned=True).reasons)
                assert reasons[0] == []
                assert "HBM hit 576 tokens, expected 0" in reasons[1]
                assert any("load_back_tokens" in reason for reason in reasons[2])
                assert any("beyond the tail" in reason for reason in reasons[3])

    asyncio.run(run())


def test_an_older_version_without_sources_tells_nothing() -> None:
    async def run() -> None:
        server = FakeSglang()
        server.page.add("sglang:cached_tokens", 576, model_name="m")
        with serve(server) as url:
            async with opened(Sglang, url) as engine:
                evidence = await engine.evidence()
                assert (evidence.hbm_hit_tokens, evidence.dram_hit_tokens) == (None, None)

    asyncio.run(run())


def test_hbm_cannot_be_flushed_alone() -> None:
    async def run() -> None:
        server = FakeSglang()
        with serve(server) as url:
            async with opened(Sglang, url) as engine:
                with pytest.raises(FlushFailed, match="filler"):
                    await engine.flush("hbm")
                assert not server.calls("/flush_cache")
                await engine.flush("dram")
                assert len(server.calls("/flush_cache")) == 1
                server.handlers[("GET", "/flush_cache")] = lambda query, body: (400, "not performed")
                with pytest.raises(FlushFailed, match="not performed"):
                    await engine.flush("dram")
                server.handlers[("GET", "/clear_hicache_storage_backend")] = lambda query, body: (400, "no backend")
                with pytest.raises(FlushFailed, match="no backend"):
                    await engine.flush("disk")

    asyncio.run(run())


NOTES = [
    ({"enable_hierarchical_cache": False}, "--enable-hierarchical-cache"),
    ({"hicache_write_policy": "write_back"}, "use write_through"),
    ({"disable_radix_cache": True}, "nothing is ever hit"),
]


@pytest.mark.parametrize(("info", "note"), NOTES)
def test_settings_that_make_a_test_meaningless_are_noted(info: dict[str, Any], note: str) -> None:
    async def run() -> None:
        with serve(FakeSglang(info)) as url:
            async with opened(Sglang, url) as engine:
                assert engine.info is not None
                assert any(note in line for line in engine.info.notes)

    asyncio.run(run())
