"""Error against bytes per token and head, as one SVG without script: every format a point, every sample a colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape

from kvverify.conformance.bench import BenchRow

WIDTH, HEIGHT = 760, 440
LEFT, RIGHT, TOP, BOTTOM = 70, 190, 40, 50
COLOURS = ("#4a6fa5", "#b5542a", "#4f8a4c", "#8a5aa8")
TICKS = (10, 15, 20, 30, 40, 50, 70, 100)
LABEL_HEIGHT = 10
SHORT = {"turboquant_": "tq ", "_per_token_head": " ptH", "ultraquant": "uq"}


def error_plot(rows: Sequence[BenchRow], title: str) -> str:
    """Return the SVG; both axes are logarithmic.

    x: bytes of one token and KV head, in percent of bf16, so that head sizes share the axis. y: relative attention-output error.
    """
    shown = [row for row in rows if row.attention_error > 0]
    if not shown:
        return f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="40"><text x="10" y="25">no errors to show</text></svg>\n'
    samples = list(dict.fromkeys(row.sample for row in shown))
    share = {row: 100 * row.encoded_bytes / row.raw_bytes for row in shown}
    errors = [row.attention_error for row in shown]
    low, high = math.floor(math.log10(min(errors))), math.ceil(math.log10(max(errors)))
    narrowest = min(10.0, *share.values())

    def x(percent: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(percent / narrowest) / math.log(110 / narrowest)

    def y(error: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - math.log10(error)) / max(1, high - low)

    parts = _frame(title, [p for p in TICKS if p >= narrowest], [10.0**d for d in range(low, high + 1)], x, y)
    parts += _legend(samples)
    for row in shown:
        colour = COLOURS[samples.index(row.sample) % len(COLOURS)]
        here = f'cx="{x(share[row]):.1f}" cy="{y(row.attention_error):.1f}"'
        tip = f"{row.sample}: {row.format}, {share[row]:.1f} % of bf16, attention error {row.attention_error:.3g}"
        parts.append(f'<circle {here} r="3.5" fill="{colour}"><title>{escape(tip)}</title></circle>')
    last = [row for row in shown if row.sample == samples[-1]]
    parts += _labels([(x(share[row]), y(row.attention_error), _short(row.format)) for row in last])
    return "\n".join(parts) + "\n</svg>\n"


def _legend(samples: Sequence[str]) -> list[str]:
    parts = []
    for n, sample in enumerate(samples):
        parts.append(
            f'<circle cx="{WIDTH - RIGHT + 20}" cy="{TOP + 10 + 20 * n}" r="4" fill="{COLOURS[n % len(COLOURS)]}"/>'
        )
        name = sample if len(sample) < 28 else sample.split(",", maxsplit=1)[0]
        parts.append(_text(WIDTH - RIGHT + 30, TOP + 14 + 20 * n, name, size=11))
    return parts


def _labels(points: Sequence[tuple[float, float, str]]) -> list[str]:
    """Place a name beside each point, moved down until it covers no other."""
    parts: list[str] = []
    placed: list[tuple[float, float, float]] = []
    for left, height, name in sorted(points, key=lambda point: point[1]):
        begin, end, where = left + 6, left + 6 + 5.2 * len(name), height + 3
        while any(abs(where - y) < LABEL_HEIGHT and begin < right and x < end for x, right, y in placed):
            where += 1
        placed.append((begin, end, where))
        parts.append(_text(begin, where, name, size=9))
    return parts


def _frame(
    title: str,
    shares: Sequence[float],
    errors: Sequence[float],
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    size = f'width="{WIDTH}" height="{HEIGHT}"'
    middle = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {WIDTH} {HEIGHT}" font-family="system-ui, sans-serif" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect {size} fill="#fff"/>',
        _text(LEFT, 22, title, size=13),
        _text(middle[0], HEIGHT - 12, "bytes of one token and KV head, % of bf16", size=11, anchor="middle"),
    ]
    turned = f'transform="translate(16 {middle[1]}) rotate(-90)" font-size="11" text-anchor="middle" fill="#1b1f24"'
    parts.append(f"<text {turned}>relative attention-output error</text>")
    for share in shares:
        parts.append(_line(x(share), TOP, x(share), HEIGHT - BOTTOM))
        parts.append(_text(x(share), HEIGHT - BOTTOM + 16, f"{share:g}", size=10, anchor="middle"))
    for error in errors:
        parts.append(_line(LEFT, y(error), WIDTH - RIGHT, y(error)))
        parts.append(
            _text(
                LEFT - 6, y(error) + 3, f"{error:.0e}".replace("e-0", "e-").replace("e+00", ""), size=10, anchor="end"
            )
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
