"""What a measured difference of two arms says against a margin: the interval decides, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kvverify.events import Verdict
from kvverify.events_accuracy import DifferenceMeasured
from kvverify.report.signoff.gather import Run

POINTS = 100.0


@dataclass(frozen=True, slots=True)
class Loss:
    """One difference (arm - base) judged against a margin, all in points; ``needed`` pairs in all, None where not known."""

    event: DifferenceMeasured
    margin: float
    verdict: Verdict
    why: str
    needed: int | None = None


def judge(e: DifferenceMeasured, margin: float, *, confidence: float = 0.0, power: float = 0.0) -> Loss:
    """Return what ``e`` says against a loss of ``margin`` points.

    FAIL where the whole interval lies below -margin, PASS where all of it lies above, else INCONCLUSIVE; where scores are missing, with
    each of them the worst for a PASS and the best for a FAIL. An interval at less than ``confidence`` or a smaller chance than
    ``power`` to show the margin with these pairs is INCONCLUSIVE whatever it says, but for a FAIL.
    """
    needed = e.needed if e.needed >= 0 else None
    if e.undefined or e.pairs < 1:
        return Loss(e, margin, Verdict.INCONCLUSIVE, e.undefined or "no pair was compared", needed)
    low, high = bounds(e)
    interval = f"{low:+.2f} to {high:+.2f} points"
    if e.missing:
        interval += f" whatever the {e.missing:,} missing scores were"
    if e.confidence < confidence - 1e-9:
        text = f"the interval {interval} is one at {e.confidence:.1%}, asked is {confidence:.1%}"
        return Loss(e, margin, Verdict.INCONCLUSIVE, text, needed)
    if high < -margin:
        return Loss(e, margin, Verdict.FAIL, f"{interval}, all of it below -{margin:g}", needed)
    more = f"; about {needed:,} pairs are needed, {e.pairs:,} are there" if needed and needed > e.pairs else ""
    if e.power_reached < power - 1e-9:
        lack = f"these pairs show the margin with a chance of {e.power_reached:.0%}, asked is {power:.0%}"
        return Loss(e, margin, Verdict.INCONCLUSIVE, f"{interval}; {lack}{more}", needed)
    if low > -margin:
        return Loss(e, margin, Verdict.PASS, f"{interval}, all of it above -{margin:g}", needed)
    return Loss(e, margin, Verdict.INCONCLUSIVE, f"{interval}, -{margin:g} lies inside{more}", needed)


def bounds(e: DifferenceMeasured) -> tuple[float, float]:
    """Return the ends of the interval in points, each missing score being the worst and the best for the arm."""
    return POINTS * (e.low_worst if e.missing else e.low), POINTS * (e.high_best if e.missing else e.high)


def differences(runs: Iterable[Run], effect: str = "", *, primary: bool = False) -> list[DifferenceMeasured]:
    """Return the last measured difference of each pair of arms, effect and scope; all effects where none is named."""
    last = {(run.name, e.base, e.arm, e.effect, e.scope): e for run in runs for e in run.of(DifferenceMeasured)}
    return [e for e in last.values() if (not effect or e.effect == effect) and (e.primary or not primary)]


def primary(runs: Sequence[Run], effect: str) -> list[DifferenceMeasured]:
    """Return the differences that decide the claim about an effect."""
    return differences(runs, effect, primary=True)
