"""What keeps a run from being a PASS, one line each, and which of several decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvverify.events import Verdict


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not a PASS, in one line."""

    verdict: Verdict
    text: str


SEVERITY = (Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.ERROR, Verdict.FAIL)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict that decides: FAIL beats ERROR beats INCONCLUSIVE beats PASS; of nothing, INCONCLUSIVE."""
    return max(verdicts, key=SEVERITY.index, default=Verdict.INCONCLUSIVE)
