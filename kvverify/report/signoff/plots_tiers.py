"""How far the answers of two tiers are apart, where they first part, and where the tokens of each arm came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from kvverify.events import ReplayCompared, RequestAnswered
from kvverify.report.live import TIERS
from kvverify.report.signoff.evidence import counted
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Figure,
    Picture,
    left_out,
    linear,
    logarithmic,
    shown_series,
    steps,
)
from kvverify.report.words import plural
from kvverify.verdicts_live import Proofs

MOST_POSITIONS = 512
_BAR, _BAR_GAP = 18, 10


def logprob_by_position(runs: Sequence[Run]) -> Figure:
    """Return the largest and the median difference of a logprob at each position, up to the first other token."""
    title = "Logprob difference by position"
    by_arm: dict[str, list[list[float]]] = {}
    for run, prefix in _named(runs):
        answers = {(e.arm, e.round, e.request): e for e in run.of(RequestAnswered) if not e.error}
        last = {
            (e.base, e.arm, e.round, e.request): e
            for e in run.of(ReplayCompared)
            if e.what == "answers" and not e.refused
        }
        for e in last.values():
            pair = [answers.get((arm, e.round, e.request)) for arm in (e.base, e.arm)]
            if pair[0] and pair[1]:
                _add_differences(by_arm.setdefault(f"{prefix}{e.arm} against {e.base}", []), pair[0], pair[1])
    by_arm = {name: own for name, own in by_arm.items() if own}
    if not by_arm:
        return Figure(title, "No answers of two arms are among these runs.")
    largest = {name: max(max(column) for column in own) for name, own in by_arm.items()}
    apart = {name: own for name, own in by_arm.items() if largest[name] > 0}
    if not apart:
        return Figure(title, f"All logprobs are equal bit for bit, in {plural(len(by_arm), 'pair')} of arms.")
    told = [f"{name}: largest {largest[name]:.3g} over {len(own)} positions" for name, own in apart.items()]
    equal = [name for name in by_arm if name not in apart]
    words = "; ".join([*told, *([f"equal bit for bit: {', '.join(equal)}"] if equal else [])])
    note = f"Largest (line) and median (marks) absolute difference at each generated token, up to the first other one. {words}."
    shown = shown_series(apart)
    spots = [value for own in shown.values() for column in own for value in (max(column),) if value > 0]
    x = linear(0, max(_last_apart(own) for own in shown.values()), LEFT, WIDTH - RIGHT)
    y = logarithmic(min(spots), max(spots), HEIGHT - BOTTOM, TOP)
    picture = Picture("logprob", title, note)
    picture.frame(x, y, "generated token", "difference of the logprob")
    for number, (name, own) in enumerate(shown.items()):
        _draw_differences(picture, number, name, own, (x, y))
    picture.legend(list(shown))
    return Figure(title, note + left_out(apart), picture.markup())


def _named(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Return the runs that compare answers, each with what stands before the names of its arms: of several runs the run's."""
    own = [run for run in runs if any(e.what == "answers" for e in run.of(ReplayCompared))]
    return [(run, f"{run.name}: " if len(own) > 1 else "") for run in own]


def _last_apart(columns: Sequence[Sequence[float]]) -> int:
    return max((n for n, column in enumerate(columns, 1) if max(column) > 0), default=1)


def _add_differences(columns: list[list[float]], base: RequestAnswered, arm: RequestAnswered) -> None:
    for position, (one, other) in enumerate(
        zip(zip(base.tokens, base.logprobs, strict=False), zip(arm.tokens, arm.logprobs, strict=False), strict=False)
    ):
        if one[0] != other[0] or position >= MOST_POSITIONS:
            return
        if position == len(columns):
            columns.append([])
        columns[position].append(abs(one[1] - other[1]))


def _draw_differences(
    picture: Picture, number: int, name: str, own: Sequence[Sequence[float]], axes: tuple[Axis, Axis]
) -> None:
    x, y = axes
    high = [(x(n), y(max(column))) for n, column in enumerate(own) if max(column) > 0]
    for a, b in steps(high):
        picture.line(*a, *b, f"l{number}")
    every = max(1, len(own) // 64)
    for n, column in list(enumerate(own))[::every]:
        if median(column) > 0 and y.low <= median(column):
            picture.mark(
                x(n),
                y(median(column)),
                number,
                f"{name}, token {n}: median {median(column):.3g}, largest {max(column):.3g}",
            )


def first_divergence(runs: Sequence[Run]) -> Figure:
    """Return at which position the answers of two arms first have another token."""
    title = "First divergence"
    found: dict[str, Counter[int]] = {}
    totals: Counter[str] = Counter()
    longest = 0
    for run, prefix in _named(runs):
        last = {
            (e.base, e.arm, e.round, e.request): e
            for e in run.of(ReplayCompared)
            if e.what == "answers" and not e.refused
        }
        for e in last.values():
            name = f"{prefix}{e.arm} against {e.base}"
            totals[name] += 1
            longest = max(longest, e.positions)
            if e.divergence >= 0:
                found.setdefault(name, Counter())[e.divergence] += 1
    if not totals:
        return Figure(title, "No answers of two arms are among these runs.")
    if not found:
        return Figure(
            title, f"No answer has another token, of {sum(totals.values()):,} in {plural(len(totals), 'pair')} of arms."
        )
    told = [f"{name}: {sum(counts.values())} of {totals[name]} diverge" for name, counts in found.items()]
    same = [name for name in totals if name not in found]
    words = "; ".join([*told, *([f"none diverges: {', '.join(same)}"] if same else [])])
    shown = shown_series(found)
    note = f"Share of answers that have another token by this position. {words}."
    x = linear(0, max(longest, 1), LEFT, WIDTH - RIGHT)
    y = linear(0, 100, HEIGHT - BOTTOM, TOP)
    picture = Picture("divergence", title, note)
    picture.frame(x, y, "generated token", "answers diverged, %")
    for number, (name, counts) in enumerate(shown.items()):
        so_far, spots = 0, [(x(0), y(0))]
        for position, count in sorted(counts.items()):
            spots.append((x(position), y(100 * so_far / totals[name])))
            so_far += count
            spots.append((x(position), y(100 * so_far / totals[name])))
            picture.mark(*spots[-1], number, f"{name}: {so_far} of {totals[name]} by token {position}")
        spots.append((x(x.high), spots[-1][1]))
        for a, b in steps(spots):
            picture.line(*a, *b, f"l{number}")
    picture.legend(list(shown))
    return Figure(title, note + left_out(found), picture.markup())


def tokens_by_tier(runs: Sequence[Run]) -> Figure:
    """Return where the prompt tokens of each arm came from, as the server counts them."""
    title = "Tokens by tier"
    parts = [*TIERS, "computed"]
    rows: list[tuple[str, list[int | None]]] = []
    for run in runs:
        gates = Proofs.of(run.events).by_request.values()
        for arm in dict.fromkeys(e.arm for e in gates):
            own = [e for e in gates if e.arm == arm]
            rows.append(
                (
                    f"{run.name}: {arm}",
                    [*(counted(own, f"{tier}_hit_tokens") for tier in TIERS), counted(own, "computed_tokens")],
                )
            )
    rows = [row for row in rows if any(row[1])]
    if not rows:
        return Figure(title, "No gate with counters is among these runs.")
    words = "; ".join(
        name
        + " "
        + ", ".join(f"{part} {'not counted' if n is None else f'{n:,}'}" for part, n in zip(parts, counts, strict=True))
        for name, counts in rows
    )
    picture = Picture("tiers", title, words, TOP + len(rows) * (_BAR + 14 + _BAR_GAP) + 8)
    for number, (name, counts) in enumerate(rows):
        y = TOP + number * (_BAR + 14 + _BAR_GAP)
        x, total = float(RIGHT), sum(n or 0 for n in counts)
        picture.text(RIGHT, y + 10, f"{name} ({total:,} tokens)")
        for part, n in enumerate(counts):
            width = (WIDTH - 2 * RIGHT) * (n or 0) / total
            if width:
                picture.box(x, y + 14, width, _BAR, f"s{part}", tip=f"{parts[part]}: {n:,}")
                if width > 7 * len(parts[part]):
                    picture.text(x + 4, y + 27, parts[part], kind="inside")
            x += width
    picture.legend(parts)
    return Figure(title, f"Prompt tokens of the requests whose tier was looked at. {words}.", picture.markup())
