"""What a measured difference of two arms says against a margin, by the rules of kvverify.verdicts_compare: the interval decides."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from kvverify.events import Verdict
from kvverify.events_accuracy import DifferenceMeasured
from kvverify.reasons import Reason, worst
from kvverify.report.signoff.gather import Run
from kvverify.verdicts_compare import Compared, arm_reasons, check_reasons, claim_reasons, figures, pairing_reasons

POINTS = 100.0


@dataclass(frozen=True, slots=True)
class Loss:
    """One difference (arm - base) of a run judged against a margin in points. ``needed`` pairs in all, None where not known."""

    run: Run
    event: DifferenceMeasured
    margin: float
    verdict: Verdict
    reasons: tuple[Reason, ...]
    needed: int | None

    @property
    def why(self) -> str:
        """The figures of a PASS, else what keeps it from being one."""
        return "; ".join(reason.text for reason in self.reasons) or figures(self.event)


def judge(run: Run, e: DifferenceMeasured, margin: float, *, confidence: float = 0.0, power: float = 0.0) -> Loss:
    """Return what ``e`` says against a loss of ``margin`` points, which may be another one than the run's own.

    What an arm lacks by itself, other samples, an A/A arm that moves and a control that does not lower the score count here too.
    An interval at less than ``confidence``, or a smaller chance than ``power`` of showing the margin with these pairs, is
    INCONCLUSIVE whatever the interval says, but for a FAIL.
    """
    own, compared = at_margin(e, margin / POINTS), Compared.of(run.events)
    pair = (e.base, e.arm)
    found = [r for label in pair if label in compared.arms for r in arm_reasons(compared.arms[label])]
    found += [r for p in compared.paired if (p.base, p.arm) == pair for r in pairing_reasons(p)]
    found += [r for m in compared.measured for r in check_reasons(m)]
    found += [*claim_reasons(compared, own), *_demands(own, confidence, power, same=own.margin == e.margin)]
    verdict = worst([Verdict.PASS, *(reason.verdict for reason in found)])
    return Loss(run, own, margin, verdict, tuple(dict.fromkeys(found)), own.needed if own.needed >= 0 else None)


def at_margin(e: DifferenceMeasured, margin: float) -> DifferenceMeasured:
    """Return the difference as evidence about another margin (a share): the pairs needed go with its inverse square."""
    if math.isclose(margin, e.margin):
        return e
    needed = math.ceil(e.needed * (e.margin / margin) ** 2) if e.needed >= 0 else e.needed
    return replace(e, margin=margin, needed=needed)


def _demands(e: DifferenceMeasured, confidence: float, power: float, *, same: bool) -> Iterator[Reason]:
    name = f"{e.arm} against {e.base}"
    if e.confidence < confidence - 1e-9:
        text = f"{name}: the interval is one at {e.confidence:.1%}, asked is {confidence:.1%}"
        yield Reason(Verdict.INCONCLUSIVE, text)
    # the power reached is known for the run's own margin only; for another one the pairs needed stand for it
    enough = e.power_reached >= power - 1e-9 if same else 0 <= e.needed <= e.pairs and e.power >= power - 1e-9
    if power and not enough and not e.undefined:
        text = f"{name}: {e.pairs:,} pairs are too few for a power of {power:.0%}" + (
            f", about {e.needed:,} are needed" if e.needed > e.pairs else ""
        )
        yield Reason(Verdict.INCONCLUSIVE, text)


def claims(runs: Iterable[Run], effect: str = "") -> list[tuple[Run, DifferenceMeasured]]:
    """Return the claims of all comparisons, those about one effect where it is named."""
    found = [(run, e) for run in runs for e in Compared.of(run.events).claims]
    return [(run, e) for run, e in found if effect in ("", e.effect)]


def bounds(e: DifferenceMeasured) -> tuple[float, float]:
    """Return the ends of the interval in points, each missing score being the worst and the best for the arm."""
    return POINTS * (e.low_worst if e.missing else e.low), POINTS * (e.high_best if e.missing else e.high)
