"""A comparison of accuracy arms as tables: the claims, what supports them, where the loss is, and what more samples would show."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kvverify.events import Event, Verdict
from kvverify.events_accuracy import DifferenceMeasured
from kvverify.reasons import Reason, worst
from kvverify.report.accuracy_plot import score_picture
from kvverify.report.live import Live
from kvverify.report.section import LiveCase, Section
from kvverify.report.suite_mean import mean_name, scope_parts
from kvverify.report.words import duration, plural
from kvverify.verdicts_compare import (
    READ_EFFECTS,
    Compared,
    arm_reasons,
    check_reasons,
    claim_reasons,
    equivalent,
    figures,
    flagged,
    in_points,
    pairing_reasons,
    points,
)

NUMBERS = ["difference", "interval", "base score", "arm score", "n", "missing", "b", "c", "discordance"]


def compare_report(seen: list[Event]) -> Live:
    """Return the tables of a comparison."""
    compared = Compared.of(seen)
    made = [make(compared) for make in SECTIONS]
    return Live(
        _line(compared),
        [s for s in made if s.rows],
        _cases(compared),
        _gaps(compared),
        kind="accuracy",
        measured=[*compared.arms.values(), *compared.paired, *compared.measured, *compared.flips],
    )


def _line(compared: Compared) -> str:
    if not compared.claims:
        return f"{plural(len(compared.arms), 'arm')}, none compared"
    return "; ".join(f"{e.arm} against {e.base}, {_claim(e)}: {figures(e)}{_flag(e)}" for e in compared.claims)


def _claims(compared: Compared) -> Section:
    rows = [
        [
            *(e.arm, e.base, e.effect, str(_verdict(claim_reasons(compared, e))), _flags(e)),
            *(*_numbers(e), _mean_of(compared, e), e.method or "n/a"),
            *("n/a" if e.undefined else text for text in (f"{e.z:.2f}", _p(e.p_noninferior))),
            _p(e.p_mcnemar),
        ]
        for e in compared.claims
    ]
    head = ["arm", "against", "effect", "verdict", "flag", *NUMBERS, "score", "method", "z", "p not worse", "p differs"]
    margins = dict.fromkeys(in_points(e.margin) for e in compared.claims)
    caption = (
        f"Primary. The claim: a loss of less than {', '.join(margins)}, one-sided. b: only the base is right, c: only the arm. Scores and "
        "differences in points; intervals as wide as the test is strict. «differs»: the margin is kept, and yet the arms are not the same. «equivalent»: no "
        "gain as large as the margin either (both one-sided tests)."
    )
    last = len(head)
    numbers = frozenset([*range(5, 5 + len(NUMBERS)), *range(last - 3, last)])
    return Section("Claims", caption, head, rows, numbers, brief=True)


def _size(compared: Compared) -> Section:
    rows = [
        [
            *(e.arm, e.base, f"{e.pairs:,}", f"{e.clusters:,}", f"{e.design_effect:.2f}", f"{e.power_reached:.0%}"),
            *(_count(n) for n in (e.needed, e.needed_textbook, e.needed_at_loss, e.needed_to_differ)),
            "n/a" if e.undefined else f"{100 * e.smallest_margin:.2f}",
        ]
        for e in compared.claims
        if e.pairs
    ]
    head = [
        "arm",
        "against",
        "pairs",
        "independent",
        "design effect",
        "power",
        "needed",
        "by the textbook",
        "needed at this loss",
        "to differ",
        "smallest margin",
    ]
    powers = ", ".join(dict.fromkeys(f"{e.power:.0%}" for e in compared.claims))
    caption = (
        f"Power: the chance that so many pairs show the margin if the arm is no worse. Pairs needed for {powers}: if it is no worse, by the "
        "test that decides and by the textbook, whose number is too small where few pairs differ; if the loss seen is the true one; "
        "and to show that there is a difference as large as the one seen. Smallest margin, in points: what could be shown if nothing differed."
    )
    return Section("What the samples can show", caption, head, rows, frozenset(range(2, 11)))


def _checks(compared: Compared) -> Section:
    words = {"again": "the base asked again", "control": "control, must score lower"}
    rows = [
        [e.arm, e.base, words[e.effect], str(_verdict(check_reasons(e))), *_numbers(e), _p(e.p_mcnemar)]
        for e in compared.measured
        if e.effect in words
    ]
    head = ["arm", "against", "what", "verdict", *NUMBERS, "p differs"]
    caption = "Whether claims can be made: the base must agree with itself, and a scrambled cache must lower the score."
    return Section("Checks", caption, head, rows, frozenset(range(4, 5 + len(NUMBERS))), brief=True)


def _flips(compared: Compared) -> Section:
    rows = [
        [
            *(e.arm, e.base, f"{e.pairs:,}", f"{e.rate:.2%}", f"{e.floor:.2%}", points(e.excess)),
            f"{points(e.low)} to {points(e.high)} ({e.confidence:.0%})",
        ]
        for e in compared.flips
    ]
    head = ["arm", "against", "pairs", "flips", "floor", "excess", "interval"]
    caption = (
        "Answers whose score changes, and how many more than when the base is asked again. Equal scores can hide flips."
    )
    return Section("Flips", caption, head, rows, frozenset(range(2, 7)))


def _tasks(compared: Compared) -> Section:
    found = [(e, *scope_parts(e.scope)) for e in compared.measured if not e.primary]
    own = sorted(((e, task) for e, task, length in found if task and length is None), key=lambda x: x[0].difference)
    order = {claim.arm: n for n, claim in enumerate(compared.claims)}
    rows = [
        [task, e.arm, e.base, *_numbers(e), _p(e.p_mcnemar), _p(e.p_holm), "differs" if e.p_holm < e.alpha else "–"]
        for e, task in sorted(own, key=lambda x: order.get(x[0].arm, 0))
    ]
    head = ["task", "arm", "against", *NUMBERS, "p differs", "p by Holm", "flag"]
    caption = "Secondary: where the loss is, the largest first. Holm's p is adjusted for all tasks; an interval here decides nothing."
    return Section("Tasks by loss", caption, head, rows, frozenset(range(3, 5 + len(NUMBERS))))


def _lengths(compared: Compared) -> Section:
    found = [(e, *scope_parts(e.scope)) for e in compared.measured if not e.primary]
    own = [(e, length) for e, task, length in found if not task and length is not None]
    rows = [[f"{n:,}", e.arm, e.base, *_numbers(e), _p(e.p_mcnemar)] for e, n in own]
    head = ["length", "arm", "against", *NUMBERS, "p differs"]
    means = ", ".join(dict.fromkeys(_mean_of(compared, e) for e, _ in own))
    caption = f"Secondary: each length by itself, {means}."
    numbers = frozenset([0, *range(3, 4 + len(NUMBERS))])
    return Section("Lengths", caption, head, rows, numbers, picture=score_picture(own))


def _cells(compared: Compared) -> Section:
    found = [(e, *scope_parts(e.scope)) for e in compared.measured if not e.primary]
    rows = [[t, f"{n:,}", e.arm, e.base, *_numbers(e)] for e, t, n in found if t and n is not None]
    head = ["task", "length", "arm", "against", *NUMBERS]
    numbers = frozenset([1, *range(4, 4 + len(NUMBERS))])
    return Section("Tasks and lengths", "Secondary: each task at each length.", head, rows, numbers)


def _arms(compared: Compared) -> Section:
    rows = [
        [
            *(e.label, e.role, e.suite, f"{e.samples:,}", f"{e.missing:,}", "yes" if e.finished else "no"),
            "n/a" if e.missing == e.samples else f"{100 * e.score:.2f}",
            f"{e.format_errors:,}",
            *(duration(t) if t else "–" for t in (e.ttft, e.itl)),
            *(e.cache_read or "not stated", f"{e.gates - e.gates_open:,} of {e.gates:,}" if e.gates else "–"),
            *(e.path, e.events_hash[:16]),
        ]
        for e in compared.arms.values()
    ]
    head = ["arm", "role", "suite", "samples", "missing", "finished", "score", "format errors", "TTFT", "ITL"]
    head += ["read from the cache", "proofs of the tier", "run", "SHA-256 of its log"]
    caption = "Scores are plain means over tasks and lengths of what has a score; medians of times."
    return Section("Arms", caption, head, rows, frozenset((3, 4, 6, 7, 8, 9)))


def _identity(compared: Compared) -> Section:
    rows = [
        [e.variable, e.base, e.arm, e.base_value, e.arm_value, "declared" if e.declared else "NOT DECLARED"]
        for e in compared.differed
    ]
    differing = {e.variable for e in compared.differed}
    base = next((e for e in compared.arms.values() if e.role == "base"), None)
    rows += (
        [
            [name, base.label, "all", str(v), "the same", "–"]
            for name, v in base.identity.items()
            if name not in differing
        ]
        if base
        else []
    )
    head = ["variable", "base", "arm", "of the base", "of the arm", "may differ"]
    return Section("Identity", "Everything that decides scores: what differs first.", head, rows)


SECTIONS: list[Callable[[Compared], Section]] = [
    _claims,
    _checks,
    _flips,
    _size,
    _tasks,
    _lengths,
    _cells,
    _arms,
    _identity,
]


def _cases(compared: Compared) -> list[LiveCase]:
    cases = [_case("arm", arm.label, arm_reasons(arm)) for arm in compared.arms.values()]
    cases += [_case("pairing", f"{e.arm} and {e.base}", pairing_reasons(e)) for e in compared.paired]
    checks = [e for e in compared.measured if e.effect in ("again", "control")]
    cases += [_case("check", f"{e.arm} against {e.base}", check_reasons(e), figures(e)) for e in checks]
    for e in compared.claims:
        cases.append(_case("claim", f"{e.arm} against {e.base}, {_claim(e)}", claim_reasons(compared, e), figures(e)))
    return cases


def _case(group: str, name: str, reasons: Iterable[Reason], numbers: str = "") -> LiveCase:
    known = list(reasons)
    return LiveCase(group, name, _verdict(known), [r.text for r in known], numbers, family="accuracy")


def _gaps(compared: Compared) -> list[str]:
    """Return what the reader could believe to be shown and is not."""
    roles = {e.role for e in compared.arms.values()}
    found = []
    if "control" not in roles:
        arms = dict.fromkeys(e.arm for e in compared.claims if e.effect in READ_EFFECTS)
        found += [f"{arm}: cached reads not shown by a control" for arm in arms]
    if "again" not in roles and compared.claims:
        found.append("no run of the base asked again: what changes by itself is not known")
    for e in compared.claims:
        base = compared.arms.get(e.base)
        if e.effect == "tier" and base is not None and base.identity.get("tier") == "none":
            found.append(
                f"{e.arm} against {e.base}: {e.base} computed its prompts, so the difference is that of a hit as well; "
                "an arm with --tier hbm as its base shows the tier alone"
            )
    for given in dict.fromkeys(e.given for e in compared.claims if e.given):
        found.append(f"samples share {given}, taken as given: claims hold for nothing else, other texts may lose more")
    for arm in compared.arms.values():
        if arm.missing and arm.finished:
            found.append(
                f"{arm.label}: {arm.missing:,} of {arm.samples:,} samples have no score; claims hold for the worst of them"
            )
        if arm.repeats:
            found.append(f"{arm.label}: {arm.repeats:,} questions stand in the plan twice; each counts once")
    notes: dict[str, list[str]] = {}
    for arm in compared.arms.values():
        for note in arm.notes:
            notes.setdefault(note, []).append(arm.label)
    found += [f"{', '.join(labels)}: {note}" for note, labels in notes.items()]
    kept = "the margin is kept, and yet the arms are not the same"
    found += [f"{e.arm} against {e.base}: {kept} (p {e.p_mcnemar:.2g})" for e in compared.claims if flagged(e)]
    return found


def _claim(e: DifferenceMeasured) -> str:
    return f"{e.effect}, less than {in_points(e.margin)}"


def _flags(e: DifferenceMeasured) -> str:
    return ", ".join(name for name, holds in (("differs", flagged), ("equivalent", equivalent)) if holds(e)) or "–"


def _flag(e: DifferenceMeasured) -> str:
    return f", flagged: the arms are not the same (p {e.p_mcnemar:.2g})" if flagged(e) else ""


def _mean_of(compared: Compared, e: DifferenceMeasured) -> str:
    """Return the name of the mean that a scope over tasks is: of the tasks that were measured there."""
    _, length = scope_parts(e.scope)
    same = [scope_parts(m.scope) for m in compared.measured if (m.base, m.arm) == (e.base, e.arm)]
    tasks = {task for task, n in same if task and n == length}
    return mean_name(tasks) if tasks else "mean"


def _numbers(e: DifferenceMeasured) -> list[str]:
    """Return what stands under NUMBERS."""
    if not e.pairs:
        return [*["n/a"] * 4, "0", f"{e.missing:,}", *["n/a"] * 3]
    counts = [f"{n:,}" if n >= 0 else "–" for n in (e.base_only, e.arm_only)]
    interval = "n/a" if e.undefined else f"{points(e.low)} to {points(e.high)} ({e.confidence:.0%})"
    if e.missing and not e.undefined:
        interval += f", at worst {points(e.low_worst)} to {points(e.high_best)}"
    if e.draws:
        interval += f", bootstrap of {e.draws:,}: {points(e.bootstrap_low)} to {points(e.bootstrap_high)}"
    scores = [f"{100 * e.base_score:.2f}", f"{100 * e.arm_score:.2f}"]
    return [points(e.difference), interval, *scores, f"{e.pairs:,}", f"{e.missing:,}", *counts, f"{e.discordance:.2%}"]


def _verdict(reasons: Iterable[Reason]) -> Verdict:
    return worst([Verdict.PASS, *(r.verdict for r in reasons)])


def _p(p: float) -> str:
    return f"{p:.2g}" if p >= 1e-4 else "< 0.0001"


def _count(pairs: int) -> str:
    return "none does" if pairs < 0 else f"{pairs:,}"
