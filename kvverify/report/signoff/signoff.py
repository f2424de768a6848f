"""The sign-off itself: everything that its page, Markdown, JUnit and JSON are written from."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.events import CodecCompared, Event, FailureFound, FaultPlanted, RunStarted, Verdict
from kvverify.reasons import worst
from kvverify.report.section import Section
from kvverify.report.signoff.bytemap import PageMap, byte_map, damage
from kvverify.report.signoff.evidence import tables
from kvverify.report.signoff.gaps import Gaps, gaps
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.plots import BenchPoint, plots
from kvverify.report.signoff.questions import Question, questions
from kvverify.report.signoff.requirement import Judgement
from kvverify.report.signoff.subject import Subject, subject
from kvverify.report.signoff.svg import Figure
from kvverify.verdicts import differs

MOST_MAPS = 3
_SIZES = ("requests", "rounds", "concurrency", "max_tokens", "long_requests", "sessions")  # what a live run is made of
PageOf = Callable[[dict[str, Any], str], PageMap | None]  # (recipe, name of a layer or "") -> its page


@dataclass(frozen=True, slots=True)
class Defect:
    """One failure. ``replay`` is the command that shows it again, or why there is none."""

    run: str
    title: str
    headline: str
    details: Sequence[str]
    replay: str
    known: str = ""


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
    tested, asked = subject(runs), questions(decided)
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
        gaps=gaps(runs, asked, tested),
        sections=tables(runs),
        maps=_maps(runs, page_of),
        plots=plots(runs, bench),
        defects=_defects(runs, known),
    )


def _line(verdict: Verdict, asked: Sequence[Question], judgement: Judgement | None) -> str:
    if judgement:
        open_ = [r for r in judgement.requirements if r.verdict is not Verdict.PASS]
        met = len(judgement.requirements) - len(open_)
        excused = sum(not e.expired and e.matched > 0 for e in judgement.excuses)
        tail = f"; {excused} known findings excused" if excused else ""
        return f"policy {judgement.policy}: {met} of {len(judgement.requirements)} requirements met{tail}"
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


def _defects(runs: Sequence[Run], known: Callable[[Run, Event], str]) -> list[Defect]:
    found = []
    for run in runs:
        for failure in run.summary.failures:
            e = failure.event
            again = f", found {failure.times} times" if failure.times > 1 else ""
            details = [line for detail in e.details for line in detail.splitlines()]
            title = f"{e.kernel} on {e.layout}: {e.kind} at step {e.step}{again}"
            found.append(Defect(run.name, title, e.headline, details, replay_line(run, e), known(run, e)))
        found += [_survival(run, e, known) for e in run.of(FaultPlanted) if e.outcome == "survived"]
        found += [_difference(run, e, known) for e in run.of(CodecCompared) if differs(e)]
        found += _live(run)
    return found


def replay_line(run: Run, e: FailureFound) -> str:
    """Return the command that replays a failure; where its file is not in the run folder, that it is not."""
    if run.failures.get(e.path) is None:
        return f"no replay: {e.path or 'a failure file'} is not in the run folder"
    return f"kvverify replay {shlex.quote(str(run.path / e.path))}"


def _survival(run: Run, e: FaultPlanted, known: Callable[[Run, Event], str]) -> Defect:
    title = f"planted fault {e.fault} {e.name} survived with {e.kernel}"
    live = run.summary.start.options.get("live") if run.summary.start else None
    replay = f"kvverify roundtrip --kernel {shlex.quote(e.kernel)} --plant {e.fault}"
    if live:
        replay = f"kvverify selftest --live {shlex.quote(str(live))}"
    return Defect(run.name, title, e.reason or e.headline, [], replay, known(run, e))


def _difference(run: Run, e: CodecCompared, known: Callable[[Run, Event], str]) -> Defect:
    title = f"{e.library} {e.format}, head size {e.head_size}, {e.what}"
    return Defect(run.name, title, e.headline, [e.note] if e.note else [], "kvverify codecs verify", known(run, e))


def _live(run: Run) -> list[Defect]:
    """Return the failed checks of a live run; what replays them is the same command against the same server."""
    start = run.summary.start
    if run.summary.live is None or start is None:
        return []
    again = _again(start)
    failed = [case for case in run.summary.live.cases if case.verdict is Verdict.FAIL]
    return [
        Defect(run.name, f"{c.group}: {c.name}", c.messages[0] if c.messages else "", c.messages[1:], again)
        for c in failed
    ]


def _again(start: RunStarted) -> str:
    """Return the command that makes a run of answers or scores again; it needs the same servers, or the same arms."""
    options, parts = start.options, ["kvverify", *start.command.split()]
    flags: tuple[str, ...] = ("url", *_SIZES)
    if start.command == "accuracy compare":
        parts += [str(path) for path in [options.get("base"), *(options.get("runs") or ())]]
        flags = ("again", "tier", "control", "margin")
    for flag in flags:
        value = options.get(flag)
        for one in value if isinstance(value, list | tuple) else [value]:
            parts += [] if one is None else [f"--{flag.replace('_', '-')}", str(one)]
    return shlex.join([*parts, "--seed", str(start.seed)])


def _maps(runs: Sequence[Run], page_of: PageOf) -> list[Figure]:
    """Return the map of the first damaged page of each kernel; without a failure that of a page that was compared."""
    figures: list[Figure] = []
    kernels: set[str] = set()
    for run in runs:
        for failure in run.summary.failures:
            document = run.failures.get(failure.event.path)
            first = dict(dict((document or {}).get("outcome") or {}).get("first") or {})
            if document is None or failure.event.kernel in kernels or not first.get("layer"):
                continue
            page = page_of(dict(document.get("recipe") or {}), str(first["layer"]))
            if page is not None and len(figures) < MOST_MAPS:
                kernels.add(failure.event.kernel)
                hurt = damage(document, page, replay_line(run, failure.event))
                figures.append(byte_map(page, hurt, f"map{len(figures)}"))
    return figures or _whole_page(runs, page_of)


def _whole_page(runs: Sequence[Run], page_of: PageOf) -> list[Figure]:
    for run in runs:
        recipes = run.summary.start.options.get("recipes") if run.summary.start else None
        for recipe in recipes if isinstance(recipes, list) else []:
            page = page_of(recipe, "") if isinstance(recipe, dict) else None
            if page is not None:
                return [byte_map(page, None, "map0")]
    return []
