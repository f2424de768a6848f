"""vLLM with LMCache: L1 and L2 told apart by LMCache's own counters, as one CPU run recorded them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kvverify.live.control import ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines import lmcache_server
from kvverify.live.engines.vllm_lmcache import VllmLmcache, VllmLmcacheInProcess
from kvverify.live.gate import evaluate
from kvverify.live.metrics import Metrics, Sample
from tests.live.engines.fakes import FakeLmcache, FakeVllm, serve
from tests.live.engines.running import QUICK, answered, opened


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcache_server, "_CLEAR_PAUSE_S", 0.0)


@dataclasses.dataclass
class Pair:
    """Both servers. ``url`` is vLLM's; ``options`` name LMCache's."""

    vllm: FakeVllm
    lmcache: FakeLmcache
    url: str
    options: Any

    def answer(self, prompt: int, *, device: int = 0, l1: int = 0, l2: int = 0, skipped: bool = False) -> None:
        """Answer a prompt: LMCache looks up all of it, and vLLM takes what HBM does not hold."""
        taken = max(l1 + l2 - device, 0)
        self.lmcache.look_up(prompt, l1=l1, l2=l2, loaded_chunks=0 if skipped else -(-taken // self.lmcache.chunk))
        self.vllm.answer(prompt, device=device, external=taken)


@contextmanager
def pair(version: str = "0.32.0", **lmcache: Any) -> Iterator[Pair]:
    server = FakeVllm("LMCacheMPConnector", {"lmcache.mp.host": "localhost", "lmcache.mp.port": 5555}, version=version)
    own = FakeLmcache(**lmcache)
    with serve(server) as url, serve(own) as own_url:
        yield Pair(server, own, url, dataclasses.replace(QUICK, lmcache_url=own_url))


def test_the_recorded_scrape() -> None:
    # 3 prompts of 352 tokens, block 32, chunk 64: cold, HBM pass, after the reset
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                assert engine.info is not None
                assert (engine.info.block_tokens, engine.info.hit_tokens) == (32, 64)
                expected = engine.expected(352)
                assert (expected.hit_tokens, expected.hbm_hit_tokens, expected.loaded_bytes) == (320, 320, None)
                readings = [await engine.evidence()]
                for device, l1 in ((0, 0), (320, 320), (0, 320)):
                    for _ in range(3):
                        both.answer(352, device=device, l1=l1)
                    readings.append(await engine.evidence())
                deltas = [after.since(before) for before, after in itertools.pairwise(readings)]
                assert [d.hbm_hit_tokens for d in deltas] == [0, 960, 0]
                assert [d.dram_hit_tokens for d in deltas] == [0, 0, 960]
                assert [d.disk_hit_tokens for d in deltas] == [0, 0, 0]
                assert [d.computed_tokens for d in deltas] == [1056, 96, 96]

    asyncio.run(run())


def one_pass(split: bool, tier: str, *, l2_adapter: bool, skipped: bool = False, **hits: int) -> list[str]:
    """Return the gate's reasons for one prompt of 581 tokens, after a warm-up lookup."""

    async def run() -> list[str]:
        with pair("0.32.0" if split else "0.26.0", split=split, l2=l2_adapter) as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                both.answer(581)
                before = await engine.evidence()
                expected = engine.expected(581, tier)
                assert (expected.hit_tokens, expected.hbm_hit_tokens) == (576, 576)
                both.answer(581, skipped=skipped, **hits)
                after = await engine.evidence()
                assert engine.info is not None
                told = answered(581, 576)
                return evaluate(tier, before, after, expected, told, engine.info, poisoned=True).reasons

    return asyncio.run(run())


def test_l1_is_dram_and_l2_is_disk() -> None:
    assert one_pass(True, "dram", l2_adapter=True, l1=576) == []
    assert one_pass(True, "disk", l2_adapter=True, l2=576) == []


def test_the_other_level_is_not_taken_for_it() -> None:
    assert any("dram hit 0 tokens" in reason for reason in one_pass(True, "dram", l2_adapter=True, l2=576))
    assert any("disk hit 0 tokens" in reason for reason in one_pass(True, "disk", l2_adapter=True, l1=576))
    mixed = one_pass(True, "dram", l2_adapter=True, l1=512, l2=64)
    assert any("dram hit 512 tokens, expected 576" in reason for reason in mixed)


def test_a_hit_without_a_load_is_seen_in_the_chunks() -> None:
    reasons = one_pass(True, "dram", l2_adapter=False, l1=576, skipped=True)
    assert reasons == ["the second source counts 0 for lmcache_chunks_loaded, expected 9"]


def test_an_lmcache_that_does_not_split_is_believed_only_without_l2() -> None:
    assert one_pass(False, "dram", l2_adapter=False, l1=576) == []
    assert any("dram hit 0 tokens" in reason for reason in one_pass(False, "dram", l2_adapter=True, l1=576))


def test_lookups_of_another_client_are_not_ours() -> None:
    async def run() -> None:
        with pair(l2=True) as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                both.answer(581)
                before = await engine.evidence()
                both.answer(581, l1=576)
                both.lmcache.look_up(128, l2=128)
                delta = (await engine.evidence()).since(before)
                assert (delta.dram_hit_tokens, delta.disk_hit_tokens) == (0, 0)

    asyncio.run(run())


def test_a_partial_hit_is_what_hbm_lacked() -> None:
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                both.answer(581)
                before = await engine.evidence()
                both.answer(581, device=128, l1=576)
                after = await engine.evidence()
                delta = after.since(before)
                assert (delta.hbm_hit_tokens, delta.dram_hit_tokens) == (128, 448)
                expected = engine.expected_partial(581, 128 + 5)
                assert engine.info is not None
                told = answered(581, 576)
                assert evaluate("partial", before, after, expected, told, engine.info, poisoned=True).reasons == []

    asyncio.run(run())


def test_unequal_hit_lengths_are_told() -> None:
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                expected = engine.expected(611)
                assert (expected.hit_tokens, expected.hbm_hit_tokens) == (576, 608)

    asyncio.run(run())


def test_settings_of_both_are_in_the_description() -> None:
    async def run() -> None:
        with pair(l2=True) as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                assert engine.info is not None
                options = engine.info.options
                assert options["lmcache_chunk_size"] == 64
                assert options["lmcache_models"] == [["served", 1]]
                assert options["lmcache_l2_adapters"] == ["FSL2Adapter"]
                assert engine.info.capacity_tokens["dram"] == (1 << 30) // (30 * 3 * 256)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("wanted", "l2", "lower", "between"),
    [
        (None, True, "dram", ()),
        ("dram", True, "dram", ()),
        ("disk", True, "disk", ("dram",)),
        ("disk", False, "dram", ()),
    ],
)
def test_the_tier_that_is_asked_for_is_tested_where_there_is_one(
    wanted: str | None, l2: bool, lower: str, between: tuple[str, ...]
) -> None:
    async def run() -> None:
        with pair(l2=l2) as both:
            async with opened(VllmLmcache, both.url, dataclasses.replace(both.options, tier=wanted)) as engine:
                assert engine.info is not None
                assert (engine.info.lower_tier, engine.info.tiers_between) == (lower, between)

    asyncio.run(run())


def test_engines_that_share_the_server_are_told_one_by_one() -> None:
    async def run() -> None:
        with pair() as both:
            workers = {str(i): {"model_name": "served", "world_size": 2} for i in range(4)}
            status = both.lmcache.status() | {"cache_context_meta": workers}
            both.lmcache.handlers[("GET", "/status")] = lambda query, body: status
            async with opened(VllmLmcache, both.url, both.options) as engine:
                assert engine.info is not None
                assert engine.info.options["lmcache_models"] == [["served", 2], ["served", 2]]

    asyncio.run(run())


def test_without_lmcaches_port_nothing_is_proved() -> None:
    async def run() -> None:
        with pair() as both:
            unreachable = dataclasses.replace(QUICK, lmcache_url="http://127.0.0.1:9")
            async with opened(VllmLmcache, both.url, unreachable) as engine:
                assert engine.info is not None
                assert any("--lmcache-url" in note for note in engine.info.notes)
                assert (await engine.evidence()).dram_hit_tokens is None
                with pytest.raises(FlushFailed, match="--lmcache-url"):
                    await engine.flush("dram")

    asyncio.run(run())


def test_another_lmcache_is_not_taken() -> None:
    async def run() -> None:
        with pair(port=6666) as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                assert engine.info is not None
                assert any("serves port 6666, but vLLM's connector uses 5555" in note for note in engine.info.notes)
                assert (await engine.evidence()).disk_hit_tokens is None

    asyncio.run(run())


def test_something_else_on_lmcaches_port() -> None:
    async def run() -> None:
        with pair() as both:
            wrong = dataclasses.replace(QUICK, lmcache_url=both.url)
            both.vllm.handlers[("GET", "/status")] = lambda query, body: {"ok": True}
            async with opened(VllmLmcache, both.url, wrong) as engine:
                assert engine.info is not None
                assert any("not the HTTP port of an LMCache server" in note for note in engine.info.notes)

    asyncio.run(run())


def test_the_key_is_for_vllm_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVVERIFY_API_KEY", "s3cr3t")

    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                await engine.evidence()
                await engine.flush("dram")
            assert any("s3cr3t" in str(headers) for headers in both.vllm.headers)
            assert not any("s3cr3t" in str(headers) for headers in both.lmcache.headers)

    asyncio.run(run())


def test_l1_is_cleared_and_looked_at() -> None:
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                both.lmcache.objects = 7
                await engine.flush("dram")
                assert not both.vllm.calls("/reset_prefix_cache")
                both.lmcache.objects, both.lmcache.stuck = 7, True
                with pytest.raises(FlushFailed, match="7 objects stay in L1"):
                    await engine.flush("dram")
                both.lmcache.handlers[("POST", "/cache/clear")] = lambda query, body: {"status": "error"}
                with pytest.raises(FlushFailed, match="expected status ok"):
                    await engine.flush("dram")
                with pytest.raises(FlushFailed, match="disk cannot be emptied"):
                    await engine.flush("disk")

    asyncio.run(run())


def test_hbm_is_flushed_without_lmcache() -> None:
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                await engine.flush("hbm")
                assert [q["reset_external"] for q, _ in both.vllm.calls("/reset_prefix_cache")] == ["false"]
                assert not both.lmcache.calls("/cache/clear")

    asyncio.run(run())


def test_stores_must_end() -> None:
    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                both.lmcache.page.add("lmcache_mp_num_submitted_stores", 2, device="cpu")
                both.lmcache.page.add("lmcache_mp_num_finished_stores", 1, device="cpu")
                with pytest.raises(ServerProblem, match="1 stores were submitted and do not end"):
                    await engine.settle()
                both.lmcache.page.add("lmcache_mp_num_finished_stores", 1, device="cpu")
                await engine.settle()

    asyncio.run(run())


def test_objects_on_their_way_to_l2_are_waited_for_and_pythons_own_counters_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A real server's garbage collector counted on while its stores were long done, and settling timed out."""
    collected = itertools.count()
    scrape = lmcache_server.LmcacheServer.scrape

    async def restless(self: lmcache_server.LmcacheServer) -> Metrics:
        metrics = await scrape(self)
        own = {"python_gc_objects_collected_total": (Sample({}, float(next(collected))),)}
        return Metrics({**metrics.samples, **own})

    monkeypatch.setattr(lmcache_server.LmcacheServer, "scrape", restless)

    async def run() -> None:
        with pair() as both:
            async with opened(VllmLmcache, both.url, both.options) as engine:
                await engine.settle()
                both.lmcache.page.add("lmcache_mp_l2_store_submitted_objects", 3, device="cpu")
                with pytest.raises(ServerProblem, match="3 stores were submitted and do not end"):
                    await engine.settle()
                both.lmcache.page.add("lmcache_mp_l2_store_completed_objects", 3, device="cpu")
                await engine.settle()

    asyncio.run(run())


URLS = [
    ({}, "http://gpu-box:8080"),
    ({"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555}, "http://gpu-box:8080"),
    ({"lmcache.mp.host": "cache-box"}, "http://cache-box:8080"),
    ({"lmcache.mp.server_urls": "tcp://a:5555,b:5556"}, "http://a:8080"),
    ({"lmcache.mp.server_urls": ["b:5556"]}, "http://b:8080"),
    ({"lmcache.mp.autostart.server_args": "--l1-size-gb 1 --http-port 8180"}, "http://gpu-box:8180"),
    ({"lmcache.mp.autostart.server_args": "--http-port=8181"}, "http://gpu-box:8181"),
]


@pytest.mark.parametrize(("extra", "url"), URLS)
def test_where_lmcache_should_be(extra: dict[str, Any], url: str) -> None:
    assert lmcache_server.http_url(extra, "gpu-box") == url


@pytest.mark.parametrize(
    ("extra", "port"),
    [({}, 5555), ({"lmcache.mp.port": 7}, 7), ({"lmcache.mp.server_urls": "tcp://a:9,b:5"}, 9)],
)
def test_which_port_vllm_uses(extra: dict[str, Any], port: int) -> None:
    assert lmcache_server.request_port(extra) == port


def test_in_process_hits_are_counted_as_they_are_claimed() -> None:
    # on the H200 0.5.3 under vLLM 0.26 claimed full hits; that the answers are wrong is for the comparison to find
    async def run() -> None:
        server = FakeVllm("LMCacheConnectorV1", {"lmcache.chunk_size": 64}, version="0.26.0")
        server.page.add("lmcache:num_hit_tokens", 0, model_name="served", worker_id="0")
        with serve(server) as url:
            async with opened(VllmLmcacheInProcess, url) as engine:
                assert engine.info is not None
                before = await engine.evidence()
                server.answer(581, external=576)
                server.page.add("lmcache:num_hit_tokens", 576, model_name="served", worker_id="0")
                after = await engine.evidence()
                told = answered(581, 576)
                gate = evaluate("dram", before, after, engine.expected(581), told, engine.info, poisoned=True)
                assert gate.reasons == []
                with pytest.raises(FlushFailed, match="cache_salt"):
                    await engine.flush("dram")

    asyncio.run(run())


def test_degraded_mode_has_no_evidence() -> None:
    async def run() -> None:
        server = FakeVllm("LMCacheConnectorV1")
        with serve(server) as url:
            async with opened(VllmLmcacheInProcess, url) as engine:
                assert engine.info is not None
                assert engine.info.hit_tokens == 256
                assert any("degraded mode" in note for note in engine.info.notes)
                before = await engine.evidence()
                server.answer(1025)
                after = await engine.evidence()
                gate = evaluate(
                    "dram", before, after, engine.expected(1025), answered(1025, 0), engine.info, poisoned=True
                )
                assert any("dram hit 0 tokens, expected 1024" in reason for reason in gate.reasons)

    asyncio.run(run())
