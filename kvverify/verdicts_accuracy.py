"""The verdict of one accuracy arm by itself: was every planned sample answered, and was the cache read?

A score is no verdict; what it is worth a comparison says. Of several answers to one sample, after a resume, the last one counts. A sample is
its place in the plan (task, length, number): one question may stand there twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from kvverify.events import Event, GateEvaluated, ProblemMet, RunStarted, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated, SampleAnswered, SampleLeftOut
from kvverify.reasons import Reason

RUN = "accuracy run"
Where = tuple[str, int, int]  # task, length, number


def is_accuracy_run(seen: Iterable[Event]) -> bool:
    """Is this the run of an arm?"""
    return any(isinstance(e, RunStarted) and e.command == RUN for e in seen)


def run_reasons(seen: list[Event]) -> list[Reason]:
    """Return what keeps an arm from being complete; all of it is INCONCLUSIVE, for nothing is judged here.

    No sample was answered, planned samples are missing (not asked, failed, left out), the tier that was asked for is not proved, or
    nothing was read from the cache in its stored format.
    """
    arm = next((e for e in seen if isinstance(e, ArmStarted)), None)
    if arm is None:
        known = any(isinstance(e, ProblemMet) for e in seen)  # which says why
        return [] if known else [Reason(Verdict.INCONCLUSIVE, "no arm was measured")]
    last = {_where(e): e for e in seen if isinstance(e, SampleAnswered)}
    good = [e for e in last.values() if not e.error]
    if not good:
        return [Reason(Verdict.INCONCLUSIVE, f"arm {arm.label}: no sample was answered"), *_missing(seen, arm, last)]
    return [*_missing(seen, arm, last), *_not_proved(seen, arm), *_not_read(seen, arm)]


def _missing(seen: list[Event], arm: ArmStarted, last: dict[Where, SampleAnswered]) -> list[Reason]:
    planned = sum(arm.planned.values())
    failed = [e for e in last.values() if e.error]
    left_out = {_where(e): e for e in seen if isinstance(e, SampleLeftOut) and _where(e) not in last}
    not_asked = planned - len(last) - len(left_out)
    missing = len(failed) + len(left_out) + not_asked
    if missing <= 0:
        return []
    parts = [
        *([f"{len(failed)} failed, first {_place(failed[0])}: {failed[0].error}"] if failed else []),
        *([f"{len(left_out)} left out, first {_first(left_out)}"] if left_out else []),
        *([f"{not_asked} not asked"] if not_asked else []),
    ]
    return [
        Reason(Verdict.INCONCLUSIVE, f"arm {arm.label}: {missing} of {planned} samples are missing: {'; '.join(parts)}")
    ]


def _where(e: SampleAnswered | SampleLeftOut) -> Where:
    return e.task, e.length, e.index


def _first(left_out: dict[Where, SampleLeftOut]) -> str:
    e = next(iter(left_out.values()))
    return f"{_place(e)}: {e.reason}"


def _place(e: SampleAnswered | SampleLeftOut) -> str:
    return f"{e.task} {e.length} number {e.index}" if e.length else f"{e.task} number {e.index}"


def _not_proved(seen: list[Event], arm: ArmStarted) -> list[Reason]:
    """Answers without a gate count as failed, see above; here is a run that has no gate at all and needs one."""
    control = arm.identity.get("control", "none") not in ("none", "raw-kv")  # the latter reads no cache: see below
    if arm.identity.get("tier", "none") in ("none", "replay") and not control:
        return []
    if any(isinstance(e, GateEvaluated) and e.satisfied for e in seen):
        return []
    return [Reason(Verdict.INCONCLUSIVE, f"arm {arm.label}: no gate proves the tier that served it")]


def _not_read(seen: list[Event], arm: ArmStarted) -> list[Reason]:
    stated = [e for e in seen if isinstance(e, CacheReadStated)]
    if not stated:
        return [Reason(Verdict.INCONCLUSIVE, f"arm {arm.label}: it is not stated what was read from the cache")]
    last = stated[-1]
    if max(last.decode_steps, last.hit_tokens, last.continued_tokens) > 0:
        return []
    text = "nothing was read from the cache in its stored format, so the score says nothing of the format"
    return [Reason(Verdict.INCONCLUSIVE, f"arm {arm.label}: {text}")]
