"""Before a run: how many samples a claim needs, and what suites of known sizes can show. Parts of 1 unless a name says points.

Sizes are those of Tango's test, by which ``accuracy compare`` decides: they reach the stated power. The textbook's, which published
tables hold, are told beside them; where few answers change they are too small (kvverify.stats.power).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kvverify.errors import UsageError
from kvverify.stats.power import Design, pairs_needed, power_of, smallest_margin
from kvverify.stats.tango import least_pairs

DISCORDANCES = (0.01, 0.02, 0.03, 0.05, 0.10)
KNOWN_SIZES: Mapping[str, int] = {
    "gate of 50 questions": 50,
    "GPQA-Diamond": 198,
    "one RULER task": 500,
    "GSM8K": 1_319,
    "RULER, one length, 13 tasks of 500": 6_500,
    "MMLU": 14_042,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A loss of less than ``margin`` is to be shown at ``alpha`` with probability ``power``, when the true loss is ``loss``."""

    margin: float
    alpha: float
    power: float
    discordance: float
    loss: float = 0.0

    def __post_init__(self) -> None:
        """Refuse what no number of samples can show."""
        if self.loss >= self.margin:
            raise UsageError(
                f"--loss {100 * self.loss:g}: a loss of the margin ({100 * self.margin:g}) or more cannot be shown to be less; "
                "give a smaller one"
            )
        if self.loss > self.discordance:
            raise UsageError(
                f"--discordance {self.discordance:g}: fewer answers change than are lost (--loss {100 * self.loss:g}); give {self.loss:g} or more"
            )


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs by design, None where the discordance is too small for the difference.

    ``non_inferiority`` is the claim of ``accuracy compare``, ``half_alpha`` the same at half of alpha, ``tost`` shows that the arm is
    neither worse nor better, ``mcnemar`` detects a true loss of the margin.
    """

    non_inferiority: int | None
    half_alpha: int | None
    tost: int | None
    mcnemar: int | None


@dataclass(frozen=True, slots=True)
class Needed:
    """What it takes at one discordance: for the test that decides, and by the textbook."""

    discordance: float
    test: Pairs
    textbook: Pairs


@dataclass(frozen=True, slots=True)
class Shows:
    """What a number of samples can show: the smallest margin by discordance, and the power at the one that was asked for."""

    name: str
    pairs: int
    smallest_margin: dict[float, float]
    textbook_margin: dict[float, float]
    power: float


@dataclass(frozen=True, slots=True)
class AccuracyPlan:
    """The answer. ``least_pairs`` is the fewest that can show the margin, even if not one answer changes."""

    question: Question
    least_pairs: int
    needed: list[Needed]
    sizes: list[Shows] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as one JSON document; discordances are keys as text."""
        sizes = [
            {
                **asdict(s),
                "smallest_margin": {f"{psi:g}": margin for psi, margin in s.smallest_margin.items()},
                "textbook_margin": {f"{psi:g}": margin for psi, margin in s.textbook_margin.items()},
            }
            for s in self.sizes
        ]
        return {
            "question": asdict(self.question),
            "least_pairs": self.least_pairs,
            "needed": [asdict(n) for n in self.needed],
            "sizes": sizes,
        }


def accuracy_plan(question: Question, own: Mapping[str, int]) -> AccuracyPlan:
    """Return the plan; ``own`` are further names and numbers of samples, shown beside the known ones."""
    discordances = sorted({*DISCORDANCES, question.discordance})
    sizes = [_shows(name, n, discordances, question) for name, n in {**KNOWN_SIZES, **own}.items()]
    return AccuracyPlan(
        question,
        least_pairs(question.margin, question.alpha),
        [_needed(psi, question) for psi in discordances],
        sorted(sizes, key=lambda s: s.pairs),
    )


def suite_size(tasks: Sequence[Any]) -> int:
    """Return the number of samples of a suite's tasks.

    Raises:
        UsageError: a task whose number is that of its data, which only a run knows.
    """
    open_ = [task.name for task in tasks if not task.samples]
    if open_:
        raise UsageError(f"--suite: the size of {', '.join(open_)} is that of its data; give it with --samples")
    return sum(task.samples * len(task.lengths) for task in tasks)


def _needed(discordance: float, q: Question) -> Needed:
    return Needed(discordance, _pairs(discordance, q, score=True), _pairs(discordance, q, score=False))


def _pairs(discordance: float, q: Question, *, score: bool) -> Pairs:
    def pairs(design: Design, alpha: float) -> int | None:
        if (q.margin if design == "mcnemar" else q.loss) > discordance:
            return None
        return pairs_needed(
            q.margin, discordance, alpha=alpha, power=q.power, design=design, true_difference=-q.loss, score=score
        )

    return Pairs(
        pairs("non-inferiority", q.alpha),
        pairs("non-inferiority", q.alpha / 2),
        pairs("tost", q.alpha),
        pairs("mcnemar", q.alpha),
    )


def _shows(name: str, n: int, discordances: Sequence[float], q: Question) -> Shows:
    def margins(*, score: bool) -> dict[float, float]:
        return {
            psi: smallest_margin(n, psi, alpha=q.alpha, power=q.power, true_difference=-q.loss, score=score)
            for psi in discordances
            if q.loss <= psi
        }

    enough = n >= least_pairs(q.margin, q.alpha)  # fewer show nothing, not even by a lucky gain
    power = power_of(n, q.margin, q.discordance, alpha=q.alpha, true_difference=-q.loss) if enough else 0.0
    return Shows(name, n, margins(score=True), margins(score=False), power)
