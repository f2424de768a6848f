"""Arms asked of the lab: from HBM and from DRAM with a gate, with the packed cache overwritten, and after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")
pytest.importorskip("httpx2")
pytest.importorskip("prometheus_client")

from kvverify.cli.main import run
from kvverify.events import GateEvaluated, ProblemMet, RequestAnswered, TierFlushed, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated
from kvverify.lab.serving import Options, running
from kvverify.report.log import read_events
from kvverify.verdicts import reasons, verdict_of
from tests.accuracy.asked import accuracy_run, answers, suite

BLOCKS = 96
FEW = ("--samples", "5", "--concurrency", "2")


def score(events: list[object]) -> float:
    found = answers(events)  # type: ignore[arg-type]
    assert found
    return sum(e.score for e in found) / len(found)


def test_the_smoke_suite_is_answered_from_the_packed_cache(tmp_path: Path) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(tmp_path / "run", [url], "smoke", *FEW)
    assert (code, reasons(events)) == (0, [])
    assert score(list(events)) == 1.0
    stated = next(e for e in events if isinstance(e, CacheReadStated))
    assert stated.decode_steps == 5 * 11
    assert (stated.hit_tokens, stated.continued_tokens) == (0, 0)
    assert stated.raw_tokens == sum(e.sent_tokens for e in answers(events))
    assert "chunk of 2048 tokens" in stated.evidence


@pytest.mark.parametrize(("tier", "cached"), [("hbm", "hbm_hit_tokens"), ("dram", "dram_hit_tokens")])
def test_an_arm_from_a_tier_is_gated_one_by_one_and_on_totals(tmp_path: Path, tier: str, cached: str) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(
            tmp_path / "run", [url], "smoke", *FEW, "--tier", tier, "--serial", "2", "--wave", "2"
        )
    assert (code, reasons(events)) == (0, [])
    gates = [e for e in events if isinstance(e, GateEvaluated)]
    assert all(e.satisfied and e.arm == tier and e.counted[cached] > 0 for e in gates)
    assert [(e.round, e.request) for e in gates] == [(0, 0), (0, 1), (1, -1), (2, -1)]
    assert sorted(e.index for e in answers(events)) == list(range(5))
    assert all(e.cached_tokens > 0.9 * e.prompt_tokens for e in answers(events))
    flushes = [e for e in events if isinstance(e, TierFlushed)]
    assert len(flushes) == (3 if tier == "dram" else 0)
    assert all(e.proof and e.poison for e in flushes)
    assert not any(isinstance(e, RequestAnswered) for e in events)
    # the answers do not depend on the tier: the lab's load is exact
    assert score(list(events)) == 1.0


def test_a_load_that_copies_nothing_costs_the_score_though_the_gate_holds(tmp_path: Path) -> None:
    with running(Options(hbm_blocks=BLOCKS, plant="F21")) as url:
        code, events = accuracy_run(tmp_path / "run", [url], "smoke", *FEW, "--tier", "dram", "--serial", "0")
    assert code == 0  # an arm is complete; what it is worth a comparison says
    assert score(list(events)) < 0.5


@pytest.mark.parametrize(
    ("plant", "words"),
    [("flush-lies", "HBM hit"), ("hits-recomputed", "0 bytes were loaded"), ("F21b", "dram hit 0 tokens")],
)
def test_what_no_gate_proves_is_missing_and_not_scored(tmp_path: Path, plant: str, words: str) -> None:
    with running(Options(hbm_blocks=BLOCKS, plant=plant)) as url:
        code, events = accuracy_run(
            tmp_path / "run", [url], "smoke", "--samples", "2", "--tier", "dram", "--serial", "1"
        )
    assert code == 3
    assert all("tier not proved" in e.error and e.score == 0.0 for e in answers(events))
    assert any(words in reason.text for reason in reasons(events)), reasons(events)


@pytest.mark.parametrize("dtype", ["turboquant_4bit_nc", "auto"])
def test_the_scramble_control_lowers_the_score(tmp_path: Path, dtype: str) -> None:
    with running(Options(hbm_blocks=BLOCKS, kv_cache_dtype=dtype)) as url:
        _, sound = accuracy_run(tmp_path / "sound", [url], "smoke", *FEW, "--tier", "hbm", "--serial", "0")
        code, events = accuracy_run(tmp_path / "scrambled", [url], "smoke", *FEW, "--control", "scramble")
    assert code == 0
    assert score(list(sound)) == 1.0
    assert score(list(events)) < 0.5
    gates = [e for e in events if isinstance(e, GateEvaluated)]
    assert all(e.satisfied and "scrambled by /lab/scramble" in e.witnesses[-1] for e in gates)
    layers = "2 layers" if dtype != "auto" else "6 layers"
    assert layers in gates[0].witnesses[-1]


def test_a_killed_run_goes_on_with_what_has_no_answer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with running(Options(hbm_blocks=BLOCKS)) as url:
        words = ["--suite", "smoke", "--label", "tried", "--tokenizer", "bytes", "--samples", "8", "--concurrency", "2"]
        command = [sys.executable, "-m", "kvverify", "accuracy", "run", "--url", url, "--out", str(out), *words]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        log, end = out / "events.ndjson", time.monotonic() + 120
        while not (log.exists() and log.read_bytes().count(b'"SampleAnswered"') >= 2):
            assert time.monotonic() < end, "no answer came"
            time.sleep(0.05)
        child.kill()
        child.wait()
        before = answers(read_events(out))
        assert 2 <= len(before) < 8
        assert verdict_of(read_events(out)) is Verdict.INCONCLUSIVE
        assert run(["accuracy", "run", "--resume", str(out)]) == 0
    events = read_events(out)
    keys = [e.key for e in answers(events)]
    assert keys[: len(before)] == [e.key for e in before]
    assert len(keys) == len(set(keys)) == 8


def test_a_wave_that_was_killed_before_its_gate_is_run_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    more = ("--tier", "dram", "--serial", "0", "--wave", "2")
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(out, [url], "smoke", *FEW, *more)
        assert code == 0
        log = out / "events.ndjson"
        cut = next(n for n, e in enumerate(events) if isinstance(e, GateEvaluated) and e.round == 1)
        log.write_text("".join(log.read_text().splitlines(keepends=True)[:cut]))
        assert run(["accuracy", "run", "--resume", str(out)]) == 0
    again = read_events(out)
    assert len({e.key for e in answers(again)}) == len(answers(again)) == 5
    gates = [e for e in again if isinstance(e, GateEvaluated)]
    assert [e.round for e in gates] == sorted({e.round for e in gates})


def test_a_prompt_of_whole_blocks_gets_a_tail(tmp_path: Path) -> None:
    file = suite(tmp_path, samples=1, lengths="[64, 96, 97]", options="whole = true")
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(tmp_path / "run", [url], file, "--tier", "dram", "--serial", "1")
    assert (code, reasons(events)) == (0, [])
    assert sorted(e.sent_tokens for e in answers(events)) == [65, 97, 97]


def test_conversations_go_through_the_chat_interface(tmp_path: Path) -> None:
    talking = suite(tmp_path, "tests.accuracy.asked:Talking", samples=2, lengths="[0]")
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(tmp_path / "run", [url], talking)
        refused, _ = accuracy_run(tmp_path / "tier", [url], talking, "--tier", "hbm")
    assert (code, refused) == (0, 2)
    found = answers(events)
    assert all(e.prompt_tokens == e.sent_tokens > 0 and e.output_tokens == 4 for e in found)
    assert all(e.format_error and e.score == 0.0 for e in found)  # the lab calls no tools
    problem = next(e.problem for e in read_events(tmp_path / "tier") if isinstance(e, ProblemMet))
    assert "conversations cannot be proved to come from a tier" in problem


def test_the_chat_template_drops_the_answer_prefix_and_says_so(tmp_path: Path) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = accuracy_run(tmp_path / "run", [url], "smoke", "--samples", "1", "--template", "chat")
    assert code == 0
    arm = next(e for e in events if isinstance(e, ArmStarted))
    assert (arm.identity["template"], arm.identity["answer_prefix"]) == ("chat", "dropped")
