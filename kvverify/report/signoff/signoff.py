"""The sign-off itself: everything that its page, Markdown, JUnit and JSON are written from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvverify.events import Event, Verdict
from kvverify.reasons import worst
from kvverify.report.section import Section
from kvverify.report.signoff.bytemap import Damage, PageMap, byte_map, damage
from kvverify.report.signoff.defects import Defect, Group, defects, grouped, replay_line
from kvverify.report.signoff.evidence import tables
from kvverify.report.signoff.gaps import Gaps, gaps
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.plots import BenchPoint, plots
from kvverify.report.signoff.questions import Question, questions
from kvverify.report.signoff.requirement import Judgement
from kvverify.report.signoff.subject import Subject, subject
from kvverify.report.signoff.svg import Figure
from kvverify.report.words import plural

MOST_MAPS = 3
_OPEN = {"not met": (Verdict.FAIL,), "not decided": (Verdict.INCONCLUSIVE, Verdict.ERROR)}
PageOf = Callable[[dict[str, Any], str], PageMap | None]  # (recipe, name of a layer or "") -> its page


@dataclass(frozen=True, slots=True)
class Support:
    """A run beside the four questions: self-test, codecs, doctor, accuracy of one arm."""

    run: str
    command: str
    verdict: Verdict
    reasons: Sequence[str]


@dataclass(frozen=True, slots=True)
class Signoff:
    """``runs`` are all runs as they are; ``judgement`` is None without a policy. ``made`` is when, in words."""

    verdict: Verdict
    line: str
    made: str
    runs: Sequence[Run]
    subject: Subject
    questions: Sequence[Question]
    support: Sequence[Support]
    judgement: Judgement | None
    gaps: Gaps
    sections: Sequence[Section]
    maps: Sequence[Figure]
    plots: Sequence[Figure]
    defects: Sequence[Defect]

    @property
    def rollout(self) -> bool:
        """Whether two arms of a rollout were compared, which asks none of the four questions."""
        return self.judgement is not None and self.judgement.rollout

    @property
    def answered(self) -> list[Question]:
        """The questions that the page answers: of a rollout those that a run looked at all the same."""
        return [q for q in self.questions if q.looked or not self.rollout]

    @property
    def groups(self) -> list[Group]:
        """The failures, one kind after the other."""
        return grouped(self.defects)

    @property
    def headline(self) -> str:
        """What stands above everything: the decision of a rollout, else the verdict."""
        decision = self.judgement.decision if self.judgement else None
        return str(decision or self.verdict)


def make_signoff(
    runs: Sequence[Run],
    *,
    made: str,
    judged: Sequence[Run] | None = None,
    judgement: Judgement | None = None,
    known: Callable[[Run, Event], str] = lambda _run, _event: "",
    page_of: PageOf = lambda _recipe, _layer: None,
    bench: Sequence[BenchPoint] = (),
) -> Signoff:
    """Return the sign-off of ``runs``.

    Args:
        runs: all runs as they are.
        made: when the sign-off was made, in words.
        judged: the same runs without what the policy knows already; the questions are answered from these.
        judgement: the policy's answer. It decides; without one the worst of the questions and of the other runs does.
        known: says why the policy excuses an event, empty where it does not.
        page_of: makes the map of a page from a recipe.
        bench: points of ``kvverify codecs bench``.
    """
    decided = runs if judged is None else judged
    tested, asked = subject(runs), _with_known(questions(decided), runs, decided)
    support = _support(decided)
    verdict = judgement.verdict if judgement else worst([*(q.verdict for q in asked), *(s.verdict for s in support)])
    if not runs:
        verdict = Verdict.INCONCLUSIVE
    return Signoff(
        verdict=verdict,
        line=_line(verdict, asked, judgement),
        made=made,
        runs=runs,
        subject=tested,
        questions=asked,
        support=support,
        judgement=judgement,
        gaps=gaps(runs, asked, tested, rollout=judgement is not None and judgement.rollout),
        sections=tables(runs),
        maps=_maps(runs, page_of),
        plots=plots(runs, bench),
        defects=defects(runs, known),
    )


def _with_known(asked: Sequence[Question], runs: Sequence[Run], decided: Sequence[Run]) -> list[Question]:
    """Return the answers, each that known findings changed with what it would be with them."""
    if all(len(run.events) == len(kept.events) for run, kept in zip(runs, decided, strict=True)):
        return list(asked)
    return [
        q
        if q.answer == full.answer
        else replace(q, answer=f"Known findings left out: {q.answer} With them: {full.answer}")
        for q, full in zip(asked, questions(runs), strict=True)
    ]


def _line(verdict: Verdict, asked: Sequence[Question], judgement: Judgement | None) -> str:
    if judgement:
        open_ = [r for r in judgement.requirements if r.verdict is not Verdict.PASS]
        met = len(judgement.requirements) - len(open_)
        excused = sum(not e.expired and e.matched > 0 for e in judgement.excuses)
        parts = [f"policy {judgement.policy}: {met} of {plural(len(judgement.requirements), 'requirement')} met"]
        for words, verdicts in _OPEN.items():
            named = [r.name for r in open_ if r.verdict in verdicts]
            parts += [f"{words}: {', '.join(named)}"] if named else []
        parts += [f"{plural(excused, 'finding')} excused as known"] if excused else []
        return "; ".join(parts)
    open_questions = [str(q.number) for q in asked if not q.looked]
    if open_questions:
        return f"without a policy all four questions decide; not looked at: {', '.join(open_questions)}"
    return "without a policy the worst of the four questions and of the other runs decides"


def _support(runs: Sequence[Run]) -> list[Support]:
    answering = ("roundtrip", "tier-diff", "isolation", "accuracy compare")
    return [
        Support(
            run.name, run.command or "unknown", run.verdict, [f"{r.verdict}: {r.text}" for r in run.summary.reasons]
        )
        for run in runs
        if run.command not in answering
    ]


def _maps(runs: Sequence[Run], page_of: PageOf) -> list[Figure]:
    """Return for each kernel the map of the page with the least damage, which tells most; one that is all damaged only alone.

    Without a failure that of a page that was compared.
    """
    hurt: dict[str, tuple[float, PageMap, Damage]] = {}
    for run in runs:
        for failure in run.summary.failures:
            document = run.failures.get(failure.event.path)
            first = dict(dict((document or {}).get("outcome") or {}).get("first") or {})
            if document is None or not first.get("layer"):
                continue
            page = page_of(dict(document.get("recipe") or {}), str(first["layer"]))
            if page is not None:
                own = damage(document, page, replay_line(run, failure.event))
                share, kernel = own.share(page), failure.event.kernel
                if kernel not in hurt or share < hurt[kernel][0]:
                    hurt[kernel] = share, page, own
    found = sorted(hurt.values(), key=lambda item: (item[0], -len(item[1].fields)))
    shown = [item for item in found if item[0] < 1][:MOST_MAPS] or found[:1]
    return [byte_map(page, own, f"map{n}") for n, (_, page, own) in enumerate(shown)] or _whole_page(runs, page_of)


def _whole_page(runs: Sequence[Run], page_of: PageOf) -> list[Figure]:
    for run in runs:
        recipes = run.summary.start.options.get("recipes") if run.summary.start else None
        for recipe in recipes if isinstance(recipes, list) else []:
            page = page_of(recipe, "") if isinstance(recipe, dict) else None
            if page is not None:
                return [byte_map(page, None, "map0")]
    return []
