"""Every single check of the runs under a name that stays the same from release to release, for comparison over time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvverify.events import BatchFinished, CodecCompared, FaultPlanted, Verdict
from kvverify.reasons import worst
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, claims, judge
from kvverify.verdicts import differs

_PLANTED = {"killed": Verdict.PASS, "declared": Verdict.PASS, "survived": Verdict.FAIL}


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``low`` and ``high`` bound its figure, None where it has none; ``figure`` says it in words."""

    verdict: Verdict
    figure: str = ""
    low: float | None = None
    high: float | None = None


def checks(runs: Sequence[Run]) -> dict[str, Check]:
    """Return all checks by name; one that several runs made has the worst of their verdicts."""
    found: dict[str, Check] = {}
    for name, check in _every(runs):
        old = found.get(name)
        if old is None or worst([old.verdict, check.verdict]) is not old.verdict:
            found[name] = check
    return found


def _every(runs: Sequence[Run]) -> Iterator[tuple[str, Check]]:
    for run in runs:
        if run.command == "roundtrip":
            yield from _bytes(run)
        for e in run.of(FaultPlanted):
            if e.outcome != "n/a":
                verdict = _PLANTED.get(e.outcome, Verdict.INCONCLUSIVE)
                yield f"planted fault {e.fault} {e.name} with {e.kernel}", Check(verdict, e.outcome)
        for c in run.of(CodecCompared):
            verdict = Verdict.FAIL if differs(c) else Verdict.PASS
            yield f"codec {c.library} {c.format}, head size {c.head_size}, {c.what}", Check(verdict, c.headline)
        for case in run.summary.live.cases if run.summary.live else []:
            if case.group == "claim":  # below, with its interval
                continue
            figure = case.messages[0] if case.messages else ""
            yield f"{run.command}: {case.group}, {case.name}", Check(case.verdict, figure)
    for run, d in claims(runs):
        if not d.undefined:
            loss = judge(run, d, POINTS * d.margin)
            low, high = POINTS * d.low, POINTS * d.high
            words = f"{POINTS * d.difference:+.2f} points ({low:+.2f} to {high:+.2f}), {loss.why}"
            yield f"accuracy by {d.effect}, {d.scope}: {d.arm} against {d.base}", Check(loss.verdict, words, low, high)


def _bytes(run: Run) -> Iterator[tuple[str, Check]]:
    """Yield a check for each kernel and format: which layouts a campaign meets depends on its time, so they have no names here."""
    sequences: dict[tuple[str, str], int] = {}
    for e in run.of(BatchFinished):
        if e.compared_bytes:
            for fmt, count in e.formats.items():
                sequences[e.kernel, fmt] = sequences.get((e.kernel, fmt), 0) + count
    failed = {(c.kernel, fmt) for c in run.summary.cases if c.verdict is Verdict.FAIL for fmt in c.formats}
    for kernel, fmt in dict.fromkeys([*sequences, *sorted(failed)]):
        verdict = Verdict.FAIL if (kernel, fmt) in failed else Verdict.PASS
        yield f"bytes of {fmt} with {kernel}", Check(verdict, f"{sequences.get((kernel, fmt), 0):,} sequences")
