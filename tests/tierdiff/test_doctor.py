"""Each configuration fault is found, a good configuration is not accused, and what nobody tells is not called good."""

from __future__ import annotations

from typing import Any

import pytest

from kvverify.events import RunFinished, RunStarted, Verdict
from kvverify.live.engine import EngineInfo
from kvverify.tierdiff.doctor import CHECKS, Seen, diagnose
from kvverify.verdicts import verdict_of

GOOD: dict[str, Any] = {
    "enable_prefix_caching": True,
    "device": "cuda",
    "dtype": "torch.bfloat16",
    "kv_connector": "OffloadingConnector",
    "kv_load_failure_policy": "fail",
    "prefix_caching_hash_algo": "sha256",
    "log_stats": True,
}
SEEN = Seen(second_hit=96, lower_hit=96, expected=96, repeats=True, first_hit=0)


def info(**changes: Any) -> EngineInfo:
    """A vLLM server in order, with ``changes``; what is no field of EngineInfo is an option, None takes it away."""
    fields: dict[str, Any] = {
        "engine": "vllm-native",
        "model": "m",
        "build": "vllm 0.32.0",
        "kv_cache_dtype": "auto",
        "block_tokens": 32,
        "hit_tokens": 32,
        "capacity_tokens": {"hbm": 100_000, "dram": 400_000},
        "dev_endpoints": ("reset_prefix_cache",),
        "max_context": 4096,
    }
    options = dict(GOOD)
    for name, value in changes.items():
        target = fields if name in EngineInfo.__dataclass_fields__ else options
        if value is None:
            target.pop(name, None)
        else:
            target[name] = value
    return EngineInfo(**fields, options=options)


def outcomes(server: EngineInfo, seen: Seen = SEEN) -> dict[str, str]:
    """What is not ok, by check."""
    return {e.check: e.outcome for e in diagnose(server, seen) if e.outcome != "ok"}


def test_a_server_in_order_is_not_accused() -> None:
    """Also with the packed format, on a GPU, as far as it works there."""
    assert outcomes(info()) == {}
    assert outcomes(info(kv_cache_dtype="turboquant_4bit_nc", max_num_seqs=1)) == {}
    assert outcomes(info(engine="lab", build="kvverify 0.1.0", kv_cache_dtype="turboquant_4bit_nc")) == {}
    assert len(diagnose(info(), SEEN)) == len(CHECKS)


@pytest.mark.parametrize(
    ("check", "outcome", "changes", "seen"),
    [
        ("hash seed", "fault", {"engine": "vllm-lmcache-in-process", "ranks": 2}, {"lower_hit": 0}),
        ("hash seed", "unknown", {"engine": "vllm-lmcache-in-process", "ranks": 2}, {"lower_hit": None}),
        ("hash seed", "fault", {"lmcache_hash_algorithm": "builtin", "lmcache_l2_adapters": ["fs"]}, {}),
        ("shared cache server", "fault", {"lmcache_models": [["m", 1], ["m", 2]]}, {}),
        ("shared cache server", "fault", {"lmcache_models": [["m", 1]]}, {"first_hit": 64}),
        ("shared cache server", "unknown", {"engine": "vllm-lmcache"}, {}),
        ("KV dtype", "fault", {"kv_cache_dtype": "turboquant_4bit_nc", "device": "cpu", "max_num_seqs": 1}, {}),
        ("KV dtype", "fault", {"kv_cache_dtype": "bfloat16", "device": "cpu", "dtype": "torch.float32"}, {}),
        ("KV dtype", "unknown", {"kv_cache_dtype": "turboquant_4bit_nc", "device": None, "max_num_seqs": 1}, {}),
        ("KV dtype", "unknown", {}, {"repeats": False}),
        ("shared steps", "fault", {"kv_cache_dtype": "turboquant_4bit_nc", "max_num_seqs": 256}, {}),
        ("shared steps", "fault", {"kv_cache_dtype": "turboquant_k8v4", "build": "vllm 0.26.0"}, {}),
        ("shared steps", "unknown", {"kv_cache_dtype": "turboquant_4bit_nc", "build": "vllm 0.33.0"}, {}),
        ("shared steps", "unknown", {"kv_cache_dtype": "turboquant_4bit_nc", "build": ""}, {}),
        ("prefix caching", "fault", {"enable_prefix_caching": False}, {}),
        ("prefix caching", "fault", {"enable_prefix_caching": "False"}, {}),
        ("prefix caching", "fault", {}, {"second_hit": 0}),
        ("prefix caching", "fault", {}, {"second_hit": 64}),
        ("prefix caching", "unknown", {}, {"second_hit": None}),
        (
            "batch-invariant mode",
            "fault",
            {"VLLM_BATCH_INVARIANT": "1", "kv_cache_dtype": "turboquant_4bit_nc", "max_num_seqs": 1},
            {},
        ),
        ("batch-invariant mode", "fault", {"VLLM_BATCH_INVARIANT": True, "VLLM_ATTENTION_BACKEND": "FLASHINFER"}, {}),
        ("load failure policy", "fault", {"kv_load_failure_policy": "recompute"}, {}),
        ("lower tier", "fault", {"kv_connector": "LMCacheConnectorV1", "device": "cpu"}, {}),
        ("lower tier", "fault", {"kv_connector": "LMCacheConnectorV1", "build": "vllm 0.26.0"}, {}),
        ("lower tier", "fault", {"kv_connector": None}, {}),
        ("lower tier", "fault", {}, {"lower_hit": 0}),
        ("lower tier", "fault", {}, {"lower_hit": 95}),
        ("lower tier", "unknown", {}, {"lower_hit": None}),
        ("block and chunk sizes", "fault", {"hit_tokens": 48}, {}),
        ("block and chunk sizes", "fault", {"hit_tokens": 2048}, {}),
        ("block and chunk sizes", "fault", {"capacity_tokens": {"hbm": 96}}, {}),
        ("block and chunk sizes", "unknown", {"block_tokens": None}, {}),
        ("dev endpoints", "fault", {"dev_endpoints": ()}, {}),
        ("log statistics", "fault", {"log_stats": False}, {}),
    ],
)
def test_a_fault_is_found_by_its_check_alone(
    check: str, outcome: str, changes: dict[str, Any], seen: dict[str, Any]
) -> None:
    """One setting changed, one check speaks, with what breaks and what to set."""
    values = {name: getattr(SEEN, name) for name in Seen.__dataclass_fields__} | seen
    server = info(**changes)
    others = {"lower tier"} if "lower_hit" in seen else set()  # without hits the tier is not in order either
    found = outcomes(server, Seen(**values))
    assert found[check] == outcome
    assert set(found) - others - {check} == set()
    told = next(e for e in diagnose(server, Seen(**values)) if e.check == check)
    assert told.found
    assert told.breaks
    assert told.fix


def test_a_stable_hash_or_hits_clear_the_seed() -> None:
    """What no endpoint shows is proved by behaviour."""
    ranks = {"engine": "vllm-lmcache-in-process", "ranks": 2}
    assert "hash seed" not in outcomes(info(**ranks))
    extra = {"kv_connector_extra_config": {"lmcache.pre_caching_hash_algorithm": "sha256_cbor"}}
    assert "hash seed" not in outcomes(info(**ranks, **extra), Seen(second_hit=96, lower_hit=0, expected=96))


def test_verdicts() -> None:
    """A fault is a FAIL, an unknown an INCONCLUSIVE; neither of them a PASS; the good server is one."""

    def verdict(server: EngineInfo, seen: Seen) -> Verdict:
        start = RunStarted(command="doctor", version="0", seed=0, options={})
        return verdict_of([start, *diagnose(server, seen), RunFinished(seconds=1.0)])

    assert verdict(info(), SEEN) is Verdict.PASS
    assert verdict(info(dev_endpoints=()), SEEN) is Verdict.FAIL
    assert verdict(info(), Seen()) is Verdict.INCONCLUSIVE


def test_a_check_that_is_ok_asks_for_nothing() -> None:
    """No fix without a fault."""
    assert not any(e.fix or e.breaks for e in diagnose(info(), SEEN))
