"""What a policy asks for and what the runs say to it: plain facts that kvverify.policy makes and every report shows."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvverify.events import Verdict
from kvverify.reasons import worst


class Decision(enum.StrEnum):
    """What a rollout policy says: its words for PASS, INCONCLUSIVE and FAIL."""

    GO = "GO"
    HOLD = "HOLD"
    ROLL_BACK = "ROLL BACK"


_DECISIONS = {Verdict.PASS: Decision.GO, Verdict.FAIL: Decision.ROLL_BACK}


@dataclass(frozen=True, slots=True)
class Requirement:
    """One thing asked for. ``published`` is the bar in the words of who published it, ``question`` the one of the four it belongs to.

    ``missing`` says what is still needed where that is known, ``examples`` what broke it, the first few in words.
    """

    name: str
    asked: str
    found: str
    verdict: Verdict
    published: str = ""
    question: int = 0
    missing: str = ""
    examples: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Excuse:
    """A known finding of a policy: what of the runs it covers, and until when. ``matched`` counts the events; none: it can go."""

    what: str
    reason: str
    expires: str
    expired: bool
    matched: int
    report: str = ""


@dataclass(frozen=True, slots=True)
class Judgement:
    """A policy applied to runs."""

    policy: str
    title: str
    description: str
    sha256: str
    requirements: Sequence[Requirement]
    excuses: Sequence[Excuse] = field(default_factory=tuple)
    rollout: bool = False
    arms: str = ""

    @property
    def verdict(self) -> Verdict:
        """The worst of all requirements; of none, INCONCLUSIVE."""
        return worst(r.verdict for r in self.requirements)

    @property
    def decision(self) -> Decision | None:
        """The word of a rollout policy, None of another one."""
        return _DECISIONS.get(self.verdict, Decision.HOLD) if self.rollout else None

    @property
    def questions(self) -> frozenset[int]:
        """The questions that the policy asks something about."""
        return frozenset(r.question for r in self.requirements if r.question)

    @property
    def broken(self) -> list[Requirement]:
        """The requirements that have examples of what broke them."""
        return [r for r in self.requirements if r.examples]
