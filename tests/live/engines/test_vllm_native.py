"""vLLM's own offloading: the figures that an H200 gave, tiers, and stores that wait for the next step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvverify.live.engine import FlushFailed
from kvverify.live.engines.vllm_native import VllmNative, VllmSimple
from kvverify.live.gate import evaluate
from tests.live.engines.fakes import FakeVllm, serve
from tests.live.engines.running import answered, opened

POOL = {"cpu_bytes_to_use": 1 << 30}
MEASURED = [("auto", 16, 14_008_320), ("turboquant_4bit_nc", 32, 5_187_456)]  # bytes of one of the eight prompts


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0"])
@pytest.mark.parametrize(("dtype", "block", "loaded"), MEASURED)
def test_the_gate_of_the_h200_run(version: str, dtype: str, block: int, loaded: int) -> None:
    async def run() -> None:
        server = FakeVllm("OffloadingConnector", POOL, version=version, block=block, cache_dtype=dtype)
        with serve(server) as url:
            async with opened(VllmNative, url) as engine:
                expected = engine.expected(611)
                assert (expected.hit_tokens, expected.hbm_hit_tokens, expected.computed_tokens) == (608, 608, 3)
                assert expected.loaded_bytes == loaded
                assert engine.info is not None
                verdicts = {}
                for name, bytes_ in (("right", loaded), ("short", loaded - 64), ("none", 0)):
                    before = await engine.evidence()
                    server.answer(611, external=608, source="host", loaded=bytes_)
                    after = await engine.evidence()
                    told = answered(611, 608)
                    gate = evaluate("dram", before, after, expected, told, engine.info, poisoned=True)
                    verdicts[name] = gate.reasons
                assert verdicts["right"] == []
                assert f"{loaded - 64} bytes were loaded from dram, expected {loaded}" in verdicts["short"]
                assert f"0 bytes were loaded from dram, expected {loaded}" in verdicts["none"]

    asyncio.run(run())


def test_the_first_load_is_counted_though_its_counter_is_new() -> None:
    async def run() -> None:
        server = FakeVllm("OffloadingConnector", POOL)
        with serve(server) as url:
            async with opened(VllmNative, url) as engine:
                before = await engine.evidence()
                assert "kv_offload_load_bytes" not in server.page.text()
                assert before.loaded_bytes == 0
                server.answer(611, external=608, source="host", loaded=777)
                assert (await engine.evidence()).since(before).loaded_bytes == 777

    asyncio.run(run())


def test_aligned_prompts_are_not_comparable() -> None:
    async def run() -> None:
        with serve(FakeVllm("OffloadingConnector", POOL)) as url:
            async with opened(VllmNative, url) as engine:
                aligned = engine.expected(608)
                assert aligned.hbm_hit_tokens == 576
                assert aligned.hit_tokens != aligned.hbm_hit_tokens

    asyncio.run(run())


CHUNKS = [({"blocks_per_chunk": 4}, 128), ({"block_size": 64}, 64), ({}, 32)]


@pytest.mark.parametrize(("extra", "unit"), CHUNKS)
def test_the_chunk_is_the_unit(extra: dict[str, Any], unit: int) -> None:
    async def run() -> None:
        with serve(FakeVllm("OffloadingConnector", POOL | extra)) as url:
            async with opened(VllmNative, url) as engine:
                assert engine.info is not None
                assert engine.info.hit_tokens == unit
                assert engine.expected(5 * unit + 1).hit_tokens == 5 * unit

    asyncio.run(run())


def test_capacity_of_the_host_pool() -> None:
    async def run() -> None:
        with serve(FakeVllm("OffloadingConnector", POOL)) as url:
            async with opened(VllmNative, url) as engine:
                assert engine.info is not None
                assert engine.info.capacity_tokens["dram"] == (1 << 30) // (30 * 3 * 256)

    asyncio.run(run())


def test_dram_is_flushed_with_the_connector_and_hbm_without() -> None:
    async def run() -> None:
        server = FakeVllm("OffloadingConnector", POOL)
        with serve(server) as url:
            async with opened(VllmNative, url) as engine:
                await engine.flush("hbm")
                await engine.flush("dram")
                assert [q["reset_external"] for q, _ in server.calls("/reset_prefix_cache")] == ["false", "true"]
                with pytest.raises(FlushFailed, match="no such tier is configured"):
                    await engine.flush("disk")

    asyncio.run(run())


def test_stores_are_pushed_out_by_requests() -> None:
    async def run() -> None:
        server = FakeVllm("OffloadingConnector", POOL)
        with serve(server) as url:
            async with opened(VllmNative, url) as engine:
                await engine.settle()
                assert len(server.calls("/v1/completions")) == 2

    asyncio.run(run())


def test_tiers_behind_dram() -> None:
    async def run() -> None:
        tiers = {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "fs", "root_dir": "/data/kv"}]}
        for version, hits in (("0.32.0", (0, 320)), ("0.26.0", (None, None))):
            server = FakeVllm("OffloadingConnector", POOL | tiers, version=version)
            with serve(server) as url:
                async with opened(VllmNative, url) as engine:
                    before = await engine.evidence()
                    server.answer(352, external=320, source="disk", loaded=1)
                    delta = (await engine.evidence()).since(before)
                    assert (delta.dram_hit_tokens, delta.disk_hit_tokens) == hits
                    with pytest.raises(FlushFailed, match="/data/kv"):
                        await engine.flush("disk")

    asyncio.run(run())


def test_hits_that_no_tier_is_given_for_count_for_none() -> None:
    async def run() -> None:
        server = FakeVllm("OffloadingConnector", POOL)
        with serve(server) as url:
            async with opened(VllmNative, url) as engine:
                before = await engine.evidence()
                server.answer(352, external=320, source="external_unspecified", loaded=1)
                delta = (await engine.evidence()).since(before)
                assert (delta.dram_hit_tokens, delta.disk_hit_tokens) == (0, 0)

    asyncio.run(run())


@pytest.mark.parametrize(("backend", "tier"), [("cpu", "dram"), ("disk", "disk")])
def test_the_simple_connector_counts_blocks_when_their_load_is_done(backend: str, tier: str) -> None:
    async def run() -> None:
        server = FakeVllm("SimpleCPUOffloadConnector", POOL | {"kv_offload_backend": backend})
        server.page.set("vllm:simple_kv_offload_used_blocks", 0, engine="0", model_name="served")
        with serve(server) as url:
            async with opened(VllmSimple, url) as engine:
                assert engine.info is not None
                assert engine.info.lower_tier == tier
                expected = engine.expected(352)
                assert (expected.hit_tokens, expected.loaded_bytes) == (320, None)
                reasons = []
                for blocks in (10, 0):
                    before = await engine.evidence()
                    server.answer(352, external=320, source="host" if tier == "dram" else "disk")
                    server.count("simple_kv_offload_load_blocks", blocks)
                    after = await engine.evidence()
                    told = answered(352, 320)
                    gate = evaluate(tier, before, after, expected, told, engine.info, poisoned=True)
                    reasons.append(gate.reasons)
                assert reasons[0] == []
                assert any("loaded_blocks" in reason for reason in reasons[1])

    asyncio.run(run())


def test_the_simple_connectors_disk_is_not_flushed() -> None:
    async def run() -> None:
        server = FakeVllm("SimpleCPUOffloadConnector", {"kv_offload_backend": "disk"})
        with serve(server) as url:
            async with opened(VllmSimple, url) as engine:
                with pytest.raises(FlushFailed):
                    await engine.flush("dram")
                await engine.flush("hbm")
                assert [q["reset_external"] for q, _ in server.calls("/reset_prefix_cache")] == ["false"]

    asyncio.run(run())
