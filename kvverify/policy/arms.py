"""The two arms of a rollout, each of one run or several: what was asked of it and what came back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvverify.errors import UsageError
from kvverify.events import GateEvaluated, RequestAnswered, RunFinished
from kvverify.events_accuracy import ArmStarted, SampleAnswered
from kvverify.report.signoff.gather import Run
from kvverify.report.words import plural

_FORMS = ("business",)  # kinds of suites whose answers must have a form
_SAFETY = "safety"


@dataclass(frozen=True, slots=True)
class Arm:
    """``answers`` are the last ones by sample, ``requests`` those of live runs; ``forms`` and ``safety`` the samples of such suites."""

    label: str
    runs: Sequence[Run]
    answers: Sequence[SampleAnswered]
    requests: Sequence[RequestAnswered]
    forms: Sequence[SampleAnswered]
    safety: dict[str, SampleAnswered]
    preemptions: int | None
    unfinished: Sequence[str]

    @property
    def asked(self) -> int:
        """Requests that were sent, answered or not."""
        return len(self.answers) + len(self.requests)

    @property
    def failed(self) -> int:
        """Requests without an answer."""
        return sum(bool(e.error) for e in self.answers) + sum(bool(e.error) for e in self.requests)

    def times(self, measure: str) -> list[float]:
        """Return the times of answered requests in seconds; what has none, such as an answer of one token, is left out."""
        events = [*(e for e in self.answers if not e.error), *(e for e in self.requests if not e.error)]
        return [value for e in events if (value := float(getattr(e, measure))) > 0]

    def cached(self) -> tuple[int, int] | None:
        """Return (tokens from a cache, prompt tokens) of the requests that tell both, None where none does."""
        every: list[SampleAnswered | RequestAnswered] = [*self.answers, *self.requests]
        told = [e for e in every if not e.error and e.cached_tokens >= 0 and e.prompt_tokens > 0]
        return (sum(e.cached_tokens for e in told), sum(e.prompt_tokens for e in told)) if told else None


def arms(runs: Sequence[Run]) -> tuple[Arm, Arm]:
    """Return (baseline, candidate): the runs with the label of the first run are the baseline, all others the candidate.

    Raises:
        UsageError: there are not two arms.
    """
    labels = [next((e.label for e in run.of(ArmStarted)), "") for run in runs]
    if len(runs) == 2:
        labels = [label or run.name for label, run in zip(labels, runs, strict=True)]
        if labels[0] == labels[1]:
            labels = [run.name for run in runs]
    named = list(dict.fromkeys(labels))
    if len(named) != 2 or "" in named:
        given = ", ".join(f"{run.name} ({label or 'no label'})" for run, label in zip(runs, labels, strict=True))
        raise UsageError(
            f"a rollout policy compares two arms: got {given}; give a baseline and a candidate, several runs of each by one label"
        )
    sides = [[run for run, label in zip(runs, labels, strict=True) if label == name] for name in named]
    return _arm(named[0], sides[0]), _arm(named[1], sides[1])


def _arm(label: str, runs: Sequence[Run]) -> Arm:
    last = {run.name: _last(run) for run in runs}
    kinds = {run.name: next((e.kind for e in run.of(ArmStarted)), "") for run in runs}
    gates = [e for run in runs for e in run.of(GateEvaluated)]
    counts = [n for e in gates if isinstance(n := e.counted.get("preemptions"), int)]
    return Arm(
        label=label,
        runs=runs,
        answers=[e for own in last.values() for e in own],
        requests=[e for run in runs for e in _last_requests(run)],
        forms=[e for name, own in last.items() if kinds[name] in _FORMS for e in own if not e.error],
        safety={e.key: e for name, own in last.items() if kinds[name] == _SAFETY for e in own if not e.error},
        preemptions=sum(counts) if counts else None,
        unfinished=[run.name for run in runs if not _ended(run)],
    )


def _last(run: Run) -> list[SampleAnswered]:
    """Return the last answer to each sample: a resumed run asks again what had failed."""
    return list({(e.key, e.task, e.index): e for e in run.of(SampleAnswered)}.values())


def _last_requests(run: Run) -> list[RequestAnswered]:
    return list({(e.arm, e.round, e.request): e for e in run.of(RequestAnswered)}.values())


def _ended(run: Run) -> bool:
    ends = run.of(RunFinished)
    return bool(ends) and not ends[-1].interrupted


def arms_words(sides: Iterable[Arm]) -> str:
    """Return both arms, and in what they differ as far as the runs tell."""
    base, candidate = sides
    words = f"Baseline: {base.label}, {plural(base.asked, 'request')}; candidate: {candidate.label}, {plural(candidate.asked, 'request')}"
    if apart := _apart(base, candidate):
        words += f". They differ in {'; '.join(apart)}"
    if not _at_once(base, candidate):
        words += ". They were not asked at the same time, so times may differ by what else ran"
    return words


def _at_once(base: Arm, candidate: Arm) -> bool:
    """Do the times in which the two arms were asked overlap? True where a run tells none."""
    spans = [[e.at for run in arm.runs for e in run.events if e.at > 0] for arm in (base, candidate)]
    return not all(spans) or max(map(min, spans)) <= min(map(max, spans))


def _apart(base: Arm, candidate: Arm) -> list[str]:
    """Return what of the identity is not the same in two runs of one suite: (baseline to candidate)."""
    found: dict[str, None] = {}
    identities = {e.suite: e.identity for run in base.runs for e in run.of(ArmStarted)}
    for run in candidate.runs:
        for e in run.of(ArmStarted):
            own = identities.get(e.suite, e.identity)
            found |= {
                f"{key}: {own.get(key, 'not told')} to {e.identity.get(key, 'not told')}": None
                for key in [*own, *(key for key in e.identity if key not in own)]
                if own.get(key) != e.identity.get(key)
            }
    return list(found)
