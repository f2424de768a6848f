"""Scores by prompt length, and the paired difference from the base by prompt length, both with intervals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import NamedTuple

from kvverify.events_accuracy import ArmStarted, SampleAnswered
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.losses import POINTS, bounds
from kvverify.report.signoff.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    Picture,
    left_out,
    linear,
    named,
    shown_series,
    steps,
)
from kvverify.stats.rates import wilson
from kvverify.verdicts_compare import Compared

CONFIDENCE = 0.95


class Point(NamedTuple):
    """A value with its interval at one place; ``n`` values are behind it."""

    at: int
    value: float
    low: float
    high: float
    n: int


def score_by_length(runs: Sequence[Run]) -> Figure:
    """Return the mean score of each arm by prompt length."""
    title = "Score by length and arm"
    scores: dict[str, dict[int, list[SampleAnswered]]] = {}
    for run in runs:
        label = next((e.label for e in run.of(ArmStarted)), run.name)
        last = {e.key: e for e in run.of(SampleAnswered)}
        for e in last.values():
            if not e.error:
                scores.setdefault(label, defaultdict(list))[e.length].append(e)
    series = {label: [_mean(length, own) for length, own in sorted(by.items())] for label, by in scores.items()}
    if not series:
        return Figure(title, "No run of accuracy is among these.")
    words = [
        f"{label}: " + ", ".join(f"{_length(p.at)} {p.value:.1f} ({p.low:.1f} to {p.high:.1f}, n {p.n})" for p in own)
        for label, own in series.items()
    ]
    note = f"Mean score in points with its {CONFIDENCE:.0%} interval; samples are taken as independent. {'; '.join(words)}."
    return _with_intervals("score", title, note, series, up="score, points")


def _mean(length: int, own: Sequence[SampleAnswered]) -> Point:
    """Return the mean score in points: the score interval where all are 0 or 1 by rule, else mean ± z s / sqrt(n)."""
    scores = [e.score for e in own]
    n, mean = len(scores), fmean(scores)
    if all(e.binary for e in own):
        low, high = wilson(round(sum(scores)), n, CONFIDENCE)[1:]
    elif n < 2:
        low, high = 0.0, 1.0  # one value has no spread that could be known
    else:
        half = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) * stdev(scores) / math.sqrt(n)
        low, high = mean - half, mean + half
    return Point(length, POINTS * mean, POINTS * low, POINTS * high, n)


def difference_by_length(runs: Sequence[Run]) -> Figure:
    """Return the paired difference of each arm from its base by prompt length."""
    title = "Difference by length and arm"
    series: dict[str, list[Point]] = {}
    for e in (e for run in runs for e in Compared.of(run.events).measured):
        word, _, rest = e.scope.partition(" ")
        if word == "length" and rest.isdecimal() and not e.undefined:
            low, high = bounds(e)
            point = Point(int(rest), POINTS * e.difference, low, high, e.pairs)
            series.setdefault(f"{e.arm} against {e.base}", []).append(point)
    if not series:
        return Figure(title, "No comparison by length is among these runs.")
    for own in series.values():
        own.sort()
    words = [
        f"{name}: " + ", ".join(f"{_length(p.at)} {p.value:+.2f} ({p.low:+.2f} to {p.high:+.2f})" for p in own)
        for name, own in series.items()
    ]
    note = f"Paired difference in points with its interval; below 0 the arm is worse. {'; '.join(words)}."
    return _with_intervals("difference", title, note, series, up="difference, points")


def _with_intervals(name: str, title: str, note: str, series: Mapping[str, Sequence[Point]], *, up: str) -> Figure:
    shown = shown_series(series)
    places = sorted({p.at for own in shown.values() for p in own})
    x = named([_length(place) for place in places], LEFT, WIDTH - RIGHT)
    values = [v for own in shown.values() for p in own for v in (p.low, p.high)]
    y = linear(min(values), max(values), HEIGHT - BOTTOM, TOP)
    picture = Picture(name, title, note)
    picture.frame(x, y, "prompt length, tokens", up)
    for number, (label, own) in enumerate(shown.items()):
        aside = 12 * (number - (len(shown) - 1) / 2)
        spots = [(x(places.index(p.at)) + aside, y(p.value)) for p in own]
        for a, b in steps(spots):
            picture.line(*a, *b, f"l{number}")
        for p, (at, height) in zip(own, spots, strict=True):
            picture.line(at, y(p.low), at, y(p.high), f"l{number}")
            picture.mark(
                at, height, number, f"{label}, {_length(p.at)}: {p.value:.2f} ({p.low:.2f} to {p.high:.2f}), n {p.n}"
            )
    picture.legend(list(shown))
    return Figure(title, note + left_out(series), picture.markup())


def _length(tokens: int) -> str:
    if tokens == 0:
        return "all"
    return f"{tokens // 1024}k" if tokens >= 1024 and tokens % 1024 == 0 else f"{tokens:,}"
