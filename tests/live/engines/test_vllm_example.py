"""vLLM with ExampleConnector, whose tier are files."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from kvverify.live.engine import FlushFailed
from kvverify.live.engines.lengths import common_lengths
from kvverify.live.engines.vllm_example import VllmExample
from kvverify.live.gate import evaluate
from tests.live.engines.fakes import FakeVllm, serve
from tests.live.engines.running import answered, opened

FOLDER = {"shared_storage_path": "/data/kv"}


def test_the_recorded_run() -> None:
    # 352 tokens, block 32: external hits 320, local 0
    async def run() -> None:
        server = FakeVllm("ExampleConnector", FOLDER)
        with serve(server) as url:
            async with opened(VllmExample, url) as engine:
                assert engine.info is not None
                assert engine.info.lower_tier == "disk"
                expected = engine.expected(352)
                assert (expected.hit_tokens, expected.hbm_hit_tokens, expected.computed_tokens) == (320, 320, 32)
                before = await engine.evidence()
                server.answer(352, external=320)
                after = await engine.evidence()
                told = answered(352, 320)
                gate = evaluate("disk", before, after, expected, told, engine.info, poisoned=True)
                assert gate.reasons == []
                gate = evaluate("dram", before, after, expected, told, engine.info, poisoned=True)
                assert not gate.satisfied

    asyncio.run(run())


def test_it_takes_one_token_more_off_than_hbm_does() -> None:
    async def run() -> None:
        with serve(FakeVllm("ExampleConnector", FOLDER)) as url:
            async with opened(VllmExample, url) as engine:
                assert (engine.expected(321).hit_tokens, engine.expected(321).hbm_hit_tokens) == (288, 320)
                lengths = list(itertools.islice(common_lengths(engine.expected, unit=32, at_least=320), 3))
                assert lengths == [320, 322, 323]

    asyncio.run(run())


def test_files_are_removed_by_hand() -> None:
    async def run() -> None:
        with serve(FakeVllm("ExampleConnector", FOLDER)) as url:
            async with opened(VllmExample, url) as engine:
                with pytest.raises(FlushFailed, match="/data/kv"):
                    await engine.flush("disk")

    asyncio.run(run())
