"""Event logs of accuracy runs, written as a run writes them, with scores of the caller's choice."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvverify.events import Event, GateEvaluated, RunFinished, RunStarted
from kvverify.events_accuracy import ArmStarted, CacheReadStated, SampleAnswered
from tests.run_folder import write

IDENTITY = {"model": "m", "engine": "vllm", "build": "1", "kv_cache_dtype": "auto", "template": "t", "tier": "none"}
Change = Callable[[SampleAnswered], Event | None]


@dataclass(frozen=True)
class Cell:
    """Scores of one task and length, in order; ``clusters`` of them share a document each, 0: none do."""

    task: str
    length: int
    scores: Sequence[float]
    binary: bool = True
    clusters: int = 0

    def answers(self) -> list[SampleAnswered]:
        """Return an answer for each score."""
        return [self._answer(index, score) for index, score in enumerate(self.scores)]

    def _answer(self, index: int, score: float) -> SampleAnswered:
        key = hashlib.sha256(f"{self.task}/{self.length}/{index}".encode()).hexdigest()
        cluster = f"{self.task} document {index % self.clusters}" if self.clusters else ""
        return SampleAnswered(
            task=self.task,
            length=self.length,
            index=index,
            key=key,
            cluster=cluster,
            score=score,
            binary=self.binary,
            prompt_tokens=self.length,
            sent_tokens=self.length,
            output_tokens=8,
            text="x",
            ttft=0.5,
            itl=0.01,
        )


@dataclass(frozen=True, kw_only=True)
class Log:
    """A run of one arm. ``change`` alters answers, or drops them by returning None; ``planned`` is what was to be asked."""

    label: str
    cells: Sequence[Cell]
    identity: Mapping[str, Any] = field(default_factory=dict)
    change: Change = lambda e: e
    planned: Mapping[str, int] | None = None
    cache: tuple[int, int] | None = (7, 0)  # decode steps and hit tokens of a sample
    gates: Sequence[GateEvaluated] = ()
    ended: bool = True
    suite: str = "s"
    samples_hash: str = ""
    margin: float = 0.0

    def write(self, path: Path) -> str:
        """Write the log and return the run folder."""
        return str(write(path, self.events()))

    def events(self) -> list[Event]:
        """Return the events of the run."""
        answers = [e for cell in self.cells for e in cell.answers()]
        planned = {f"{c.task}/{c.length}": len(c.scores) for c in self.cells} if self.planned is None else self.planned
        keys = self.samples_hash or hashlib.sha256("".join(e.key for e in answers).encode()).hexdigest()
        start = ArmStarted(
            label=self.label,
            suite=self.suite,
            kind="retrieval",
            identity={**IDENTITY, **self.identity},
            planned=dict(planned),
            samples_hash=keys,
            margin=self.margin,
        )
        asked = [e for e in map(self.change, answers) if e is not None]
        found: list[Event] = [
            RunStarted(command="accuracy run", version="0", seed=1, options={}),
            start,
            *asked,
            *self.gates,
        ]
        if self.cache is not None:
            steps, hits = (n * len(asked) for n in self.cache)
            found.append(
                CacheReadStated(
                    label=self.label,
                    samples=len(asked),
                    decode_steps=steps,
                    hit_tokens=hits,
                    continued_tokens=-1,
                    raw_tokens=100,
                    evidence="usage",
                )
            )
        return [*found, *([RunFinished(seconds=1.0)] if self.ended else [])]


def packed(log: Log, label: str = "4bit", **changes: Any) -> Log:
    """Return the same log of an arm with another format."""
    return replace(log, label=label, **{"identity": {"kv_cache_dtype": "turboquant_4bit_nc"}, **changes})


def binary(n: int, right: float = 0.8) -> list[float]:
    """Return n scores of which a share is 1, spread evenly."""
    return [float(int((i + 1) * right) > int(i * right)) for i in range(n)]


def flipped(scores: Sequence[float], *, lost: int = 0, gained: int = 0) -> list[float]:
    """Return the scores with the first ``lost`` of the right ones wrong and the first ``gained`` of the wrong ones right."""
    changed = list(scores)
    for what, count in ((1.0, lost), (0.0, gained)):
        places = [i for i, score in enumerate(scores) if score == what][:count]
        assert len(places) == count
        for i in places:
            changed[i] = 1.0 - what
    return changed


def failed(indexes: set[int]) -> Change:
    """Return a change that makes the answers at these indexes errors."""
    return lambda e: replace(e, error="status 500", score=0.0) if e.index in indexes else e
