"""Error against bytes per token and head, as one SVG without script: every format a point, every sample a colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from kvverify.conformance.bench import BenchRow

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLOURS = ("#4a6fa5", "#b5542a", "#4f8a4c", "#8a5aa8")
SHORT = {"turboquant_": "tq ", "_per_token_head": " ptH", "ultraquant": "uq"}


def error_plot(rows: Sequence[BenchRow], title: str) -> str:
    """Return the SVG: bytes of one token and head on the x axis, relative attention-output error (log) on the y axis."""
    shown = [row for row in rows if row.attention_error > 0]
    if not shown:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="40"><text x="10" y="25">no errors to show</text></svg>\n'
    samples = list(dict.fromkeys(row.sample for row in shown))
    # bytes relative to bf16, so that head sizes share one axis
    shares = [100 * row.encoded_bytes / row.raw_bytes for row in shown]
    top = 10 * math.ceil(max(shares) / 10)
    low = math.floor(math.log10(min(row.attention_error for row in shown)))
    high = math.ceil(math.log10(max(row.attention_error for row in shown)))

    def x(share: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * share / top

    def y(error: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(error)) / max(1, high - low)

    parts = [*_frame(title, top, (low, high), x, y)]
    for n, sample in enumerate(samples):
        colour = COLOURS[n % len(COLOURS)]
        parts.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{TOP + 10 + 20 * n}" r="4" fill="{colour}"/>')
        parts.append(_text(WIDTH - RIGHT + 30, TOP + 14 + 20 * n, sample.split(",")[0][:26], size=11))
    for share, row in zip(shares, shown, strict=True):
        colour = COLOURS[samples.index(row.sample) % len(COLOURS)]
        here = x(share), y(row.attention_error)
        tip = f"{row.sample}: {row.format}, {share:.1f} % of bf16, attention error {row.attention_error:.3g}"
        parts.append(
            f'<circle cx="{here[0]:.1f}" cy="{here[1]:.1f}" r="4" fill="{colour}"><title>{escape(tip)}</title></circle>'
        )
        if row.sample == samples[-1]:
            parts.append(_text(here[0] + 6, here[1] + 3, _short(row.format), size=9))
    return "\n".join(parts) + "\n</svg>\n"


def _frame(
    title: str, top: int, decades: tuple[int, int], x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="system-ui, sans-serif" role="img">'
        ),
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        _text(LEFT, 22, title, size=13),
    ]
    for share in range(0, top + 1, 10):
        parts.append(_line(x(share), TOP, x(share), HEIGHT - BOTTOM))
        parts.append(_text(x(share), HEIGHT - BOTTOM + 16, f"{share}", size=10, anchor="middle"))
    for decade in range(decades[0], decades[1] + 1):
        parts.append(_line(LEFT, y(10.0**decade), WIDTH - RIGHT, y(10.0**decade)))
        parts.append(_text(LEFT - 6, y(10.0**decade) + 3, f"1e{decade}", size=10, anchor="end"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "bytes, % of bf16", size=11, anchor="middle"))
    parts.append(
        f'<text transform="translate(16 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" font-size="11" text-anchor="middle" '
        f'fill="#1b1f24">relative attention-output error</text>'
    )
    return parts


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#d0d7de"/>'


def _text(x: float, y: float, text: str, *, size: int, anchor: str = "start") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="#1b1f24">{escape(text)}</text>'
    )


def _short(name: str) -> str:
    for long, short in SHORT.items():
        name = name.replace(long, short)
    return name
