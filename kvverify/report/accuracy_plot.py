"""Scores by length and arm as one SVG: the base, and each arm with the interval of its paired difference from it."""

from __future__ import annotations

from collections.abc import Sequence

from kvverify.events_accuracy import DifferenceMeasured
from kvverify.report.signoff.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Picture,
    linear,
    named,
    shown_series,
    steps,
)

STYLE = (
    "<style>.scores text{font:11px system-ui,sans-serif;fill:var(--text)}.scores .grid{stroke:var(--line)}"
    + "".join(
        f".scores .s{n}{{fill:{colour}}}.scores .l{n}{{stroke:{colour}}}"
        for n, colour in enumerate(("#4a6fa5", "#b5542a", "#4f8a4c", "#8a5aa8", "#8a6d00", "#6b7682"))
    )
    + ".scores .open{fill:none;stroke:#6b7682;stroke-width:2}</style>"
)
Points = list[tuple[int, float, float, float]]  # length, score, low, high; in points


def score_picture(measured: Sequence[tuple[DifferenceMeasured, int]]) -> str:
    """Return the picture of differences and their lengths, empty where there are fewer than two lengths."""
    lengths = sorted({length for _, length in measured})
    if len(lengths) < 2:
        return ""
    series: dict[str, Points] = {}
    for e, length in sorted(measured, key=lambda m: m[1]):
        if not e.pairs:
            continue
        base, arm = 100 * e.base_score, 100 * e.arm_score
        low, high = (arm, arm) if e.undefined else (base + 100 * e.low, base + 100 * e.high)
        own = series.setdefault(e.base, [])
        if length not in [at for at, *_ in own]:
            own.append((length, base, base, base))
        series.setdefault(e.arm, []).append((length, arm, low, high))
    return _drawn(shown_series(series), lengths) if series else ""


def _drawn(series: dict[str, Points], lengths: Sequence[int]) -> str:
    title = "Score by length and arm"
    note = (
        "Scores in points; the interval of an arm is that of its paired difference, drawn from the score of its base."
    )
    values = [v for own in series.values() for _, _, low, high in own for v in (low, high)]
    x = named([f"{n:,}" for n in lengths], LEFT, WIDTH - RIGHT)
    y = linear(min(values), max(values), HEIGHT - BOTTOM, TOP)
    picture = Picture("scores", title, note)
    picture.add(STYLE)
    picture.add('<g class="scores">')
    picture.frame(x, y, "prompt length, tokens", "score, points")
    for number, (label, own) in enumerate(series.items()):
        aside = 12 * (number - (len(series) - 1) / 2)
        spots = [(x(lengths.index(at)) + aside, y(score)) for at, score, _, _ in own]
        for a, b in steps(spots):
            picture.line(*a, *b, f"l{number}")
        for (at, score, low, high), (across, height) in zip(own, spots, strict=True):
            picture.line(across, y(low), across, y(high), f"l{number}")
            picture.mark(across, height, number, f"{label}, {at:,}: {score:.2f} ({low:.2f} to {high:.2f})")
    picture.legend(list(series))
    picture.add("</g>")
    return str(picture.markup())
