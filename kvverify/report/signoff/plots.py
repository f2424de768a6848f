"""The pictures of the page, in their order; error against size is drawn here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.plots_scores import difference_by_length, score_by_length
from kvverify.report.signoff.plots_tiers import first_divergence, logprob_by_position, tokens_by_tier
from kvverify.report.signoff.svg import (
    BOTTOM,
    HEIGHT,
    LEFT,
    MOST_SERIES,
    RIGHT,
    TOP,
    WIDTH,
    Figure,
    Picture,
    logarithmic,
)


@dataclass(frozen=True, slots=True)
class BenchPoint:
    """One format in ``kvverify codecs bench``: bytes of a token and head, and its error."""

    sample: str
    name: str
    bytes: float
    error: float


def plots(runs: Sequence[Run], bench: Sequence[BenchPoint] = ()) -> list[Figure]:
    """Return all pictures; one without data says so in its note."""
    made: list[Callable[[Sequence[Run]], Figure]] = [
        score_by_length,
        difference_by_length,
        logprob_by_position,
        first_divergence,
        tokens_by_tier,
    ]
    return [*(make(runs) for make in made), error_by_size(bench)]


def error_by_size(bench: Sequence[BenchPoint]) -> Figure:
    """Return error against bytes of a token, from ``kvverify codecs bench``."""
    title = "Error against bytes per token"
    shown = [p for p in bench if p.error > 0 and p.bytes > 0]
    if not shown:
        return Figure(title, "No bench of the codecs was given (--bench FILE).")
    samples = list(dict.fromkeys(p.sample for p in shown))[:MOST_SERIES]
    note = "Relative error of the attention output against bytes of one token and KV head; both axes are logarithmic. "
    note += (
        "; ".join(f"{p.sample}, {p.name}: {p.bytes:g} bytes, {p.error:.3g}" for p in shown if p.sample == samples[-1])
        + "."
    )
    x = logarithmic(min(p.bytes for p in shown), max(p.bytes for p in shown), LEFT, WIDTH - RIGHT, fine=True)
    y = logarithmic(min(p.error for p in shown), max(p.error for p in shown), HEIGHT - BOTTOM, TOP)
    picture = Picture("error", title, note)
    picture.frame(x, y, "bytes of one token and KV head", "attention-output error")
    for p in shown:
        if p.sample in samples:
            picture.mark(
                x(p.bytes),
                y(p.error),
                samples.index(p.sample),
                f"{p.name}, {p.sample}: {p.bytes:g} bytes, {p.error:.3g}",
            )
    picture.legend(samples)
    return Figure(title, note, picture.markup())


def bench_points(document: Any) -> list[BenchPoint]:
    """Return the points in the JSON of ``kvverify codecs bench``.

    Raises:
        ValueError: it is not that.
    """
    rows = document.get("rows") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError("no rows")
    try:
        return [
            BenchPoint(
                str(r["sample"]), str(r["format"]), float(r["bytes_per_token_and_head"]), float(r["attention_error"])
            )
            for r in rows
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"a row without {error}") from error
