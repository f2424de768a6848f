"""LMCache's L2, files on disk, under a real vLLM: as it is, and through a serde that loses bits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvverify.events import GateEvaluated, ReplayCompared, TierFlushed, Verdict
from kvverify.events_accuracy import SampleAnswered
from tests.live.real.servers import lmcache, vllm
from tests.live.real.verifying import BRIEF, Run, kvverify, kvverify_words


@contextmanager
def stack(runs: Path, model: Path, name: str, serde: dict[str, Any] | None) -> Iterator[tuple[str, str]]:
    """vLLM over an LMCache server that keeps files in ``runs``; yield both URLs."""
    folder = runs / f"l2-{name}"
    folder.mkdir()
    l2 = {"type": "fs", "base_path": str(folder)} | ({"serde": serde} if serde else {})
    with lmcache(runs / f"lmcache-{name}.log", l2=l2) as (port, http):
        extra = {"lmcache.mp.host": "tcp://127.0.0.1", "lmcache.mp.port": port}
        connector = {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}
        with vllm(model, runs / f"vllm-lmcache-{name}.log", connector=connector) as url:
            yield url, http


def disk_gates(run: Run) -> list[GateEvaluated]:
    """Return the gates of arms that were served from disk."""
    return [g for g in run.all(GateEvaluated) if g.arm.startswith("disk")]


def test_files_are_bitwise_equal_and_proved_to_be_read(runs: Path, model: Path) -> None:
    with stack(runs, model, "plain", None) as (url, http):
        run = kvverify(runs / "lmcache-disk", "tier-diff", url, "--lmcache-url", http, "--tier", "disk", *BRIEF)
    assert run.verdict is Verdict.PASS, run.printed
    assert all(f.proof == "a prompt that hbm and dram held before hit 0 tokens there" for f in run.all(TierFlushed))
    gates = disk_gates(run)
    assert len(gates) == 2
    assert all(g.satisfied and g.counted["disk_hit_tokens"] == g.expected["lower_hits"] > 0 for g in gates)
    assert all(g.counted["witness"]["lmcache_l1_hit_tokens"] == 0 for g in gates)


def test_a_lossy_serde_is_found_and_its_cost_measured(runs: Path, model: Path) -> None:
    with stack(runs, model, "fp8", {"type": "fp8"}) as (url, http):
        where = ("--lmcache-url", http)
        run = kvverify(runs / "lmcache-disk-fp8", "tier-diff", url, *where, "--tier", "disk", *BRIEF)
        assert run.verdict is Verdict.FAIL, run.printed
        assert all(g.satisfied for g in disk_gates(run))
        assert any(c.largest_difference > 0.01 or c.divergence >= 0 for c in run.all(ReplayCompared) if c.judged)
        words = (
            "accuracy",
            "run",
            "--url",
            url,
            "--tokenizer",
            str(model),
            "--suite",
            "smoke",
            "--samples",
            "2",
            *where,
        )
        for tier in ("hbm", "disk"):
            arm = kvverify_words(
                runs / f"accuracy-fp8-{tier}",
                *words,
                "--label",
                tier,
                "--tier",
                tier,
                "--serial",
                "1",
                "--concurrency",
                "2",
            )
            assert arm.verdict is Verdict.PASS, arm.printed
            assert [bool(e.error) for e in arm.all(SampleAnswered)] == [False, False]
            assert all(g.satisfied for g in arm.all(GateEvaluated))
    compared = kvverify_words(
        runs / "accuracy-fp8-compared",
        "accuracy",
        "compare",
        str(runs / "accuracy-fp8-hbm"),
        "--tier",
        str(runs / "accuracy-fp8-disk"),
    )
    assert compared.verdict is Verdict.INCONCLUSIVE, compared.printed  # two samples show nothing, and it says so
