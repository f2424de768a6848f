"""The four questions of kvverify with what the runs answer; a question that no run looked at is INCONCLUSIVE."""

from __future__ import annotations

import re
from collections import Counter
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
from kvverify.events_accuracy import ArmIncluded, CacheReadStated, FlipsMeasured
from kvverify.reasons import SEVERITY, Reason, worst
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, Loss, claims, judge
from kvverify.report.words import plural, size
from kvverify.verdicts import end_reasons
from kvverify.verdicts_compare import in_points
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
_AMOUNT = re.compile(r" [\d,]+$")  # of a witness: what differs from request to request


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
    found = [f.event for run in own for f in run.summary.failures]
    failed = list(dict.fromkeys(e.kernel for e in found))
    kinds = len({(e.kernel, e.kind) for e in found})
    clean = [kernel for kernel in kernels if kernel not in failed]
    verdict = worst(run.verdict for run in own)
    figures = [
        ("sequences", f"{sum(e.sequences for e in batches):,}"),
        ("bytes compared", size(compared)),
        ("kernels without a failure", ", ".join(clean) or "none"),
        ("layouts met", f"{len({e.layout for e in batches}):,}"),
        ("formats met", f"{len({name for e in batches for name in e.formats}):,}"),
        ("kernels with failures", ", ".join(failed) or "none"),
        *_killed(runs),
    ]
    answer = {
        Verdict.PASS: f"Yes, in every one of {size(compared)} compared, with {plural(len(kernels), 'kernel')}.",
        Verdict.FAIL: f"No with {', '.join(failed) or 'a planted fault'}: {plural(len(found), 'failure')} of {plural(kinds, 'kind')}."
        + (f" Yes with the other {plural(len(clean), 'kernel')}, on the layouts they met." if clean else ""),
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
    found = [*_case_reasons(own, "gate"), *_unplaced(own)]
    if not proved:
        found.append(Reason(Verdict.INCONCLUSIVE, "no request is proved to have come from a lower tier"))
    verdict = worst([Verdict.PASS, *(r.verdict for r in found)])
    witnesses = Counter(_AMOUNT.sub("", word) for gate in proved for word in gate.witnesses)
    further = [f"{word} ({count:,} of {len(proved):,})" for word, count in witnesses.most_common(_MOST_REASONS)]
    figures = [
        ("requests or passes that a lower tier had to serve", f"{len(proved):,} of {len(lower):,} proved"),
        ("of all tiers", f"{sum(gate.satisfied for gate in gates):,} of {len(gates):,} proved"),
        ("prompt tokens from a lower tier", f"{sum(_hits(gate) for gate in proved):,}"),
        ("evidence beside the hit counters", ", ".join(further) or "none"),
    ]
    answer = {
        Verdict.PASS: f"Yes: proved for all {len(proved):,} requests or passes that a lower tier had to serve.",
        Verdict.FAIL: "No.",
    }.get(verdict, f"Not proved: {len(proved):,} of {len(lower):,} requests or passes that a lower tier had to serve.")
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
    found = [*_case_reasons(own, "tiers", "isolation", "requests"), *_unplaced(own), *_loss_reasons(losses)]
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
        *((f"score by tier, {_arms(loss)}", _loss_words(loss)) for loss in losses),
    ]
    wrong = [reason.text for reason in found if reason.verdict is Verdict.FAIL]
    answer = {Verdict.PASS: "Yes.", Verdict.FAIL: _broken(own, wrong)}.get(verdict, "Not shown.")
    if verdict is Verdict.PASS and used:
        answer = f"Yes: {plural(len(used), 'comparison')} across tiers, none beyond what one tier differs from itself."
    names = [run.name for run in runs if run in own or any(loss.run is run for loss in losses)]
    return Question(3, verdict, answer, figures, _lines(found), names)


def _broken(own: Sequence[Run], wrong: Sequence[str]) -> str:
    failed = [run.name for run in own if run.verdict is Verdict.FAIL]
    passed = [run.name for run in own if run.verdict is Verdict.PASS]
    if not (failed and passed):
        return f"No: {wrong[0]}." if wrong else "No."
    return f"No in {', '.join(failed)}. Yes in {', '.join(passed)}."


def _isolation_figures(own: Iterable[Run]) -> list[tuple[str, str]]:
    return [
        (f"{run.name}", f"{e.right:,} of {e.qualified:,} answers that count right, {e.foreign} with foreign content")
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
    flips = [e for run in own for e in run.of(FlipsMeasured)]
    figures = [
        *((_arms(loss), _loss_words(loss)) for loss in losses),
        *((f"answers that flip, {e.arm}", f"{e.rate:.1%}, floor {e.floor:.1%}") for e in flips),
        ("tokens read in the stored format", "; ".join(_reads(runs, own)) or "not stated by these runs"),
    ]
    return Question(4, verdict, _cost(losses, verdict), figures, _lines(found), [run.name for run in own])


def _reads(runs: Iterable[Run], compared: Iterable[Run]) -> list[str]:
    """Return what the arms say of the cache that they read: their own runs, or else the comparisons they went into."""
    own = [e.evidence for run in runs for e in run.of(CacheReadStated) if e.evidence]
    arms = [
        e for run in compared for e in run.of(ArmIncluded) if e.role in ("base", "candidate") and e.packed_reads >= 0
    ]
    return list(dict.fromkeys(own or [f"{e.label} {e.packed_reads:,}" for e in arms]))


def _cost(losses: Sequence[Loss], verdict: Verdict) -> str:
    """Return what each arm loses, the largest loss first; nothing is «less than the margin» while something keeps the question open."""
    margin = in_points(losses[0].event.margin)
    said = {
        Verdict.FAIL: f"More than the margin of {margin}",
        Verdict.INCONCLUSIVE: "Not decided",
        Verdict.PASS: f"Less than {margin}",
    }
    costs: dict[Verdict, list[str]] = {each: [] for each in said}
    for loss in sorted(losses, key=lambda loss: loss.event.difference):
        name = f"{loss.event.arm} " if len(losses) > 1 else ""
        open_ = verdict not in (Verdict.PASS, Verdict.FAIL) and loss.verdict is Verdict.PASS
        costs[Verdict.INCONCLUSIVE if open_ else loss.verdict].append(
            f"{name}{POINTS * loss.event.difference:+.2f} points ({_interval(loss)})"
        )
    ends_with = {Verdict.INCONCLUSIVE: f", margin {margin}"}
    return " ".join(f"{said[v]}: {', '.join(found)}{ends_with.get(v, '')}." for v, found in costs.items() if found)


def ends(run: Run) -> list[Reason]:
    """Return what says that a run did not come to its end, or met a problem."""
    return [*(r for r in run.summary.reasons if r.verdict is Verdict.ERROR), *end_reasons(list(run.events))]


def _arms(loss: Loss) -> str:
    return f"{loss.event.arm} against {loss.event.base}"


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


def _case_reasons(own: Sequence[Run], *groups: str) -> list[Reason]:
    """Return why checks of these groups are no PASS; of several runs each with the run's name, the first with how many more."""
    found = []
    for run in own:
        cases = [case for case in (run.summary.live.cases if run.summary.live else []) if case.group in groups]
        open_ = [case for case in cases if case.verdict is not Verdict.PASS]
        for verdict in dict.fromkeys(case.verdict for case in open_):
            texts = [c.messages[0] if c.messages else f"{c.name}: {c.verdict}" for c in open_ if c.verdict is verdict]
            more = f"; and {plural(len(texts) - 1, 'check')} more" if len(texts) > 1 else ""
            found.append(Reason(verdict, _named(own, run, texts[0] + more)))
    return found


def _unplaced(own: Sequence[Run]) -> list[Reason]:
    """Return the reasons of live runs that belong to no single check, such as a missing end: they count for each question."""
    found = []
    for run in own:
        placed = {text for case in (run.summary.live.cases if run.summary.live else []) for text in case.messages}
        found += [
            Reason(reason.verdict, _named(own, run, reason.text))
            for reason in run.summary.reasons
            if reason.text not in placed
        ]
    return found


def _named(own: Sequence[Run], run: Run, text: str) -> str:
    return f"{run.name}: {text}" if len(own) > 1 else text


def _not_looked(number: int) -> Question:
    return Question(number, Verdict.INCONCLUSIVE, f"Not looked at: {NOT_LOOKED[number]}.", [], [], [], looked=False)


def _texts(own: Sequence[Run]) -> list[str]:
    return _lines([Reason(r.verdict, _named(own, run, r.text)) for run in own for r in run.summary.reasons])


def _lines(found: Iterable[Reason]) -> list[str]:
    by_weight = sorted(found, key=lambda reason: -SEVERITY.index(reason.verdict))
    lines = list(dict.fromkeys(f"{reason.verdict}: {reason.text}" for reason in by_weight))
    if len(lines) <= _MOST_REASONS + 1:
        return lines
    return [*lines[:_MOST_REASONS], f"and {len(lines) - _MOST_REASONS} more, below"]
