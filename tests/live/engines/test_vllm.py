"""vLLM without a connector, and what all connectors share: settings, evidence, flush, poison, digests."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvverify.errors import KvverifyError
from kvverify.live.control import ServerProblem
from kvverify.live.engine import Evidence, FlushFailed
from kvverify.live.engines import vllm_reset
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.vllm import Vllm
from kvverify.live.engines.vllm_native import VllmNative
from kvverify.live.gate import evaluate
from tests.live.engines.fakes import FakeVllm, serve
from tests.live.engines.running import QUICK, answered, opened


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_reset, "_PAUSE_S", 0.0)


@pytest.mark.parametrize("version", ["0.26.0", "0.32.0"])
def test_description(version: str) -> None:
    async def run() -> None:
        with serve(FakeVllm(version=version)) as url:
            async with opened(Vllm, f"{url}/v1") as engine:
                info = engine.info
                assert info is not None
                assert (info.engine, info.model, info.build) == ("vllm", "served", f"vllm {version}")
                assert (info.block_tokens, info.hit_tokens, info.max_context) == (32, 32, 4096)
                assert info.capacity_tokens == {"hbm": 3200}
                assert info.kv_layers == (("bf16", 3, 64),) * 30
                assert info.options["prefix_caching_hash_algo"] == "sha256"
                assert info.options["log_stats"] is True
                assert info.dev_endpoints == ("collective_rpc", "reset_prefix_cache", "server_info")
                assert info.notes == ("no KV connector: there is no lower tier",)

    asyncio.run(run())


def test_without_dev_mode_the_labels_are_used_and_a_note_says_what_to_do() -> None:
    async def run() -> None:
        server = FakeVllm(dev=False, block=16, cache_dtype="fp8")
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                info = engine.info
                assert info is not None
                assert (info.block_tokens, info.kv_cache_dtype, info.dev_endpoints) == (16, "fp8", ())
                assert any("VLLM_SERVER_DEV_MODE=1" in note for note in info.notes)
                with pytest.raises(FlushFailed, match="VLLM_SERVER_DEV_MODE=1"):
                    await engine.flush("hbm")

    asyncio.run(run())


def test_log_statistics_off_is_noted_and_nothing_is_zero() -> None:
    async def run() -> None:
        server = FakeVllm()
        server.handlers[("GET", "/metrics")] = lambda query, body: "# nothing\n"
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                assert engine.info is not None
                assert any("--disable-log-stats" in note for note in engine.info.notes)
                assert engine.info.options["log_stats"] is False
                assert await engine.evidence() == Evidence()

    asyncio.run(run())


def test_no_lower_tier_is_never_proved() -> None:
    async def run() -> None:
        server = FakeVllm()
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                assert engine.info is not None
                before = await engine.evidence()
                server.answer(352)  # a recomputation
                after = await engine.evidence()
                gate = evaluate(
                    "dram", before, after, engine.expected(352), answered(352, 0), engine.info, poisoned=True
                )
                assert not gate.satisfied
                assert any("dram hit 0 tokens, expected 320" in reason for reason in gate.reasons)

    asyncio.run(run())


def test_evidence_of_a_hit_in_hbm() -> None:
    async def run() -> None:
        server = FakeVllm()
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                before = await engine.evidence()
                server.answer(352, device=320)
                delta = (await engine.evidence()).since(before)
                assert (delta.hbm_hit_tokens, delta.computed_tokens, delta.queries) == (320, 32, 352)
                assert (delta.requests, delta.preemptions, delta.running, delta.loaded_bytes) == (1, 0, 0, None)

    asyncio.run(run())


def test_counters_are_read_until_they_rest() -> None:
    async def run() -> None:
        server, reads = FakeVllm(), [0]

        def late(query: dict[str, str], body: Any) -> str:
            reads[0] += 1
            if reads[0] in (2, 3):  # two more engine steps
                server.answer(10)
            return server.page.text()

        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                reads[0] = 0
                server.handlers[("GET", "/metrics")] = late
                assert (await engine.evidence()).requests == 2

    asyncio.run(run())


def test_a_flush_asks_for_hbm_alone_and_believes_the_body_not_the_status() -> None:
    async def run() -> None:
        server = FakeVllm()
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                server.success = [False, False, True]
                await engine.flush("hbm")
                assert [query for query, _ in server.calls("/reset_prefix_cache")] == [
                    {"reset_running_requests": "false", "reset_external": "false"}
                ] * 3
                server.success = [False] * 100
                with pytest.raises(FlushFailed, match="success false 20 times"):
                    await engine.flush("hbm")

    asyncio.run(run())


@pytest.mark.parametrize("answer", [{}, {"success": "yes"}, [], {"success": 1}])
def test_an_answer_that_does_not_say_success_is_none(answer: Any) -> None:
    async def run() -> None:
        server = FakeVllm()
        server.handlers[("POST", "/reset_prefix_cache")] = lambda query, body: answer
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                with pytest.raises(FlushFailed, match="expected"):
                    await engine.flush("hbm")

    asyncio.run(run())


@pytest.mark.parametrize("tier", ["dram", "disk"])
def test_no_flush_of_what_cannot_be_flushed(tier: str) -> None:
    async def run() -> None:
        server = FakeVllm()
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                with pytest.raises(FlushFailed, match="cache_salt"):
                    await engine.flush(tier)
        assert not server.calls("/reset_prefix_cache")

    asyncio.run(run())


def extension(poisoned: list[list[int]], blocks: int = 4) -> Any:
    """Answer as kvverify's worker extension does on as many ranks as there are lists of poisoned blocks."""

    def answer(query: dict[str, str], body: Any) -> Any:
        ids = list(range(1, blocks + 1))
        results = {
            "kvverify_poison": [{"blocks": blocks, "bytes": 100, "pattern": 1} for _ in poisoned],
            "kvverify_poisoned": [{"looked_at": blocks, "poisoned": len(p), "blocks": p} for p in poisoned],
            "kvverify_digests": [{"blocks": ids, "digests": [f"r{r}b{b}" for b in ids]} for r in range(len(poisoned))],
        }
        return {"results": results[body["method"]]}

    return answer


def test_poison_is_looked_for() -> None:
    async def run() -> None:
        server = FakeVllm()
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                server.handlers[("POST", "/collective_rpc")] = extension([[1, 2, 3, 4], [1, 2, 3, 4]])
                assert await engine.poison() == "worker extension: 4 blocks, 200 bytes on 2 ranks, all seen"
                server.handlers[("POST", "/collective_rpc")] = extension([[1, 2, 3, 4], [1, 2, 4]])
                with pytest.raises(FlushFailed, match="rank 1: 3 of 4 blocks"):
                    await engine.poison()
                server.handlers[("POST", "/collective_rpc")] = extension([[]], blocks=0)
                with pytest.raises(FlushFailed, match="0 of 0 blocks"):
                    await engine.poison()

    asyncio.run(run())


def test_digests_are_of_what_is_no_longer_poison_on_any_rank() -> None:
    async def run() -> None:
        server = FakeVllm()
        server.handlers[("POST", "/collective_rpc")] = extension([[1, 4], [3, 4]])
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                assert await engine.digests([5] * 64) == ["r0b1+r1b1", "r0b2+r1b2", "r0b3+r1b3"]

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer", [(500, {"error": "no such method"}), {"results": []}, {"results": ["None"]}, (404, {})]
)
def test_without_the_extension_it_is_said_how_to_start(answer: Any) -> None:
    async def run() -> None:
        server = FakeVllm()
        server.handlers[("POST", "/collective_rpc")] = lambda query, body: answer
        with serve(server) as url:
            async with opened(Vllm, url) as engine:
                with pytest.raises(FlushFailed, match=r"KvverifyWorker|of each rank"):
                    await engine.poison()

    asyncio.run(run())


def test_nothing_is_expected_of_a_server_that_does_not_tell_its_block() -> None:
    async def run() -> None:
        with serve(FakeVllm()) as url:
            engine = Vllm(url, QUICK)
            with pytest.raises(KvverifyError, match="block size not told"):
                engine.expected(352)
            await engine.close()

    asyncio.run(run())


def test_a_server_that_dies_is_a_problem_not_a_zero() -> None:
    async def run() -> None:
        with serve(FakeVllm()) as url:
            engine = Vllm(url, QUICK)
            await engine.describe()
        with pytest.raises(ServerProblem, match="no answer"):
            await engine.evidence()
        assert await engine.detect() is False
        await engine.close()

    asyncio.run(run())


def test_the_users_model_comes_first() -> None:
    async def run() -> None:
        with serve(FakeVllm()) as url:
            engine = Vllm(url, EngineOptions(model_config="llama-3.1-8b", settle_interval_s=0.0))
            info = await engine.describe()
            await engine.close()
            assert info.kv_layers == (("bf16", 8, 128),) * 32

    asyncio.run(run())


WRAPPED = [
    ({"kv_connector_module_path": "kvverify.inserver.fault_connector"}, "FaultyOffloadingConnector", {}),
    ({}, "MultiConnector", {"connectors": [{"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {}}]}),
]


@pytest.mark.parametrize(("transfer", "connector", "extra"), WRAPPED)
def test_a_connector_is_found_inside_another(transfer: Any, connector: str, extra: Any) -> None:
    async def run() -> None:
        with serve(FakeVllm(connector, extra, transfer=transfer)) as url:
            async with opened(VllmNative, url) as engine:
                assert engine.info is not None
                assert engine.info.options["kv_connector"] == "OffloadingConnector"
                assert engine.info.options["kv_connector_wrapped_by"] == connector

    asyncio.run(run())


def test_an_unknown_connector_is_vllm_with_a_note() -> None:
    async def run() -> None:
        with serve(FakeVllm("NixlConnector")) as url:
            async with opened(Vllm, url) as engine:
                assert engine.info is not None
                assert any("NixlConnector" in note for note in engine.info.notes)

    asyncio.run(run())
