"""tier-diff from end to end against the lab: clean is a pass, planted faults are not, and an interrupted run goes on."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("openai")
pytest.importorskip("httpx2")

from kvverify.cli.main import run
from kvverify.events import Event, GateEvaluated, ReplayCompared, RequestAnswered, TierFlushed, Verdict
from kvverify.lab.serving import Options, running
from kvverify.report.log import read_events
from kvverify.verdicts import reasons, verdict_of
from tests.live.real.servers import free_port

SMALL = ["--long-requests", "0", "--max-tokens", "4", "--concurrency", "2", "--settle", "0.01"]
BLOCKS = 48


def tier_diff(url: str, out: Path, *more: str, requests: int = 2) -> tuple[int, list[Event]]:
    code = run(["tier-diff", "--url", url, "--out", str(out), "--requests", str(requests), *SMALL, *more])
    return code, read_events(out)


def of_arm(events: list[Event], arm: str) -> list[RequestAnswered]:
    return [e for e in events if isinstance(e, RequestAnswered) and e.arm == arm]


def test_a_clean_lab_passes_in_every_arm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = tier_diff(url, tmp_path / "run", "--json")
    assert (code, reasons(events)) == (0, [])
    for arm in ("cold", "hbm", "hbm-again", "dram", "dram-again", "partial", "starved", "dram-concurrent"):
        assert len(of_arm(events, arm)) == 2, arm
    gates = [e for e in events if isinstance(e, GateEvaluated)]
    assert all(e.satisfied for e in gates)
    assert all(e.counted["dram_hit_tokens"] > 0 < e.counted["loaded_bytes"] for e in gates if e.arm.startswith("dram"))
    partial = [e for e in gates if e.arm == "partial"]
    assert all(e.counted["dram_hit_tokens"] > 0 < e.counted["hbm_hit_tokens"] for e in partial)
    flushes = [e for e in events if isinstance(e, TierFlushed)]
    assert flushes
    assert all(e.proof and e.poison for e in flushes)
    assert [e.poison for e in flushes if not e.claimed] == [e.poison for e in flushes if "filler" in e.poison]
    blocks = [e for e in events if isinstance(e, ReplayCompared) and e.what == "blocks"]
    assert {e.arm for e in blocks} == {"dram", "dram-again"}
    assert not any(e.different or e.refused for e in blocks)
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["verdict"] == "PASS"
    assert {row["arm"] for row in document["live"]["tables"]["Arms"]} >= {"hbm", "dram", "starved"}
    for name in ("report.html", "report.md", "junit.xml"):
        assert "dram-again" in (tmp_path / "run" / name).read_text()


@pytest.mark.parametrize(
    ("plant", "verdict", "word"),
    [
        ("F05", Verdict.FAIL, "dram differs from hbm"),
        ("F21", Verdict.FAIL, "blocks"),
        ("flush-lies", Verdict.INCONCLUSIVE, "HBM hit"),
        ("F21b", Verdict.INCONCLUSIVE, "dram hit 0 tokens"),
        ("hits-recomputed", Verdict.INCONCLUSIVE, "0 bytes were loaded"),
        ("counters-stuck", Verdict.INCONCLUSIVE, "counter"),
        ("cut", Verdict.INCONCLUSIVE, "requests failed"),
        ("nan-logprob", Verdict.FAIL, "no number"),
    ],
)
def test_planted_faults_are_no_pass(tmp_path: Path, plant: str, verdict: Verdict, word: str) -> None:
    with running(Options(hbm_blocks=BLOCKS, plant=plant)) as url:
        _, events = tier_diff(url, tmp_path / "run", "--timeout", "20")
    found = reasons(events)
    assert verdict_of(events) is verdict, found
    assert any(word in reason.text for reason in found if reason.verdict is verdict), found


def test_no_server_is_an_error(tmp_path: Path) -> None:
    code, events = tier_diff(f"http://127.0.0.1:{free_port()}", tmp_path / "run")
    assert code == 2
    assert "is the server up" in str(reasons(events)[0].text)


def test_wrong_words_are_refused_before_a_run_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert run(["tier-diff", *out]) == 2
    assert run(["tier-diff", "--url", "localhost", *out]) == 2
    assert "http://HOST:PORT" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_server_that_dies_is_an_error_and_the_run_goes_on_with_the_next_one(tmp_path: Path) -> None:
    port, out = free_port(), tmp_path / "run"
    url = f"http://127.0.0.1:{port}"
    # two waves: HBM is too small for all prompts at once
    with lab(port, blocks=30) as server:
        command = ["tier-diff", "--url", url, "--out", str(out), "--requests", "2", *SMALL]
        child = subprocess.Popen([sys.executable, "-m", "kvverify", *command], stderr=subprocess.DEVNULL)
        log = out / "events.ndjson"
        wait_for(lambda: log.exists() and b'"arm": "dram"' in log.read_bytes())
        server.kill()
        assert child.wait(60) == 2
    before = read_events(out)
    assert verdict_of(before) is Verdict.ERROR
    assert of_arm(before, "hbm")
    with lab(port, blocks=30):
        assert run(["tier-diff", "--resume", str(out)]) == 0
    events = read_events(out)
    assert events[: len(before)] == before
    assert verdict_of(events) is Verdict.PASS


def test_a_finished_wave_is_not_run_again(tmp_path: Path) -> None:
    with running(Options(hbm_blocks=30)) as url:
        code, events = tier_diff(url, tmp_path / "run")
        assert code == 0
        log = tmp_path / "run" / "events.ndjson"
        lines = log.read_text().splitlines(keepends=True)
        cut = next(i for i, e in enumerate(events) if isinstance(e, GateEvaluated) and (e.arm, e.request) == ("hbm", 1))
        log.write_text("".join(lines[:cut]))
        assert run(["tier-diff", "--resume", str(tmp_path / "run")]) == 0
    resumed = read_events(tmp_path / "run")
    new = [e for e in resumed[cut:] if isinstance(e, RequestAnswered)]
    assert {e.request for e in new if e.arm == "dram"} == {1}
    old_prompts = {e.prompt_hash for e in events if isinstance(e, RequestAnswered) and e.request == 1}
    assert not old_prompts & {e.prompt_hash for e in new if e.request == 1}


def test_another_client_stops_the_run(tmp_path: Path) -> None:
    from kvverify.tierdiff.options import TierDiffOptions
    from kvverify.tierdiff.run import tier_diff as run_tier_diff
    from tests.lab.asking import Asking

    events: list[Event] = []
    with running(Options(hbm_blocks=BLOCKS)) as url:

        def emit(event: Event) -> None:
            events.append(event)
            if isinstance(event, RequestAnswered) and event.arm == "hbm":
                Asking(url).complete("somebody else asks a question of another kind, and so on and on", max_tokens=1)

        run_tier_diff(TierDiffOptions(url=url, requests=2, max_tokens=2, long_requests=0, settle_s=0.01), 1, emit)
    found = reasons(events)
    assert any("are ours" in reason.text and reason.verdict is Verdict.ERROR for reason in found), found
    assert not of_arm(events, "dram")


@pytest.mark.parametrize("flushes", [True, False])
def test_fillers_replace_what_a_server_does_not_offer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flushes: bool
) -> None:
    from kvverify.live.engine import FlushFailed
    from kvverify.live.engines.lab import Lab

    async def refuse(self: Lab, *_: object) -> None:
        raise FlushFailed("not offered")

    monkeypatch.setattr(Lab, "poison", refuse)
    if not flushes:
        monkeypatch.setattr(Lab, "flush", refuse)
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = tier_diff(url, tmp_path / "run", "--concurrency", "1")
    assert (code, reasons(events)) == (0, [])
    flushed = [e for e in events if isinstance(e, TierFlushed)]
    assert any(e.claimed for e in flushed) == flushes
    assert all("filler requests" in e.poison and e.proof for e in flushed)


def test_a_flush_alone_overwrites_nothing_and_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvverify.live.engine import FlushFailed
    from kvverify.live.engines.lab import Lab

    async def refuse(self: Lab) -> None:
        raise FlushFailed("not offered")

    monkeypatch.setattr(Lab, "poison", refuse)
    # a DRAM tier too small for prompts and fillers
    with running(Options(hbm_blocks=BLOCKS, dram_gib=0.008)) as url:
        code, events = tier_diff(url, tmp_path / "run", "--concurrency", "1")
    assert code == 3
    assert any("not overwritten" in reason.text for reason in reasons(events))


@contextmanager
def lab(port: int, *, blocks: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "kvverify", "lab", "--port", str(port), "--hbm-blocks", str(blocks)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert "serves" in server.stdout.readline()
        try:
            yield server
        finally:
            server.kill()


def wait_for(condition: Any, limit: float = 120.0) -> None:
    end = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < end, "did not come"
        time.sleep(0.1)


def test_prompts_of_a_given_length(tmp_path: Path) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = tier_diff(url, tmp_path / "run", "--prompt-tokens", "401", requests=1)
        assert {e.prompt_tokens for e in of_arm(events, "hbm") + of_arm(events, "dram")} == {401}
        assert code == 0
        code, events = tier_diff(url, tmp_path / "long", "--prompt-tokens", "100000", requests=1)
    assert code == 3
    assert not of_arm(events, "hbm")
    assert any("--prompt-tokens 100000 and answers of 4 are beyond the context" in r.text for r in reasons(events))


def test_a_tier_that_the_engine_does_not_serve_from_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(Options(hbm_blocks=BLOCKS)) as url:
        code, events = tier_diff(url, tmp_path / "run", "--tier", "disk", requests=1)
    assert code == 2
    assert any(f"--tier disk: lab at {url} serves from dram when HBM is empty" in r.text for r in reasons(events))
    assert not of_arm(events, "cold")
