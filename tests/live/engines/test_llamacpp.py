"""llama.cpp's slots: 352 tokens, 351 of them from the file, 8.37 MB in f16, as one CPU run recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kvverify.live.engine import FlushFailed
from kvverify.live.engines.llamacpp import LlamaCpp
from kvverify.live.gate import evaluate
from tests.live.engines.fakes import Page, Routes, serve
from tests.live.engines.running import answered, opened

FILE_BYTES = 8_370_000


class FakeLlama(Routes):
    """One slot. ``answer`` serves a prompt from what the slot holds.

    ``counts``: as build 0c1e570, which counts cached tokens, and whose slot forgets them when a request ends.
    """

    def __init__(self, slots: int = 1, *, counts: bool = False) -> None:
        super().__init__()
        self.page, self.counts = Page(), counts
        self.page.add("llamacpp:prompt_tokens")
        if counts:
            self.page.add("llamacpp:prompt_tokens_cached")
        self.page.set("llamacpp:requests_processing", 0)
        self.slot: dict[str, Any] = {"id": 0, "n_ctx": 4096, "is_processing": False}
        self.held, self.files, self.task = 0, {"s": 0}, 0
        self.read = FILE_BYTES
        settings = {"total_slots": slots, "build_info": "b7000", "default_generation_settings": {"n_ctx": 4096}}
        self.handlers = {
            ("GET", "/v1/models"): lambda query, body: {"data": [{"id": "m", "owned_by": "llamacpp"}]},
            ("GET", "/props"): lambda query, body: settings,
            ("GET", "/slots"): lambda query, body: [self.slot],
            ("GET", "/metrics"): lambda query, body: self.page.text(),
            ("POST", "/slots/0"): self._act,
        }

    def answer(self, prompt: int) -> int:
        cached = min(self.held, prompt - 1)
        self.task += 2
        tokens = {"n_prompt_tokens": prompt, "n_prompt_tokens_cache": cached}
        if self.counts:
            self.page.add("llamacpp:prompt_tokens_cached", cached)
            tokens = {"n_prompt_tokens": prompt + 16, "n_prompt_tokens_processed": 0, "n_prompt_tokens_cache": 0}
        self.slot |= {"id_task": self.task, **tokens}
        self.page.add("llamacpp:prompt_tokens", prompt - cached)
        self.held = prompt + 16
        return cached

    def _act(self, query: dict[str, str], body: Any) -> Any:
        if query["action"] == "erase":
            held, self.held = self.held, 0
            return {"id_slot": 0, "n_erased": held}
        name = body["filename"]
        if query["action"] == "save":
            self.files[name] = self.held
            return {"id_slot": 0, "filename": name, "n_saved": self.held, "n_written": FILE_BYTES}
        self.held = self.files[name]
        return {"id_slot": 0, "filename": name, "n_restored": self.held, "n_read": self.read}


@pytest.mark.parametrize("counts", [False, True])
def test_save_erase_restore(counts: bool) -> None:
    async def run() -> None:
        server = FakeLlama(counts=counts)
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                info = engine.info
                assert info is not None
                assert (info.lower_tier, info.notes, info.build) == ("disk", (), "b7000")
                server.answer(352)
                warm = await engine.evidence()
                assert server.answer(352) == 351
                again = await engine.evidence()
                assert again.since(warm).hbm_hit_tokens == 351
                await engine.store("k", 352)
                expected = engine.expected(352)
                assert (expected.hit_tokens, expected.hbm_hit_tokens, expected.loaded_bytes) == (351, 351, FILE_BYTES)
                await engine.flush("hbm")
                before = await engine.evidence()
                await engine.restore("k")
                cached = server.answer(352)
                after = await engine.evidence()
                told = answered(352, cached)
                gate = evaluate("disk", before, after, expected, told, info, poisoned=True)
                assert gate.reasons == []

    asyncio.run(run())


@pytest.mark.parametrize("counts", [False, True])
def test_without_a_restore_it_is_a_recomputation(counts: bool) -> None:
    async def run() -> None:
        server = FakeLlama(counts=counts)
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                assert engine.info is not None
                server.answer(352)
                await engine.store("k", 352)
                await engine.flush("hbm")
                before = await engine.evidence()
                cached = server.answer(352)
                after = await engine.evidence()
                told = answered(352, cached)
                gate = evaluate("disk", before, after, engine.expected(352), told, engine.info, poisoned=True)
                assert any("disk hit 0 tokens, expected 351" in reason for reason in gate.reasons)

    asyncio.run(run())


def test_a_file_that_is_cut_is_told_at_once() -> None:
    async def run() -> None:
        server = FakeLlama()
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                server.answer(352)
                await engine.store("k", 352)
                server.read = FILE_BYTES - 1
                with pytest.raises(FlushFailed, match="were written"):
                    await engine.restore("k")

    asyncio.run(run())


def test_a_slot_that_does_not_hold_the_prompt_is_not_stored() -> None:
    async def run() -> None:
        server = FakeLlama()
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                server.answer(100)
                with pytest.raises(FlushFailed, match="expected 352 tokens or more"):
                    await engine.store("k", 352)

    asyncio.run(run())


def test_without_a_save_path_it_is_said_how_to_start() -> None:
    async def run() -> None:
        server = FakeLlama(slots=4)
        server.handlers[("POST", "/slots/0")] = lambda query, body: (501, {"error": {"message": "not supported"}})
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                assert engine.info is not None
                assert any("4 slots" in note for note in engine.info.notes)
                with pytest.raises(FlushFailed, match="--slot-save-path"):
                    await engine.flush("hbm")
                with pytest.raises(FlushFailed, match="--slot-save-path"):
                    await engine.flush("disk")

    asyncio.run(run())


def test_an_older_server_does_not_say_what_its_slot_hit() -> None:
    async def run() -> None:
        server = FakeLlama()
        server.slot = {"id": 0, "id_task": 3}
        with serve(server) as url:
            async with opened(LlamaCpp, url) as engine:
                evidence = await engine.evidence()
                assert (evidence.hbm_hit_tokens, evidence.disk_hit_tokens, evidence.queries) == (None, None, None)

    asyncio.run(run())
