"""Every planted fault changes what it says, and nothing that would give it away at once; the table is complete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import IncompleteRead
from types import ModuleType
from typing import Any

import pytest

from kvverify.errors import UsageError
from kvverify.lab.plants import LATE_SECONDS, PLANTS, plant_named
from tests.lab.asking import BLOCK, MODEL, Answered, Asking, lab, secret_prompt

PROMPT, HIT = secret_prompt("QZKT-4821"), 9 * BLOCK


@dataclass(frozen=True)
class Passes:
    """One prompt served by HBM, then by DRAM over poisoned blocks, and what each pass counted."""

    hbm: Answered
    dram: Answered
    hbm_counted: dict[str, float]
    dram_counted: dict[str, float]


def passes(asking: Asking) -> Passes:
    asking.complete(PROMPT)
    start = asking.counters()
    hbm = asking.complete(PROMPT)
    hbm_counted = asking.counted(start)
    asking.flush()
    asking.poison()
    start = asking.counters()
    dram = asking.complete(PROMPT)
    return Passes(hbm, dram, hbm_counted, asking.counted(start))


@contextmanager
def planted(name: str, **options: Any) -> Iterator[Asking]:
    with lab(plant=name, **options) as asking:
        yield asking


DAMAGE = [
    plant.id
    for plant in PLANTS
    if plant.verdict == "FAIL" and not plant.id.endswith("logprob") and plant.id not in ("F17", "lost-prefix")
]


def test_the_damaging_faults_are_these() -> None:
    assert sorted(DAMAGE) == [
        "F05",
        "F10",
        "F16",
        "F21",
        "stale-block",
        "swapped-blocks",
        "swapped-layers",
        "wrong-block",
    ]


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_shows_in_the_dram_answer_and_nowhere_else(torch: ModuleType, name: str) -> None:
    with planted(name) as asking:
        seen = passes(asking)
    assert seen.hbm.text == " QZKT-4821"
    assert seen.hbm_counted["prefix_cache_hits"] == seen.dram.cached == HIT
    assert seen.dram_counted["external_prefix_cache_hits"] == HIT
    assert seen.dram_counted["kv_offload_load_bytes"] == 9 * 148224
    assert seen.dram.logprobs != seen.hbm.logprobs


@pytest.mark.parametrize("name", ["F21", "wrong-block", "stale-block", "swapped-layers"])
def test_whole_blocks_gone_wrong_lose_the_secret(torch: ModuleType, name: str) -> None:
    with planted(name) as asking:
        assert "QZKT-4821" not in passes(asking).dram.text


def test_a_stale_block_is_what_stood_there_before(torch: ModuleType) -> None:
    """The foreign secret: DRAM holds what the HBM block held when the copy was taken too early."""
    with planted("stale-block", hbm_blocks=11) as asking:
        asking.complete(secret_prompt("FOREIGN-1", seed=1))
        asking.complete(PROMPT)
        asking.flush()
        assert "QZKT-4821" not in asking.complete(PROMPT).text


def test_a_wrong_block_is_a_foreign_secret(torch: ModuleType) -> None:
    with planted("wrong-block") as asking:
        asking.complete(secret_prompt("FOREIGN-1", seed=1))
        assert passes(asking).dram.text == " FOREIGN-1"


def test_blocks_in_another_order_hardly_show_in_answers(torch: ModuleType) -> None:
    with planted("swapped-blocks") as asking:
        asking.complete(PROMPT)
        warm, digests = asking.complete(PROMPT), asking.digests(PROMPT)
        asking.flush()
        swapped = asking.complete(PROMPT)
        assert swapped.tokens == warm.tokens
        assert swapped.logprobs == pytest.approx(warm.logprobs, abs=1e-4)
        assert asking.digests(PROMPT) == digests[::-1]


def test_salts_share_a_key(torch: ModuleType) -> None:
    with planted("F17") as asking:
        asking.complete(PROMPT, cache_salt="a")
        assert asking.complete(PROMPT, cache_salt="b").cached == HIT
        assert asking.complete(PROMPT, model=f"{MODEL}-adapter").cached == HIT


@pytest.mark.parametrize(("tokens", "lost"), [(299, False), (300, True)])
def test_a_hit_beside_a_new_prompt_loses_its_prefix(torch: ModuleType, tokens: int, lost: bool) -> None:
    """vllm-project/vllm#46460: only if the new prompt, here one that waits for its turn, is no shorter."""
    with planted("lost-prefix") as asking, ThreadPoolExecutor(2) as threads:
        asking.complete(PROMPT)
        long = threads.submit(asking.complete, PROMPT, 200)  # the others queue up behind it
        while not asking.counters()["num_requests_running"]:
            pass
        hit = threads.submit(asking.complete, PROMPT)
        while not asking.counters()["num_requests_waiting"]:
            pass
        asking.complete(secret_prompt("FOREIGN-1", tokens, seed=1), 1)
        assert long.result().text.startswith(" QZKT-4821")
        assert hit.result().cached == HIT
        assert hit.result().text.startswith(" QZKT-4821") is not lost


def test_an_unstable_hash_never_hits(torch: ModuleType) -> None:
    with planted("F19") as asking:
        seen = passes(asking)
    assert seen.hbm.cached == seen.dram.cached == 0


def test_a_reset_of_all_tiers_leaves_dram(torch: ModuleType) -> None:
    with planted("F20") as asking:
        asking.complete(PROMPT)
        asking.flush(external=True)
        assert asking.complete(PROMPT).cached == HIT


def test_what_is_not_indexed_is_not_found(torch: ModuleType) -> None:
    with planted("F21b") as asking:
        seen = passes(asking)
    assert (seen.hbm.cached, seen.dram.cached) == (HIT, 0)


@pytest.mark.parametrize(("name", "loaded"), [("hits-recomputed", 0), ("counters-lie", 9 * 148224)])
def test_hits_that_are_computed_anew_look_like_hits(torch: ModuleType, name: str, loaded: int) -> None:
    with planted(name) as asking:
        seen = passes(asking)
        assert seen.dram == seen.hbm
        assert seen.dram_counted["external_prefix_cache_hits"] == HIT
        assert seen.dram_counted.get("kv_offload_load_bytes", 0) == loaded
        asking.flush()
        assert asking.poison(tier="dram") == 9
        assert asking.complete(PROMPT) == seen.hbm  # the evidence that would tell: altered bytes do not matter


def test_a_flush_that_lies_leaves_hbm_hits(torch: ModuleType) -> None:
    with planted("flush-lies") as asking:
        seen = passes(asking)
    assert seen.dram_counted["prefix_cache_hits"] == HIT
    assert "external_prefix_cache_hits" not in seen.dram_counted


def test_counters_stick_or_go_backwards(torch: ModuleType) -> None:
    with planted("counters-stuck") as asking:
        assert not [name for name in passes(asking).hbm_counted if "usage" not in name]
    with planted("counters-back") as asking:
        assert passes(asking).hbm_counted["prefix_cache_hits"] == -HIT


def test_an_answer_is_late(torch: ModuleType) -> None:
    with planted("late") as asking:
        began = time.monotonic()
        assert asking.complete(PROMPT, 1).prompt == 300
        assert time.monotonic() - began > LATE_SECONDS


def test_an_answer_is_cut(torch: ModuleType) -> None:
    with planted("cut") as asking:
        for stream in (False, True):
            with pytest.raises(IncompleteRead):
                asking.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "stream": stream})


@pytest.mark.parametrize("name", ["null-logprob", "nan-logprob"])
def test_a_logprob_is_no_number(torch: ModuleType, name: str) -> None:
    with planted(name) as asking:
        second = asking.complete(PROMPT).logprobs[1]
    assert second is None if name == "null-logprob" else second != second  # noqa: PLR0124 - NaN


def test_the_table_says_for_each_fault_who_sees_it_or_what_is_missing() -> None:
    names = [name for plant in PLANTS for name in {plant.id.lower(), plant.name}]
    assert len(names) == len(set(names))
    for plant in PLANTS:
        assert bool(plant.seen_by) != bool(plant.missing), plant
        assert plant.verdict in (("FAIL", "INCONCLUSIVE") if plant.seen_by else ("",)), plant
        assert plant_named(plant.name.upper()) is plant


def test_an_unknown_fault_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="unknown lab fault 'F1'; did you mean"):
        plant_named("F1")


def test_faults_change_while_it_serves(torch: ModuleType) -> None:
    with lab() as asking:
        asking.complete(PROMPT)
        for name in ("F21", ""):
            assert asking.post("/lab/plant", {"plant": name}) == {"plant": name or "none"}
            seen = passes(asking)  # counters and caches began anew
            assert seen.hbm.text == " QZKT-4821"
            assert (seen.dram == seen.hbm) == (not name)
        assert asking.refused("/lab/plant", {"plant": "F99"})[0] == 400
        assert asking.refused("/lab/plant", {})[0] == 400
        assert asking.complete(PROMPT).cached == HIT  # a refusal changes nothing
