"""A release policy applied to runs: each thing that it asks for with what the raw events say to it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence

from kvverify.events import BatchFinished, FaultPlanted, IsolationMeasured, Verdict
from kvverify.events_accuracy import ArmIncluded, DifferenceMeasured
from kvverify.policy.known import excuses, without_known
from kvverify.policy.load import LoadedPolicy
from kvverify.policy.model import (
    QUESTION_OF,
    Coverage,
    KeptApart,
    Margin,
    PlantedFaults,
    ProvedTier,
    ReleasePolicy,
    RequiredCheck,
)
from kvverify.reasons import worst
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, claims, judge
from kvverify.report.signoff.questions import ends, from_below
from kvverify.report.signoff.requirement import Judgement, Requirement
from kvverify.report.signoff.subject import subject
from kvverify.report.words import plural, size
from kvverify.verdicts_compare import figures, points
from kvverify.verdicts_live import Proofs

_MOST = 3


def judge_release(loaded: LoadedPolicy, policy: ReleasePolicy, runs: Sequence[Run], today: dt.date) -> Judgement:
    """Return what ``runs`` say to the policy, known findings that are allowed ``today`` left out."""
    judged = without_known(runs, policy.known_finding, today)
    left_out = {run.name: len(run.events) - len(kept.events) for run, kept in zip(runs, judged, strict=True)}
    return Judgement(
        policy=loaded.name,
        title=policy.title,
        description=policy.description,
        sha256=loaded.sha256,
        requirements=list(_requirements(policy, judged, left_out)),
        excuses=excuses(runs, policy.known_finding, today),
    )


def _requirements(policy: ReleasePolicy, runs: Sequence[Run], left_out: Mapping[str, int]) -> Iterator[Requirement]:
    for check in policy.check:
        yield _check(check, runs, left_out)
    if policy.coverage:
        yield from _coverage(policy.coverage, runs)
    if policy.planted_faults:
        yield _faults(policy.planted_faults, runs)
    if policy.tier:
        yield _tier(policy.tier, runs)
    if policy.isolation:
        yield _isolation(policy.isolation, runs)
    for margin in policy.margin:
        yield _margin(margin, runs)
    for word in policy.same:
        yield _same(word, runs)


def _check(asked: RequiredCheck, runs: Sequence[Run], left_out: Mapping[str, int]) -> Requirement:
    own = [run for run in runs if run.command == asked.command]
    words = f"{plural(asked.runs, 'run')} or more, each {' or '.join(asked.verdicts)}"
    open_ = [run for run in own if str(run.verdict) not in asked.verdicts]
    verdict = worst(run.verdict for run in open_) if open_ else Verdict.PASS
    missing = ""
    if len(own) < asked.runs:
        verdict = worst([verdict, Verdict.INCONCLUSIVE])
        missing = plural(asked.runs - len(own), "run") + f" of kvverify {asked.command}"
    why = [f"{run.name}: {reason.text}" for run in open_ for reason in run.summary.reasons[:1]]
    known = {
        name: f" but for {count} known {'failure' if count == 1 else 'failures'}"
        for name, count in left_out.items()
        if count
    }
    found = ", ".join(f"{run.name} {run.verdict}{known.get(run.name, '')}" for run in own) or "no such run"
    if why:
        found += f" ({'; '.join(why[:_MOST])})"
    return Requirement(
        f"{asked.command} passes", words, found, verdict, asked.published, QUESTION_OF.get(asked.command, 0), missing
    )


def _coverage(asked: Coverage, runs: Sequence[Run]) -> Iterator[Requirement]:
    batches = [e for run in runs if run.command == "roundtrip" for e in run.of(BatchFinished)]
    rows = [row for run in runs if run.command == "roundtrip" for row in run.summary.kernels]
    devices = {row.kernel: row.device for row in rows if row.device}  # a run in which it only refused tells none
    sums: dict[str, list[int]] = {}
    for e in batches:
        if not asked.gpu or devices.get(e.kernel, "").startswith("cuda"):
            own = sums.setdefault(e.kernel, [0, 0])
            own[0] += e.sequences
            own[1] += e.compared_bytes
    enough = [
        k for k, (sequences, count) in sums.items() if sequences >= asked.sequences and count >= asked.compared_bytes
    ]
    least = f"{plural(asked.sequences, 'sequence')} and {size(asked.compared_bytes)}" + (
        " on a GPU" if asked.gpu else ""
    )
    lacking = [kernel for kernel in asked.kernels if kernel not in enough]
    short = max(0, asked.kernel_count - len(enough))
    named = f"{', '.join(asked.kernels)}" if asked.kernels else plural(max(1, asked.kernel_count), "kernel")
    if not asked.kernels and not asked.kernel_count:
        short = int(not enough)
    needed = [f"{kernel} below that" if kernel in sums else f"{kernel} not run" for kernel in lacking]
    needed += [f"{plural(short, 'kernel')} more"] * bool(short)
    verdict = Verdict.INCONCLUSIVE if needed else Verdict.PASS
    words = {kernel: f"{kernel} {sequences:,} ({size(count)})" for kernel, (sequences, count) in sums.items()}
    below = [words[kernel] for kernel in sums if kernel not in enough]
    where = ", ".join(words[kernel] for kernel in enough) or ("none" if sums else "nothing was compared")
    where += f"; with less: {', '.join(below)}" if below else "" if sums or not asked.gpu else " on a GPU"
    yield Requirement(
        "coverage of kernels", f"{named}, each {least}", where, verdict, asked.published, 1, "; ".join(needed)
    )
    if asked.formats:
        seen = {
            name for e in batches if e.kernel in sums and e.compared_bytes for name, count in e.formats.items() if count
        }
        absent = [name for name in asked.formats if name not in seen]
        verdict = Verdict.INCONCLUSIVE if absent else Verdict.PASS
        yield Requirement(
            "coverage of formats",
            ", ".join(asked.formats),
            _formats(seen, asked.formats),
            verdict,
            "",
            1,
            ", ".join(absent),
        )


def _formats(seen: set[str], asked: Sequence[str]) -> str:
    met = [name for name in asked if name in seen]
    others = len(seen - set(asked))
    return ", ".join(met or ["none of these"]) + (f" and {plural(others, 'format')} more" if others else "")


def _faults(asked: PlantedFaults, runs: Sequence[Run]) -> Requirement:
    planted = [e for run in runs if run.command == "selftest" for e in run.of(FaultPlanted)]
    every = {(e.fault, e.name) for e in planted}
    killed = {(e.fault, e.name) for e in planted if e.outcome in ("killed", "declared")}
    survived = [e for e in planted if e.outcome == "survived"]
    words = f"{asked.killed:.0%} of the faults tried, at most {plural(asked.survivals, 'survival')}"
    if not every:
        return Requirement(
            "planted faults killed", words, "none was planted", Verdict.INCONCLUSIVE, asked.published, 1, "a self-test"
        )
    share = len(killed) / len(every)
    found = f"{len(killed)} of {len(every)}, {plural(len(survived), 'survival')}"
    found += "".join(f"; {e.fault} {e.name} with {e.kernel}" for e in survived[:_MOST])
    verdict = Verdict.PASS if share >= asked.killed else Verdict.INCONCLUSIVE
    verdict = Verdict.FAIL if len(survived) > asked.survivals else verdict
    return Requirement("planted faults killed", words, found, verdict, asked.published, 1)


def _tier(asked: ProvedTier, runs: Sequence[Run]) -> Requirement:
    gates = [g for run in runs for g in Proofs.of(run.events).by_request.values() if from_below(g)]
    proved = sum(g.satisfied for g in gates)
    enough = proved >= asked.proved
    missing = "" if enough else f"{asked.proved - proved:,} more"
    return Requirement(
        "requests proved to come from below",
        f"{asked.proved:,} or more",
        f"{proved:,} of {len(gates):,} proved",
        Verdict.PASS if enough else Verdict.INCONCLUSIVE,
        asked.published,
        2,
        missing,
    )


def _isolation(asked: KeptApart, runs: Sequence[Run]) -> Requirement:
    measured = [e for run in runs for e in run.of(IsolationMeasured)[-1:]]
    words = f"{asked.answers:,} answers that count, all right, none with foreign content"
    if not measured:
        return Requirement(
            "sessions kept apart",
            words,
            "no isolation test",
            Verdict.INCONCLUSIVE,
            asked.published,
            3,
            f"{asked.answers:,} answers",
        )
    qualified, right, foreign = (sum(getattr(e, name) for e in measured) for name in ("qualified", "right", "foreign"))
    found = f"{right:,} of {qualified:,} right, {foreign:,} foreign"
    if rates := [e for e in measured if e.excluded_rate >= 0]:
        found += (
            f"; a rate of leaks of {min(e.excluded_rate for e in rates):.2%} is excluded at {rates[0].confidence:.0%}"
        )
    verdict = Verdict.PASS if qualified >= asked.answers else Verdict.INCONCLUSIVE
    verdict = Verdict.FAIL if foreign or right < qualified else verdict
    missing = f"{asked.answers - qualified:,} more" if qualified < asked.answers else ""
    return Requirement("sessions kept apart", words, found, verdict, asked.published, 3, missing)


def _margin(asked: Margin, runs: Sequence[Run]) -> Requirement:
    """Judge a claim. The point estimate is shown beside the published bar, and decides nothing."""
    suite = f" on {asked.suite}" if asked.suite else ""
    name = f"within {asked.points:g} {'point' if asked.points == 1 else 'points'} by {asked.effect}{suite}"
    question = 4 if asked.effect == "format" else 3
    words = f"{asked.confidence:.0%} interval above -{asked.points:g}, {asked.pairs:,} pairs or more"
    words += f", power {asked.power:.0%}" if asked.power else ""
    own = [(run, e) for run, e in claims(runs, asked.effect) if _of_suite(run, e, asked.suite)]
    if not own:
        missing = f"kvverify accuracy compare with a {asked.effect} arm{suite}"
        return Requirement(name, words, "not measured", Verdict.INCONCLUSIVE, asked.published, question, missing)
    verdicts, found, needed = [], [], []
    for run, e in own:
        loss = judge(run, e, asked.points, confidence=asked.confidence, power=asked.power)
        reasons = [*loss.reasons, *ends(run)]
        verdict = worst(
            [Verdict.PASS, *(r.verdict for r in reasons), *[Verdict.INCONCLUSIVE] * (e.pairs < asked.pairs)]
        )
        inside = "inside" if abs(POINTS * e.difference) <= asked.points else "outside"
        texts = [reason.text for reason in reasons[:_MOST]] or [figures(e)]
        found.append(
            f"{e.arm} against {e.base}: {points(e.difference)} points, {inside} the bar as published; {'; '.join(texts)}"
        )
        want = max(asked.pairs, loss.needed or 0)
        if verdict is Verdict.INCONCLUSIVE and want > e.pairs:
            needed.append(f"about {want - e.pairs:,} pairs")
        verdicts.append(verdict)
    return Requirement(name, words, ". ".join(found), worst(verdicts), asked.published, question, ", ".join(needed))


def _of_suite(run: Run, e: DifferenceMeasured, suite: str) -> bool:
    arms = [arm for arm in run.of(ArmIncluded) if arm.label in (e.arm, e.base)]
    return not suite or any(arm.suite.startswith(suite) for arm in arms)


def _same(word: str, runs: Sequence[Run]) -> Requirement:
    values = subject(runs).facts[word]
    verdict = Verdict.PASS if len(values) == 1 else Verdict.INCONCLUSIVE
    return Requirement(
        f"one {word}", "the same in all runs that tell it", ", ".join(values) or "no run tells it", verdict
    )
