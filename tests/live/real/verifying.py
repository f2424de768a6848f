"""kvverify's own commands as a user runs them, and what their event log holds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from kvverify.events import Event, GateEvaluated, ReplayCompared, TierFlushed, Verdict
from kvverify.report.log import read_events
from kvverify.verdicts import verdict_of

E = TypeVar("E", bound=Event)
BRIEF = ("--requests", "1", "--long-requests", "0", "--concurrency", "1")
LONG = ("--requests", "1", "--long-requests", "1", "--concurrency", "1")
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 2, Verdict.INCONCLUSIVE: 3}


@dataclass(frozen=True)
class Run:
    """One run: its verdict, its events, and what it printed."""

    verdict: Verdict
    events: list[Event]
    printed: str

    def all(self, kind: type[E]) -> list[E]:
        """Return the events of one kind."""
        return [e for e in self.events if isinstance(e, kind)]


def kvverify(folder: Path, command: str, url: str, *options: str) -> Run:
    """Run a command against ``url`` into ``folder``; exit code and event log must agree."""
    return kvverify_words(folder, command, "--url", url, *options)


def kvverify_words(folder: Path, *words: str) -> Run:
    """Run ``kvverify WORDS --out folder``; exit code and event log must agree."""
    command = [sys.executable, "-m", "kvverify", *words, "--out", str(folder)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    print(done.stdout)  # pytest shows it with a failure
    events = read_events(folder / "events.ndjson")
    verdict = verdict_of(events)
    assert done.returncode == EXIT_CODES[verdict]
    return Run(verdict, events, done.stdout)


def assert_bitwise(run: Run, tier: str) -> None:
    """Of one request: a PASS, for which all was compared and proved, and HBM overwritten in between."""
    assert run.verdict is Verdict.PASS, run.printed
    assert [f.proof and f.poison for f in run.all(TierFlushed)].count("") == 0
    gates = [g for g in run.all(GateEvaluated) if g.arm in (tier, f"{tier}-again", "starved")]
    assert len(gates) == 3
    assert all(g.satisfied and g.counted[f"{tier}_hit_tokens"] == g.expected["lower_hits"] > 0 for g in gates)
    judged = [c for c in run.all(ReplayCompared) if c.judged and c.what == "answers"]
    assert {c.arm for c in judged} == {tier, f"{tier}-again", "partial", "starved"}
    assert not any(c.different or c.refused or c.largest_difference for c in judged)
    blocks = [c for c in run.all(ReplayCompared) if c.what == "blocks"]
    assert len(blocks) == 2
    assert not any(c.different or c.refused for c in blocks)
