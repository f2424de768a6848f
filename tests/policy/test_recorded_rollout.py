"""The rollout in results/: real runs of the lab, and what the shipped policies decide about them."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import runpy
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.events import EXIT_CODES, EngineDescribed, GateEvaluated, Verdict
from kvverify.events_accuracy import ArmStarted, SampleAnswered
from kvverify.policy.judge import judge_runs
from kvverify.policy.load import load_policy
from kvverify.report.log import read_events
from kvverify.report.signoff.gather import gather
from kvverify.report.signoff.requirement import Decision

ROLLOUT = Path(__file__).parents[2] / "results" / "rollout"
RUNS = sorted(path.parent.relative_to(ROLLOUT).as_posix() for path in ROLLOUT.glob("*/*/events.ndjson"))
BASE, GOOD = (("baseline/records", "baseline/refusals"), ("candidate-good/records", "candidate-good/refusals"))
BLOCK_TOKENS = 32  # of the lab's packed layers; bf16 has 16
ITL, FORMATS, SAFETY = (
    "p95 ITL grows by at most 10%",
    "format errors grow by at most 0.5 points",
    "no safety regression",
)


@pytest.mark.parametrize(
    ("runs", "policy", "decision", "code", "broken"),
    [
        ((*BASE, *GOOD), "shadow", Decision.GO, 0, []),
        ((*BASE, *GOOD), "canary", Decision.HOLD, 3, []),
        ((*BASE, *GOOD), "full", Decision.HOLD, 3, []),
        ((BASE[0], "candidate-slow/records"), "shadow", Decision.ROLL_BACK, 1, [ITL]),
        ((BASE[0], "candidate-slow/records"), "full", Decision.ROLL_BACK, 1, [ITL]),
        ((BASE[0], "candidate-lossy/records"), "shadow", Decision.ROLL_BACK, 1, [FORMATS]),
        ((BASE[0], "candidate-lossy/records"), "full", Decision.ROLL_BACK, 1, [FORMATS]),
        ((BASE[1], "candidate-lossy/refusals"), "shadow", Decision.ROLL_BACK, 1, [SAFETY]),
        ((BASE[1], "candidate-lossy/refusals"), "canary", Decision.ROLL_BACK, 1, [SAFETY]),
    ],
)
def test_what_the_shipped_policies_decide(
    runs: Sequence[str], policy: str, decision: Decision, code: int, broken: list[str]
) -> None:
    judgement = judge_runs(load_policy(policy), gather(ROLLOUT / name for name in runs), dt.date(2026, 12, 1)).judgement
    assert judgement.decision is decision
    assert EXIT_CODES[judgement.verdict] == code
    assert [r.name for r in judgement.requirements if r.verdict is Verdict.FAIL] == broken
    assert all(r.examples for r in judgement.requirements if r.name in broken and r.name != ITL)


@pytest.mark.parametrize("name", RUNS)
def test_each_is_the_run_of_a_lab_from_its_dram(name: str) -> None:
    events = read_events(ROLLOUT / name)
    (engine,) = (e for e in events if isinstance(e, EngineDescribed))
    (started,) = (e for e in events if isinstance(e, ArmStarted))
    answers = [e for e in events if isinstance(e, SampleAnswered)]
    gates = [e for e in events if isinstance(e, GateEvaluated)]
    assert (engine.engine, started.identity["tier"]) == ("lab", "dram")
    assert len(answers) == sum(started.planned.values())
    blocks = 2 * BLOCK_TOKENS  # the last one is computed, a begun one too
    assert all(e.cached_tokens > e.prompt_tokens - blocks > 0 and e.itl > 0 for e in answers)
    assert gates
    assert all(gate.satisfied and gate.counted["dram_hit_tokens"] for gate in gates)


def test_the_questions_are_those_that_the_script_writes(tmp_path: Path) -> None:
    shutil.copy(ROLLOUT / "write_questions.py", tmp_path)
    runpy.run_path(str(tmp_path / "write_questions.py"), run_name="__main__")
    for name in RUNS:
        (started,) = (e for e in read_events(ROLLOUT / name) if isinstance(e, ArmStarted))
        written = tmp_path / "questions" / f"{Path(name).name}.jsonl"
        assert started.identity["items questions"] == hashlib.sha256(written.read_bytes()).hexdigest()


def test_the_page_shows_the_broken_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [str(ROLLOUT / name) for name in (BASE[0], "candidate-lossy/records")]
    assert run(["report", *paths, "--policy", "shadow", "--out", str(tmp_path / "out"), "--json"]) == 1
    document: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    (formats,) = (r for r in document["policy"]["requirements"] if r["name"] == FORMATS)
    assert len(formats["examples"]) == 3
    assert all("records, sample " in example and "became «" in example for example in formats["examples"])
    assert run(["verify-report", str(tmp_path / "out")]) == 0
