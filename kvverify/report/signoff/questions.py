"""The four questions of kvverify with what the runs answer; a question that no run looked at is INCONCLUSIVE."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvverify.events import (
    BatchFinished,
    FaultPlanted,
    GateEvaluated,
    IsolationMeasured,
    ReplayCompared,
    Verdict,
)
from kvverify.events_accuracy import CacheReadStated, FlipsMeasured
from kvverify.reasons import SEVERITY, Reason, worst
from kvverify.report.section import LiveCase
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, Loss, claims, judge
from kvverify.report.words import plural, size
from kvverify.verdicts import end_reasons
from kvverify.verdicts_live import Proofs

TITLES = {
    1: "Do the bytes survive the copy, and nothing else change?",
    2: "Did the request really come from the lower tier?",
    3: "Is the answer the same whichever tier served it?",
    4: "What does the format cost?",
}
COMMANDS = {1: ("roundtrip",), 2: ("tier-diff", "isolation"), 3: ("tier-diff", "isolation"), 4: ("accuracy compare",)}
NOT_LOOKED = {
    1: "no run of roundtrip is among these",
    2: "no run of tier-diff or isolation is among these",
    3: "no run of tier-diff or isolation, and no accuracy by tier, is among these",
    4: "no accuracy comparison by format is among these",
}
_MOST_REASONS = 4


@dataclass(frozen=True, slots=True)
class Question:
    """One question: ``answer`` in a sentence, ``figures`` (what, value), ``reasons`` for what is not PASS, names of the runs."""

    number: int
    verdict: Verdict
    answer: str
    figures: Sequence[tuple[str, str]]
    reasons: Sequence[str]
    runs: Sequence[str]
    looked: bool = True

    @property
    def title(self) -> str:
        """The question itself."""
        return TITLES[self.number]


def questions(runs: Sequence[Run]) -> list[Question]:
    """Return the answers to the four questions."""
    return [_bytes(runs), _tier(runs), _answers(runs), _format(runs)]


def _bytes(runs: Sequence[Run]) -> Question:
    own = [run for run in runs if run.command in COMMANDS[1]]
    if not own:
        return _not_looked(1)
    batches = [e for run in own for e in run.of(BatchFinished)]
    compared = sum(e.compared_bytes for e in batches)
    kernels = list(dict.fromkeys(e.kernel for e in batches if e.compared_bytes))
    failed = list(dict.fromkeys(f.event.kernel for run in own for f in run.summary.failures))
    defects = sum(len(run.summary.failures) for run in own)
    verdict = worst(run.verdict for run in own)
    figures = [
        ("sequences", f"{sum(e.sequences for e in batches):,}"),
        ("bytes compared", size(compared)),
        ("kernels that ran", ", ".join(kernels) or "none"),
        ("layouts met", f"{len({e.layout for e in batches}):,}"),
        ("formats met", f"{len({name for e in batches for name in e.formats}):,}"),
        ("kernels with failures", ", ".join(failed) or "none"),
        *_killed(runs),
    ]
    answer = {
        Verdict.PASS: f"Yes, in every one of {size(compared)} compared, with {plural(len(kernels), 'kernel')}.",
        Verdict.FAIL: f"No: {plural(defects, 'defect')} with {', '.join(failed) or 'a planted fault'}.",
    }.get(verdict, "Not shown.")
    return Question(1, verdict, answer, figures, _texts(own), [run.name for run in own])


def _killed(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """Return what the same check found of planted faults: without that, silence of a check means nothing."""
    planted = [e for run in runs if run.command == "selftest" for e in run.of(FaultPlanted)]
    faults = {(e.fault, e.name) for e in planted}
    killed = {(e.fault, e.name) for e in planted if e.outcome == "killed"}
    survived = {(e.fault, e.name, e.kernel) for e in planted if e.outcome == "survived"}
    if not faults:
        return [("planted faults", "no self-test is among the runs")]
    return [("planted faults", f"{len(killed)} of {len(faults)} killed, {len(survived)} survivals")]


def _tier(runs: Sequence[Run]) -> Question:
    own = [run for run in runs if run.command in COMMANDS[2]]
    if not own:
        return _not_looked(2)
    gates = [gate for run in own for gate in Proofs.of(run.events).by_request.values()]
    lower = [gate for gate in gates if from_below(gate)]
    proved = [gate for gate in lower if gate.satisfied]
    cases = _cases(own, "gate")
    found = [*_case_reasons(cases), *_unplaced(own)]
    if not proved:
        found.append(Reason(Verdict.INCONCLUSIVE, "no request is proved to have come from a lower tier"))
    verdict = worst([Verdict.PASS, *(r.verdict for r in found)])
    witnesses = dict.fromkeys(word for gate in proved for word in gate.witnesses)
    figures = [
        ("requests or passes from below", f"{len(proved)} of {len(lower)} proved"),
        ("all gates", f"{sum(gate.satisfied for gate in gates)} of {len(gates)} satisfied"),
        ("tokens from below", f"{sum(_hits(gate) for gate in proved):,}"),
        ("further evidence", ", ".join(list(witnesses)[:_MOST_REASONS]) or "none beside the hit counters"),
    ]
    answer = {
        Verdict.PASS: f"Yes: {plural(len(proved), 'gate')} of a lower tier, all satisfied.",
        Verdict.FAIL: "No.",
    }.get(verdict, f"Not proved: {len(proved)} of {plural(len(lower), 'gate')} of a lower tier satisfied.")
    return Question(2, verdict, answer, figures, _lines(found), [run.name for run in own])


def from_below(gate: GateEvaluated) -> bool:
    """Is this the gate of an arm that a lower tier has to serve?"""
    wanted = gate.expected.get("lower_hits")
    return bool(gate.expected.get("lower")) or (isinstance(wanted, int) and wanted > 0) or _hits(gate) > 0


def _hits(gate: GateEvaluated) -> int:
    counts = (gate.counted.get(f"{tier}_hit_tokens") for tier in ("dram", "disk"))
    return sum(n for n in counts if isinstance(n, int))


def _answers(runs: Sequence[Run]) -> Question:
    own = [run for run in runs if run.command in COMMANDS[3]]
    losses = [judge(run, e, POINTS * e.margin) for run, e in claims(runs, "tier")]
    if not own and not losses:
        return _not_looked(3)
    cases = _cases(own, "tiers", "isolation", "requests")
    found = [*_case_reasons(cases), *_unplaced(own), *_loss_reasons(losses)]
    judged = [(run, e) for run in own for e in run.of(ReplayCompared) if e.judged]
    proofs = {run.name: Proofs.of(run.events) for run in own}
    used = [e for run, e in judged if proofs[run.name].counts(e)]
    qualified = sum(e.qualified for run in own for e in run.of(IsolationMeasured)[-1:])
    if not used and not qualified and not losses:
        found.append(Reason(Verdict.INCONCLUSIVE, "nothing was compared that a gate proves"))
    verdict = worst([Verdict.PASS, *(r.verdict for r in found)])
    figures = [
        ("comparisons that count", f"{len(used)} of {len(judged)}"),
        ("of those different", str(sum(e.different for e in used))),
        *_isolation_figures(own),
        *(("score by tier", _loss_words(loss)) for loss in losses),
    ]
    wrong = next((reason.text for reason in found if reason.verdict is Verdict.FAIL), "")
    answer = {Verdict.PASS: "Yes.", Verdict.FAIL: f"No: {wrong}."}.get(verdict, "Not shown.")
    if verdict is Verdict.PASS and used:
        answer = f"Yes: {plural(len(used), 'comparison')} across tiers, none beyond what one tier differs from itself."
    names = [run.name for run in runs if run in own or any(loss.run is run for loss in losses)]
    return Question(3, verdict, answer, figures, _lines(found), names)


def _isolation_figures(own: Iterable[Run]) -> list[tuple[str, str]]:
    return [
        ("isolation", f"{e.right} of {e.qualified} answers that count right, {e.foreign} with foreign content")
        for run in own
        for e in run.of(IsolationMeasured)[-1:]
    ]


def _format(runs: Sequence[Run]) -> Question:
    losses = [judge(run, e, POINTS * e.margin) for run, e in claims(runs, "format")]
    if not losses:
        return _not_looked(4)
    own = [run for run in runs if any(loss.run is run for loss in losses)]
    found = [*_loss_reasons(losses), *(reason for run in own for reason in ends(run))]
    verdict = worst([Verdict.PASS, *(r.verdict for r in found)])
    read = list(dict.fromkeys(e.evidence for run in runs for e in run.of(CacheReadStated) if e.evidence))
    flips = [e for run in own for e in run.of(FlipsMeasured)]
    figures = [
        *((f"{loss.event.arm} against {loss.event.base}", _loss_words(loss)) for loss in losses),
        *((f"answers that flip, {e.arm}", f"{e.rate:.1%}, floor {e.floor:.1%}") for e in flips),
        ("tokens read in the stored format", "; ".join(read) or "not stated by these runs"),
    ]
    first = losses[0]
    cost = f"{POINTS * first.event.difference:+.2f} points ({_interval(first)})"
    answer = {
        Verdict.PASS: f"Less than {first.margin:g} points: {cost}.",
        Verdict.FAIL: f"More than the margin of {first.margin:g} points: {cost}.",
    }.get(verdict, f"Not decided: {cost}, margin {first.margin:g} points.")
    return Question(4, verdict, answer, figures, _lines(found), [run.name for run in own])


def ends(run: Run) -> list[Reason]:
    """Return what says that a run did not come to its end, or met a problem."""
    return [*(r for r in run.summary.reasons if r.verdict is Verdict.ERROR), *end_reasons(list(run.events))]


def _loss_words(loss: Loss) -> str:
    e = loss.event
    return (
        f"{POINTS * e.difference:+.2f} points, {_interval(loss)}, {e.pairs:,} pairs, {e.missing:,} missing, {e.scope}"
    )


def _interval(loss: Loss) -> str:
    e = loss.event
    return f"{e.confidence:.0%} interval {POINTS * e.low:+.2f} to {POINTS * e.high:+.2f}"


def _loss_reasons(losses: Iterable[Loss]) -> list[Reason]:
    return [reason for loss in losses for reason in loss.reasons]


def _cases(own: Iterable[Run], *groups: str) -> list[LiveCase]:
    return [case for run in own if run.summary.live for case in run.summary.live.cases if case.group in groups]


def _case_reasons(cases: Iterable[LiveCase]) -> list[Reason]:
    open_ = [case for case in cases if case.verdict is not Verdict.PASS]
    return [Reason(c.verdict, c.messages[0] if c.messages else f"{c.name}: {c.verdict}") for c in open_]


def _unplaced(own: Iterable[Run]) -> list[Reason]:
    """Return the reasons of live runs that belong to no single check, such as a missing end: they count for each question."""
    found = []
    for run in own:
        placed = {text for case in (run.summary.live.cases if run.summary.live else []) for text in case.messages}
        found += [reason for reason in run.summary.reasons if reason.text not in placed]
    return found


def _not_looked(number: int) -> Question:
    return Question(number, Verdict.INCONCLUSIVE, f"Not looked at: {NOT_LOOKED[number]}.", [], [], [], looked=False)


def _texts(own: Iterable[Run]) -> list[str]:
    return _lines([reason for run in own for reason in run.summary.reasons])


def _lines(found: Iterable[Reason]) -> list[str]:
    by_weight = sorted(found, key=lambda reason: -SEVERITY.index(reason.verdict))
    lines = list(dict.fromkeys(f"{reason.verdict}: {reason.text}" for reason in by_weight))
    more = [f"and {len(lines) - _MOST_REASONS} more, below"] if len(lines) > _MOST_REASONS else []
    return lines[:_MOST_REASONS] + more
