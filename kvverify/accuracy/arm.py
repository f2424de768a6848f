"""One arm of a comparison, made of the events of its run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from kvverify.errors import UsageError
from kvverify.events import Event, GateEvaluated, RunFinished, RunStarted
from kvverify.events_accuracy import ArmIncluded, ArmStarted, CacheReadStated, SampleAnswered, SampleLeftOut

CANDIDATE_ROLES = (
    "candidate",
    "tier",
)  # their differences are claims; those of the other roles say whether claims can be made


@dataclass(frozen=True, slots=True)
class Arm:
    """What a run measured. ``samples`` holds, by key, the last answer to each planned sample that was asked or left out.

    ``unknown`` counts, by "task/length", planned samples of which the log says nothing: they were not come to.
    """

    role: str
    label: str
    path: Path
    events_hash: str
    start: ArmStarted
    samples: dict[str, SampleAnswered | SampleLeftOut]
    unknown: dict[str, int]
    repeats: int
    cache: CacheReadStated | None
    gates: tuple[GateEvaluated, ...]
    ended: bool

    @property
    def scored(self) -> dict[str, SampleAnswered]:
        """The samples with a score, by key."""
        return {k: e for k, e in self.samples.items() if isinstance(e, SampleAnswered) and not e.error}

    @property
    def planned(self) -> int:
        """Number of different samples in the plan."""
        return len(self.samples) + sum(self.unknown.values())

    def included(self) -> ArmIncluded:
        """Return the event that says what the arm is."""
        scored = list(self.scored.values())
        open_ = [gate for gate in self.gates if not gate.satisfied]
        return ArmIncluded(
            label=self.label,
            role=self.role,
            path=str(self.path),
            events_hash=self.events_hash,
            identity=self.start.identity,
            samples=self.planned,
            missing=self.planned - len(scored),
            score=cells_mean(scored),
            cache_read=_cache_words(self.cache),
            format_errors=sum(bool(e.format_error) for e in scored),
            ttft=_median(e.ttft for e in scored),
            itl=_median(e.itl for e in scored),
            finished=self.ended and not self.unknown,
            suite=self.start.suite,
            packed_reads=packed_reads(self.cache),
            gates=len(self.gates),
            gates_open=len(open_),
            gate_reasons=list(dict.fromkeys(reason for gate in open_ for reason in gate.reasons))[:5],
            repeats=self.repeats,
            notes=self.start.notes,
        )


def arm_of(seen: Sequence[Event], events_hash: str, path: Path, role: str) -> Arm:
    """Return the arm that the run in folder ``path`` with these events measured.

    Raises:
        UsageError: not a run of ``accuracy run``, several arms in one log, or one resumed as another arm.
    """
    start = _start(seen, path)
    by_place = {
        (e.task, e.length, e.index): e for e in seen if isinstance(e, SampleAnswered | SampleLeftOut)
    }  # asked again after an interruption, the last answer counts
    samples: dict[str, SampleAnswered | SampleLeftOut] = {}
    came: dict[str, int] = {}
    for place in sorted(by_place):
        e = by_place[place]
        samples.setdefault(e.key, e)
        came[cell(e)] = came.get(cell(e), 0) + 1
    unknown = {name: n - came.get(name, 0) for name, n in start.planned.items() if n > came.get(name, 0)}
    ends = [e for e in seen if isinstance(e, RunStarted | RunFinished)]
    return Arm(
        role=role,
        label=start.label,
        path=path,
        events_hash=events_hash,
        start=start,
        samples=samples,
        unknown=unknown,
        repeats=len(by_place) - len(samples),
        cache=next((e for e in reversed(seen) if isinstance(e, CacheReadStated)), None),
        gates=tuple({(e.arm, e.round, e.request): e for e in seen if isinstance(e, GateEvaluated)}.values()),
        ended=bool(ends) and isinstance(ends[-1], RunFinished) and not ends[-1].interrupted,
    )


def cell(e: SampleAnswered | SampleLeftOut) -> str:
    """Return "task/length", the stratum of a sample."""
    return f"{e.task}/{e.length}"


def cells_mean(answers: Iterable[SampleAnswered]) -> float:
    """Return the plain mean over tasks and lengths of their mean scores, 0 of nothing."""
    scores: dict[str, list[float]] = {}
    for e in answers:
        scores.setdefault(cell(e), []).append(e.score)
    return fmean(fmean(own) for own in scores.values()) if scores else 0.0


def packed_reads(cache: CacheReadStated | None) -> int:
    """Return how many tokens were read from the cache in its stored format, -1 where nothing says so."""
    return -1 if cache is None else cache.decode_steps + cache.hit_tokens + max(0, cache.continued_tokens)


def _start(seen: Sequence[Event], path: Path) -> ArmStarted:
    starts = [e for e in seen if isinstance(e, ArmStarted)]
    if not starts:
        command = next((f"a run of {e.command}" for e in seen if isinstance(e, RunStarted)), "no run")
        raise UsageError(f"run {path}: holds {command} without an arm; expected the folder of an accuracy run")
    first, last = starts[0], starts[-1]
    if len({e.label for e in starts}) > 1:
        raise UsageError(
            f"run {path}: holds arms {first.label!r} and {last.label!r}; expected a run folder for each arm"
        )
    for e in starts:
        if (e.samples_hash, e.identity) != (first.samples_hash, first.identity):
            names = [n for n in {**first.identity, **e.identity} if first.identity.get(n) != e.identity.get(n)]
            raise UsageError(
                f"run {path}: arm {first.label!r} was resumed with other {', '.join(names) or 'samples'}; run it anew"
            )
    return last


def _cache_words(cache: CacheReadStated | None) -> str:
    if cache is None:
        return ""
    continued = "unknown" if cache.continued_tokens < 0 else f"{cache.continued_tokens:,}"
    return (
        f"{cache.decode_steps:,} decode steps, {cache.hit_tokens:,} hit tokens, {continued} continued, "
        f"{cache.raw_tokens:,} raw: {cache.evidence}"
    )


def _median(times: Iterable[float]) -> float:
    known = [t for t in times if t > 0]
    return median(known) if known else 0.0
