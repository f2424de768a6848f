"""The clean lab: hits are counted exactly, both tiers give the same bits, and the answer is read from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any

import pytest

from kvverify.layout.models import model_from_config
from kvverify.layout.place import place
from kvverify.layout.rules import recipe_for
from tests.lab.asking import BLOCK, MODEL, Asking, lab, secret_prompt


@pytest.fixture
def clean(torch: ModuleType) -> Iterator[Asking]:
    with lab() as asking:
        yield asking


def block_bytes(kv_cache_dtype: str) -> int:
    """Bytes of a block as the layout has it, computed from the published geometry alone."""
    config = {"num_hidden_layers": 6, "hidden_size": 208, "num_attention_heads": 8, "num_key_value_heads": 2}
    model = model_from_config({**config, "head_dim": 128}, "lab", "lab")
    return sum(layer.page_bytes for layer in place(recipe_for(model, kv_cache_dtype, block_size=BLOCK)).layers)


def test_each_tier_is_counted_to_the_token_and_the_byte(clean: Asking) -> None:
    prompt, hit = secret_prompt("QZKT-4821", 300), 9 * BLOCK
    start = clean.counters()
    assert clean.complete(prompt).cached == 0
    cold = clean.counted(start)
    assert cold["prompt_tokens_by_source/local_compute"] == cold["prefix_cache_queries"] == 300
    assert cold["kv_offload_store_bytes"] == 9 * block_bytes("turboquant_4bit_nc")
    assert not {"prefix_cache_hits", "external_prefix_cache_hits", "kv_offload_load_bytes"} & set(cold)

    start = clean.counters()
    assert clean.complete(prompt).cached == hit
    warm = clean.counted(start)
    assert warm["prefix_cache_hits"] == warm["prompt_tokens_cached_by_source/device"] == hit
    assert warm["external_prefix_cache_queries"] == warm["prompt_tokens_by_source/local_compute"] == 300 - hit
    assert not {"external_prefix_cache_hits", "kv_offload_load_bytes", "kv_offload_store_bytes"} & set(warm)

    clean.flush()
    start = clean.counters()
    assert clean.complete(prompt).cached == hit
    lower = clean.counted(start)
    assert lower["external_prefix_cache_hits"] == lower["prompt_tokens_cached_by_source/host"] == hit
    assert lower["prompt_tokens_by_source/external_kv_transfer"] == hit
    assert lower["kv_offload_load_bytes"] == 9 * block_bytes("turboquant_4bit_nc")
    assert lower["kv_offload_load_time"] > 0
    assert "prefix_cache_hits" not in lower


@pytest.mark.parametrize("kv_cache_dtype", ["turboquant_4bit_nc", "turboquant_k8v4", "auto", "fp8"])
def test_both_tiers_give_the_same_bits(torch: ModuleType, kv_cache_dtype: str) -> None:
    prompt = secret_prompt("QZKT-4821", 300)
    with lab(kv_cache_dtype=kv_cache_dtype, hbm_blocks=24) as asking:
        asking.complete(prompt)
        warm, digests = asking.complete(prompt, 48), asking.digests(prompt)
        assert None not in digests
        for round_ in range(3):
            asking.flush()
            assert asking.digests(prompt) == [None] * len(digests)
            assert asking.poison(seed=round_) == 24
            assert asking.complete(prompt, 48) == warm
            assert asking.digests(prompt) == digests
            assert asking.complete(prompt, 48) == warm
        assert warm.text.startswith(" QZKT-4821.")


def test_cold_differs_from_a_hit_where_layers_are_packed(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821")
    cold, warm = clean.complete(prompt), clean.complete(prompt)
    assert cold.tokens == warm.tokens
    assert cold.logprobs != warm.logprobs


def test_the_answer_comes_from_what_dram_holds(clean: Asking) -> None:
    """The negative control: with other bytes in the tier, the request that hits it must answer otherwise."""
    prompt = secret_prompt("QZKT-4821")
    clean.complete(prompt)
    warm = clean.complete(prompt)
    clean.flush()
    assert clean.poison(tier="dram") == 9
    assert clean.complete(prompt).text != warm.text


def test_a_hit_in_both_tiers_at_once(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821")
    clean.complete(prompt)
    warm = clean.complete(prompt)
    clean.flush()
    clean.complete(prompt[: 4 * BLOCK + 1])
    start = clean.counters()
    assert clean.complete(prompt) == warm
    both = clean.counted(start)
    assert both["prefix_cache_hits"] == 4 * BLOCK
    assert both["external_prefix_cache_hits"] == 5 * BLOCK
    assert both["kv_offload_load_bytes"] == 5 * block_bytes("turboquant_4bit_nc")


def test_a_starved_pool_evicts_and_reloads(torch: ModuleType) -> None:
    prompts = {f"CODE-{i}X": secret_prompt(f"CODE-{i}X", seed=i) for i in range(4)}
    with lab(hbm_blocks=11) as asking:
        for prompt in prompts.values():
            asking.complete(prompt)
        start = asking.counters()
        for secret, prompt in prompts.items():
            assert asking.complete(prompt).text.startswith(f" {secret}")
        seen = asking.counted(start)
    assert seen["external_prefix_cache_hits"] == 4 * 9 * BLOCK
    assert "prefix_cache_hits" not in seen


def test_dram_evicts_what_was_used_longest_ago(torch: ModuleType) -> None:
    first, second, third = (secret_prompt(f"CODE-{i}X", seed=i) for i in range(3))
    with lab(dram_gib=20 * block_bytes("turboquant_4bit_nc") / 2**30) as asking:
        for prompt in (first, second):
            asking.complete(prompt)
        asking.flush()
        assert asking.complete(first).cached == 9 * BLOCK  # used again
        asking.complete(third)  # 18 of 20 slots are taken: 7 of the second prompt's are wanted
        asking.flush()
        assert asking.complete(first).cached == 9 * BLOCK
        asking.flush()
        assert asking.complete(second).cached == 0


def test_a_reset_of_all_tiers_leaves_nothing_to_hit(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821")
    clean.complete(prompt)
    clean.flush(external=True)
    assert clean.complete(prompt).cached == 0


def test_salt_and_adapter_are_part_of_the_key(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821")
    base = clean.complete(prompt)
    changes: list[dict[str, Any]] = [{"cache_salt": "a"}, {"cache_salt": "b"}, {"model": f"{MODEL}-adapter"}]
    for change in changes:
        other = clean.complete(prompt, **change)
        assert other.cached == 0, change
        assert clean.complete(prompt, **change).cached == 9 * BLOCK
        assert (other.logprobs == base.logprobs) == ("model" not in change)


def test_a_block_aligned_prompt_computes_its_last_block(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821", 9 * BLOCK)
    clean.complete(prompt)
    assert clean.complete(prompt).cached == 8 * BLOCK


def test_one_early_token_makes_another_prompt(clean: Asking) -> None:
    prompt = secret_prompt("QZKT-4821")
    clean.complete(prompt)
    assert clean.complete("X" + prompt[1:]).cached == 0


def test_requests_at_once_do_not_mix(torch: ModuleType) -> None:
    secrets = [f"CODE-{i:02}Z" for i in range(8)]
    prompts = [secret_prompt(secret, seed=i) for i, secret in enumerate(secrets)]
    with lab(hbm_blocks=20) as asking, ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            answers = list(pool.map(asking.complete, prompts))
            assert [a.text for a in answers] == [f" {secret}." for secret in secrets]
        assert asking.counters()["num_requests_running"] == asking.counters()["num_requests_waiting"] == 0
