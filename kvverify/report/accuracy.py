"""The run of one accuracy arm as tables: scores by task and length, what is missing, how fast, and what was read from the cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

from kvverify.events import Event, Verdict
from kvverify.events_accuracy import ArmStarted, CacheReadStated, ContextsScored, SampleAnswered, SampleLeftOut
from kvverify.reasons import worst
from kvverify.report.accuracy_compare import compare_report
from kvverify.report.live import Live
from kvverify.report.section import LiveCase, Section
from kvverify.report.suite_mean import mean_name
from kvverify.report.words import duration, plural
from kvverify.verdicts_accuracy import is_accuracy_run, run_reasons
from kvverify.verdicts_compare import is_compare

MOST_REASONS = 20
MOST_CONTEXTS = 20


@dataclass(frozen=True, slots=True)
class _Arm:
    """The last answer to every sample, and what was left out; ``planned`` maps (task, length) to a number."""

    start: ArmStarted | None
    planned: dict[tuple[str, int], int]
    scored: dict[tuple[str, int], list[SampleAnswered]]
    failed: dict[tuple[str, int], list[SampleAnswered]]
    left_out: dict[tuple[str, int], list[SampleLeftOut]]
    cache: CacheReadStated | None
    contexts: list[ContextsScored] = field(default_factory=list)  # the last of each task

    @property
    def cells(self) -> list[tuple[str, int]]:
        """Task and length of everything that was planned or asked, in that order."""
        return list(dict.fromkeys([*self.planned, *self.scored, *self.failed, *self.left_out]))

    @property
    def tasks(self) -> list[str]:
        """The tasks, in order."""
        return list(dict.fromkeys(task for task, _ in self.cells))

    @property
    def lengths(self) -> list[int]:
        """The lengths, the shortest first."""
        return sorted({length for _, length in self.cells})

    def score(self, task: str, length: int) -> float | None:
        """Return the mean score of one task at one length, None where nothing was scored."""
        own = self.scored.get((task, length))
        return fmean(e.score for e in own) if own else None

    def mean(self, cells: Iterable[tuple[str, int]]) -> float | None:
        """Return the plain mean of the scores of cells, None where one of them has none."""
        scores = [self.score(*cell) for cell in cells]
        known = [s for s in scores if s is not None]
        return fmean(known) if known and len(known) == len(scores) else None


def accuracy_report(events: Iterable[Event]) -> Live | None:
    """Return the tables of an accuracy run or of a comparison, None of another run."""
    seen = list(events)
    if is_compare(seen):
        return compare_report(seen)
    if not is_accuracy_run(seen):
        return None
    arm = _arm_of(seen)
    made = [make(arm) for make in SECTIONS]
    return Live(_line(arm), [s for s in made if s.rows], _cases(seen, arm), _gaps(arm), kind="accuracy")


def _arm_of(seen: Sequence[Event]) -> _Arm:
    start = next((e for e in reversed(seen) if isinstance(e, ArmStarted)), None)
    last = {(e.task, e.length, e.index): e for e in seen if isinstance(e, SampleAnswered | SampleLeftOut)}
    planned: dict[tuple[str, int], int] = {}
    for name, count in (start.planned if start else {}).items():
        task, _, length = name.rpartition("/")
        planned[task, int(length) if length.isdecimal() else 0] = count
    arm = _Arm(start, planned, {}, {}, {}, None)
    for e in last.values():
        if isinstance(e, SampleLeftOut):
            arm.left_out.setdefault((e.task, e.length), []).append(e)
        else:
            (arm.failed if e.error else arm.scored).setdefault((e.task, e.length), []).append(e)
    cache = next((e for e in reversed(seen) if isinstance(e, CacheReadStated)), None)
    contexts = {e.task: e for e in seen if isinstance(e, ContextsScored)}
    return _Arm(start, planned, arm.scored, arm.failed, arm.left_out, cache, list(contexts.values()))


def _line(arm: _Arm) -> str:
    if arm.start is None:
        return "no arm was measured"
    scored, planned = sum(map(len, arm.scored.values())), sum(arm.planned.values())
    mean = arm.mean(arm.cells)
    words = [f"arm {arm.start.label}, suite {arm.start.suite}: {scored:,} of {plural(planned, 'sample')} scored"]
    words.append(f"{mean_name(arm.tasks)} {_points(mean)}")
    words += [f"{e.task} over {plural(len(e.contexts), 'context')} {_total(e)}" for e in arm.contexts]
    if wrong := _format_errors(arm):
        words.append(plural(sum(wrong.values()), "answer in a wrong format"))
    return ", ".join(words)


def _scores(arm: _Arm) -> Section:
    lengths = arm.lengths
    rows = [
        [task, *(_points(arm.score(task, n)) for n in lengths), _points(arm.mean(_of_task(arm, task)))]
        for task in arm.tasks
    ]
    if rows:
        by_length = [[cell for cell in arm.cells if cell[1] == n] for n in lengths]
        names = {mean_name(task for task, _ in cells) for cells in by_length}
        name = names.pop() if len(names) == 1 else "mean of the tasks there"
        rows.append([name, *(_points(arm.mean(cells)) for cells in by_length), _points(arm.mean(arm.cells))])
    head = ["task", *(_length(n) for n in lengths), "mean"]
    caption = "Scores in points. A mean is the plain one of its parts, and there is none where a part has no score."
    return Section("Scores", caption, head, rows, frozenset(range(1, len(head))), brief=True)


def _samples(arm: _Arm) -> Section:
    rows = []
    for task, length in arm.cells:
        cell = (task, length)
        scored, failed, out = (len(of.get(cell, ())) for of in (arm.scored, arm.failed, arm.left_out))
        planned = arm.planned.get(cell, scored + failed + out)
        own = arm.scored.get(cell, [])
        rows.append(
            [
                *(task, _length(length)),
                *(f"{n:,}" for n in (planned, scored, failed, out, max(0, planned - scored - failed - out))),
                f"{len({e.cluster for e in own if e.cluster}) + sum(not e.cluster for e in own):,}",
                f"{sum(bool(e.format_error) for e in own):,}",
                _middle([e.prompt_tokens for e in own if e.prompt_tokens >= 0]),
                *(_time([e.ttft for e in own]), _time([e.itl for e in own])),
            ]
        )
    head = ["task", "length", "planned", "scored", "failed", "left out", "not asked", "documents", "format errors"]
    head += ["prompt tokens", "TTFT", "ITL"]
    caption = "Samples of one document or haystack count as one. Medians of prompt tokens as the server counts them, and of times."
    return Section("Samples", caption, head, rows, frozenset(range(2, len(head))))


def _reads(arm: _Arm) -> Section:
    rows = []
    if (e := arm.cache) is not None:
        counts = (e.decode_steps, e.hit_tokens, e.continued_tokens, e.raw_tokens)
        rows = [[f"{e.samples:,}", *("not told" if n < 0 else f"{n:,}" for n in counts), e.evidence]]
    head = ["samples", "decode steps", "hit tokens", "continued", "raw tokens", "evidence"]
    caption = "Decode steps, tokens after a prefix hit and later prefill chunks read the cache as it is stored; raw tokens do not."
    return Section("What was read from the cache", caption, head, rows, frozenset(range(5)))


def _aspects(arm: _Arm) -> Section:
    found: dict[tuple[str, str], list[float]] = {}
    for (task, _), own in arm.scored.items():
        for e in own:
            for name, value in e.aspects.items():
                found.setdefault((task, name), []).append(value)
    rows = [[task, name, f"{len(v):,}", _points(fmean(v))] for (task, name), v in found.items()]
    caption = "Further figures of the answers, in points."
    return Section("Aspects", caption, ["task", "aspect", "samples", "mean"], rows, frozenset((2, 3)))


def _contexts(arm: _Arm) -> Section:
    rows = [
        [e.task, _total(e), *(f"{n:,}" for n in (len(e.contexts), e.empty, e.samples, e.missing))] for e in arm.contexts
    ]
    head = ["task", "total", "contexts", "contexts without a score", "samples", "missing"]
    caption = (
        "Rubrics: a sample's score is the share of its rubrics that passed, a context's the mean of its samples, and the total the mean "
        "of the contexts, in points."
    )
    return Section("Rubrics over contexts", caption, head, rows, frozenset(range(1, 6)), brief=True)


def _each_context(arm: _Arm) -> Section:
    lowest = sorted(((score, e.task, name) for e in arm.contexts for name, score in e.contexts.items()))
    rows = [[task, name, _points(score)] for score, task, name in lowest[:MOST_CONTEXTS]]
    more = f", {MOST_CONTEXTS} of {len(lowest):,}" if len(lowest) > MOST_CONTEXTS else ""
    caption = f"The score of each context in points, the lowest first{more}."
    return Section("Contexts", caption, ["task", "context", "score"], rows, frozenset((2,)))


def _missing(arm: _Arm) -> Section:
    counts = Counter([("failed", e.error) for own in arm.failed.values() for e in own])
    counts += Counter([("left out", e.reason) for own in arm.left_out.values() for e in own])
    counts += Counter({("format error", why): n for why, n in _format_errors(arm).items()})
    rows = [[what, f"{n:,}", why] for (what, why), n in counts.most_common(MOST_REASONS)]
    caption = "Why samples have no score, and what is wrong with the form of answers that have one; the most frequent reasons."
    return Section("Missing samples and format errors", caption, ["what", "samples", "reason"], rows, frozenset((1,)))


def _identity(arm: _Arm) -> Section:
    rows: list[list[str]] = []
    if arm.start is not None:
        facts = {"label": arm.start.label, "suite": arm.start.suite, "kind": arm.start.kind, **arm.start.identity}
        rows = [[name, str(value)] for name, value in facts.items()]
        rows += [["note", note] for note in arm.start.notes]
    return Section(
        "Arm", "What decides the scores. Arms are compared where one thing differs.", ["what", "value"], rows
    )


SECTIONS: list[Callable[[_Arm], Section]] = [
    _scores,
    _contexts,
    _each_context,
    _samples,
    _reads,
    _aspects,
    _missing,
    _identity,
]


def _cases(seen: list[Event], arm: _Arm) -> list[LiveCase]:
    reasons = run_reasons(seen)
    verdict = worst([Verdict.PASS, *(r.verdict for r in reasons)])
    name = arm.start.label if arm.start else "arm"
    return [LiveCase("arm", name, verdict, [r.text for r in reasons], _line(arm), family="accuracy")]


def _gaps(arm: _Arm) -> list[str]:
    return list(arm.start.notes) if arm.start else []


def _of_task(arm: _Arm, task: str) -> list[tuple[str, int]]:
    return [cell for cell in arm.cells if cell[0] == task]


def _format_errors(arm: _Arm) -> Counter[str]:
    return Counter(e.format_error for own in arm.scored.values() for e in own if e.format_error)


def _total(e: ContextsScored) -> str:
    return "n/a" if e.undefined else _points(e.total)


def _points(score: float | None) -> str:
    return "n/a" if score is None else f"{100 * score:.2f}"


def _length(tokens: int) -> str:
    return f"{tokens:,}" if tokens else "any length"


def _middle(values: Sequence[int]) -> str:
    return f"{median(values):,.0f}" if values else "–"


def _time(times: Sequence[float]) -> str:
    known = [t for t in times if t > 0]
    return duration(median(known)) if known else "–"
