"""Real servers without a working tier: nothing may pass."""

from __future__ import annotations

from pathlib import Path

from kvverify.events import ConfigurationChecked, GateEvaluated, Verdict
from tests.live.real.servers import CHUNK, vllm
from tests.live.real.verifying import BRIEF, kvverify


def test_lmcache_inside_vllm_has_no_tier_here_and_does_not_pass(runs: Path, model: Path) -> None:
    connector = {"kv_connector": "LMCacheConnectorV1", "kv_connector_extra_config": {"lmcache.chunk_size": CHUNK}}
    log = runs / "vllm-lmcache-in-process.log"
    with vllm(model, log, connector=connector, LMCACHE_CHUNK_SIZE=str(CHUNK), LMCACHE_MAX_LOCAL_CPU_SIZE="1") as url:
        run = kvverify(runs / "lmcache-in-process", "tier-diff", url, *BRIEF)
    assert "degraded mode" in log.read_text(errors="replace")
    assert run.verdict is Verdict.INCONCLUSIVE, run.printed
    assert [g.satisfied for g in run.all(GateEvaluated) if g.arm == "dram"] == [False]


def test_without_a_connector_nothing_passes(runs: Path, model: Path) -> None:
    with vllm(model, runs / "vllm.log") as url:
        run = kvverify(runs / "no-connector", "tier-diff", url, *BRIEF)
    assert run.verdict is Verdict.INCONCLUSIVE, run.printed
    assert [g.satisfied for g in run.all(GateEvaluated) if g.arm == "dram"] == [False]


def test_the_doctor_knows_that_turboquant_is_not_implemented_on_the_cpu(runs: Path, model: Path) -> None:
    with vllm(model, runs / "vllm-turboquant.log", "--kv-cache-dtype", "turboquant_4bit_nc") as url:
        run = kvverify(runs / "doctor", "doctor", url)
    assert run.verdict is Verdict.FAIL, run.printed
    checks = {c.check: c for c in run.all(ConfigurationChecked)}
    assert checks["KV dtype"].outcome == "fault"
    assert "turboquant_4bit_nc" in checks["KV dtype"].found
