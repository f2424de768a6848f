"""LMCache's server as the tier below a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvverify.events import GateEvaluated, RequestAnswered
from tests.live.real.servers import lmcache, vllm
from tests.live.real.verifying import LONG, assert_bitwise, kvverify


@pytest.fixture(scope="module")
def lmcache_stack(runs: Path, model: Path) -> Iterator[tuple[str, str]]:
    """vLLM with LMCache's server, as a user starts them."""
    with lmcache(runs / "lmcache.log") as (port, http):
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
        connector = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}
        with vllm(model, runs / "vllm-lmcache.log", connector=connector) as url:
            yield url, http


def test_lmcaches_dram_tier_is_bitwise_equal(lmcache_stack: tuple[str, str], runs: Path) -> None:
    url, http = lmcache_stack
    run = kvverify(runs / "lmcache", "tier-diff", url, "--lmcache-url", http, *LONG)
    assert_bitwise(run, "dram")
    for gate in (g for g in run.all(GateEvaluated) if g.arm.startswith("dram")):
        assert gate.counted["witness"]["lmcache_l1_hit_tokens"] == gate.counted["dram_hit_tokens"]
        assert gate.counted["witness"]["lmcache_l2_hit_tokens"] == 0
    long = [a for a in run.all(RequestAnswered) if a.arm == "dram" and a.request == 0]
    assert [len(a.tokens) for a in long] == [256]
