"""A small accuracy run against a real vLLM on the CPU: plain, from HBM hits, and with the cache overwritten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvverify.events import GateEvaluated, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated, SampleAnswered
from tests.live.real.servers import vllm
from tests.live.real.verifying import Run, kvverify_words

SAMPLES = ("--suite", "smoke", "--samples", "3", "--concurrency", "2")


@pytest.fixture(scope="module")
def plain_stack(runs: Path, model: Path) -> Iterator[str]:
    """vLLM without a lower tier."""
    with vllm(model, runs / "vllm-accuracy.log") as url:
        yield url


def arm(runs: Path, name: str, url: str, model: Path, *options: str) -> Run:
    """Measure one arm."""
    words = ["accuracy", "run", "--url", url, "--label", name, "--tokenizer", str(model), *SAMPLES, *options]
    return kvverify_words(runs / f"accuracy-{name}", *words)


def score(run: Run) -> float:
    """Return the mean score."""
    found = run.all(SampleAnswered)
    assert len(found) == 3
    assert not any(e.error for e in found)
    return sum(e.score for e in found) / len(found)


def test_an_arm_is_complete_and_says_what_it_read(plain_stack: str, runs: Path, model: Path) -> None:
    run = arm(runs, "plain", plain_stack, model)
    assert run.verdict is Verdict.PASS, run.printed
    assert score(run) > 0.5
    assert all(e.prompt_tokens == e.sent_tokens and 0 <= e.cached_tokens < 32 for e in run.all(SampleAnswered))
    stated = run.all(CacheReadStated)[-1]
    assert stated.decode_steps > 0
    assert stated.continued_tokens >= 0  # /server_info tells the chunk
    identity = run.all(ArmStarted)[0].identity
    assert identity["engine"] == "vllm"
    assert "max_num_batched_tokens" in identity


def test_hbm_hits_answer_as_well_and_an_overwritten_cache_does_not(plain_stack: str, runs: Path, model: Path) -> None:
    hits = arm(runs, "hbm", plain_stack, model, "--tier", "hbm", "--serial", "1")
    assert hits.verdict is Verdict.PASS, hits.printed
    gates = hits.all(GateEvaluated)  # HBM is small here, so that a wave is one sample
    assert all(g.satisfied for g in gates)
    assert [g.request for g in gates] == [0, -1, -1]
    scrambled = arm(runs, "scrambled", plain_stack, model, "--control", "scramble")
    assert scrambled.verdict is Verdict.PASS, scrambled.printed
    assert "worker extension" in scrambled.all(GateEvaluated)[0].witnesses[-1]
    assert score(scrambled) < score(hits)
