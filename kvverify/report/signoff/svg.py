"""Inline SVG without script: a picture has a title and a description that say what it shows, colours come from the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TypeVar

from markupsafe import Markup

from kvverify.report.words import printable

T = TypeVar("T")

WIDTH, HEIGHT = 720, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 12, 44
MOST_SERIES = 6  # colours of the page: classes s0 to s5, each with a shape of its own
_LETTER = 6.2  # width of a letter of a label, about
_LEGEND_ROW = 18
_LONG_NOTE = 320  # characters, about three lines of the page


@dataclass(frozen=True, slots=True)
class Figure:
    """One picture of the page with its heading; ``note`` says in words what it shows, or why there is none."""

    title: str
    note: str
    svg: Markup = field(default_factory=Markup)

    @property
    def lead(self) -> str:
        """What stands below the picture: the note, of a long one its first sentence."""
        return self.note if len(self.note) <= _LONG_NOTE else f"{self.note.partition('. ')[0]}."

    @property
    def figures(self) -> list[str]:
        """The rest of a long note, figure by figure; none of a short one."""
        rest = "" if len(self.note) <= _LONG_NOTE else self.note.partition(". ")[2].removesuffix(".")
        return [part for part in rest.split("; ") if part]


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear or logarithmic scale from data to the picture; ``ticks`` are (value, label)."""

    low: float
    high: float
    start: float
    stop: float
    ticks: Sequence[tuple[float, str]]
    log: bool = False

    def __call__(self, value: float) -> float:
        """Return where ``value`` lies."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (self.stop - self.start) * (at - low) / (high - low)


def linear(low: float, high: float, start: float, stop: float, write: Callable[[float], str] = "{:g}".format) -> Axis:
    """Return an axis that covers low to high with about five round ticks."""
    if high <= low:
        low, high = low - 0.5, high + 0.5
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    ticks = [(n * step, write(round(n * step, 12))) for n in range(first, last + 1)]
    return Axis(first * step, last * step, start, stop, ticks)


def logarithmic(low: float, high: float, start: float, stop: float, *, fine: bool = False) -> Axis:
    """Return a logarithmic axis over whole powers of ten, or with ``fine`` from the data with ticks at 1, 2 and 5."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    if fine:
        values = [m * 10.0**n for n in range(first, last + 1) for m in (1, 2, 5) if low <= m * 10.0**n <= high]
        return Axis(low / 1.1, high * 1.1, start, stop, [(v, f"{v:g}") for v in values], log=True)
    last = max(last, first + 1)
    return Axis(
        10.0**first, 10.0**last, start, stop, [(10.0**n, f"{10.0**n:g}") for n in range(first, last + 1)], log=True
    )


def named(labels: Sequence[str], start: float, stop: float) -> Axis:
    """Return an axis of equal steps, one for each label."""
    return Axis(-0.5, len(labels) - 0.5, start, stop, [(n, label) for n, label in enumerate(labels)])


class Picture:
    """Collects the elements of one SVG."""

    def __init__(self, name: str, title: str, description: str, height: float = HEIGHT) -> None:
        self.height = height
        self._name, self._title, self._description = name, title, description
        self._parts: list[str] = []

    def add(self, element: str) -> None:
        """Add an element whose texts are escaped already."""
        self._parts.append(element)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", kind: str = "") -> None:
        """Write words at a point."""
        named_ = f' class="{kind}"' if kind else ""
        self.add(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named_}>{_safe(words)}</text>')

    def line(self, x1: float, y1: float, x2: float, y2: float, kind: str = "grid") -> None:
        """Draw a line."""
        self.add(f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def box(self, x: float, y: float, width: float, height: float, kind: str, *, tip: str = "") -> None:
        """Draw a rectangle; ``tip`` shows when one points at it."""
        size = f'x="{x:.1f}" y="{y:.1f}" width="{max(0.0, width):.1f}" height="{max(0.0, height):.1f}"'
        self.add(f'<rect class="{kind}" {size}>{_tip(tip)}</rect>')

    def mark(self, x: float, y: float, series: int, tip: str = "") -> None:
        """Draw the mark of a series: colour and shape, so that colour alone tells nothing."""
        kind, r = f"s{series % MOST_SERIES}", 4.0
        shapes = [
            f'<circle class="{kind}" cx="{x:.1f}" cy="{y:.1f}" r="{r}">',
            f'<rect class="{kind}" x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r}" height="{2 * r}">',
            f'<path class="{kind}" d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {2 * r}h-{2 * r + 2}z">',
            f'<path class="{kind}" d="M{x:.1f} {y - r - 1:.1f}l{r + 1} {r + 1}l-{r + 1} {r + 1}l-{r + 1} -{r + 1}z">',
            f'<path class="{kind}" d="M{x:.1f} {y + r + 1:.1f}l{r + 1} -{2 * r}h-{2 * r + 2}z">',
            f'<path class="{kind} open" d="M{x - r:.1f} {y - r:.1f}l{2 * r} {2 * r}m0 -{2 * r}l-{2 * r} {2 * r}">',
        ]
        shape = shapes[series % MOST_SERIES]
        self.add(f"{shape}{_tip(tip)}</{shape[1 : shape.index(' ')]}>")

    def frame(self, x: Axis, y: Axis, across: str, up: str) -> None:
        """Draw grid, ticks and the names of the axes."""
        for value, label in y.ticks:
            self.line(LEFT, y(value), WIDTH - RIGHT, y(value))
            self.text(LEFT - 6, y(value) + 4, label, anchor="end")
        for value, label in _thinned(x):
            self.text(x(value), self.height - BOTTOM + 16, label, anchor="middle")
        self.text((LEFT + WIDTH - RIGHT) / 2, self.height - 8, across, anchor="middle")
        middle = (TOP + self.height - BOTTOM) / 2
        self.add(f'<text transform="translate(14 {middle:.1f}) rotate(-90)" text-anchor="middle">{_safe(up)}</text>')

    def legend(self, names: Sequence[str]) -> None:
        """Add the names of the series below the picture, which grows by their rows."""
        x, y = float(LEFT), self.height + 6
        for number, name in enumerate(names):
            width = 22 + _LETTER * len(name)
            if x + width > WIDTH - RIGHT and x > LEFT:
                x, y = float(LEFT), y + _LEGEND_ROW
            self.mark(x + 5, y, number)
            self.text(x + 14, y + 4, name)
            x += width
        self.height = y + _LEGEND_ROW - 6

    def markup(self) -> Markup:
        """Return the finished element."""
        head = (
            f'<svg role="img" aria-labelledby="{self._name}-title {self._name}-desc" viewBox="0 0 {WIDTH} {self.height:.0f}">'
            f'<title id="{self._name}-title">{_safe(self._title)}</title>'
            f'<desc id="{self._name}-desc">{_safe(self._description)}</desc>'
        )
        return Markup("\n".join([head, *self._parts, "</svg>"]))  # noqa: S704 - every text above is escaped


def _thinned(axis: Axis) -> list[tuple[float, str]]:
    """Leave out ticks whose labels would touch."""
    kept: list[tuple[float, str]] = []
    for value, label in axis.ticks:
        room = all(abs(axis(value) - axis(v)) > _LETTER * (len(label) + len(other)) / 2 + 4 for v, other in kept[-1:])
        if room:
            kept.append((value, label))
    return kept


def shown_series(series: Mapping[str, T]) -> dict[str, T]:
    """Return the first series, as many as a picture can tell apart."""
    return dict(list(series.items())[:MOST_SERIES])


def left_out(series: Mapping[str, object]) -> str:
    """Say how many series a picture leaves out, as the end of its note; empty where none."""
    more = len(series) - MOST_SERIES
    return f" {more} more are in the tables." if more > 0 else ""


def steps(points: Sequence[tuple[float, float]]) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Return the pieces of a line through points."""
    return list(pairwise(points))


def _safe(text: str) -> str:
    return escape(printable(text))


def _tip(text: str) -> str:
    return f"<title>{_safe(text)}</title>" if text else ""
