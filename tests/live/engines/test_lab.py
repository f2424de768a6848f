"""The lab's adapter against the real lab."""

from __future__ import annotations

import asyncio
from types import ModuleType

import pytest

from kvverify.live.answer import Answer
from kvverify.live.client import Client
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.lab import Lab
from kvverify.live.gate import evaluate
from tests.live.engines.running import opened


def test_a_prompt_comes_back_from_dram(torch: ModuleType) -> None:
    from kvverify.lab.serving import running

    async def run(url: str) -> None:
        async with opened(Lab, url) as engine:
            info = engine.info
            assert info is not None
            assert info.notes == ("a reference server to try kvverify on, no serving engine",)
            assert set(info.capacity_tokens) == {"hbm", "dram"}
            block = info.block_tokens or 0
            prompt = [(7 * i) % 200 + 3 for i in range(4 * block + 2)]
            expected = engine.expected(len(prompt))
            assert (expected.hit_tokens, expected.hbm_hit_tokens) == (4 * block, 4 * block)
            assert expected.loaded_bytes

            async with Client(url, info.model) as client:

                async def ask() -> list[Answer]:
                    return [await client.complete(prompt, max_tokens=4)]

                await ask()
                before = await engine.evidence()
                warm = await ask()
                after = await engine.evidence()
                assert evaluate("hbm", before, after, expected, warm, info, poisoned=False).reasons == []
                digests = await engine.digests(prompt)
                assert len(digests) == 4
                assert all(digests)
                await engine.settle()
                await engine.flush("hbm")
                assert (await engine.poison()).startswith("/lab/poison: ")
                assert await engine.digests(prompt) == [""] * 4
                before = await engine.evidence()
                restored = await ask()
                after = await engine.evidence()
                assert evaluate("dram", before, after, expected, restored, info, poisoned=True).reasons == []
                assert restored[0].logprobs == warm[0].logprobs
                assert await engine.digests(prompt) == digests
                await engine.flush("dram")
                before = await engine.evidence()
                cold = await ask()
                after = await engine.evidence()
                assert evaluate("none", before, after, expected, cold, info, poisoned=False).reasons == []
                with pytest.raises(FlushFailed):
                    await engine.flush("disk")

    with running() as url:
        asyncio.run(run(url))
