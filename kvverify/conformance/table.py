"""The bench's rows as Markdown and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kvverify.conformance.bench import BenchRow, Refusal

HEAD = (
    *("format", "raw KiB", "encoded KiB", "ratio", "bytes/token/head", "encode ms", "decode ms", "correlation (blind)"),
    *(
        "mean error",
        "max error",
        "K error",
        "V error",
        "max error, steps",
        "error/bound",
        "attention error",
        "max",
        "top-1 flips",
    ),
)
LEGEND = """\
raw: the same numbers in bf16. bytes/token/head: K and V of one token and KV head. Correlation is over K and V of all layers; it sees
neither scale nor offset. Mean and max error: absolute. K error, V error: root mean square relative to the root mean square of the
numbers. Steps: the largest error in units of the format's own step. error/bound: largest error over the bound derived from the
format, never above 1. Attention error: |o' − o| / |o| of softmax(QKᵀ/√D)V for the last 32 positions, mean and maximum over layers,
heads and queries. Top-1 flips: queries whose best position is another one."""


def markdown(rows: Sequence[BenchRow], refusals: Sequence[Refusal], facts: dict[str, str]) -> str:
    """Return the tables, one for each sample, with what the columns mean and where the numbers were made."""
    parts = ["# What each KV format costs", "", *(f"* {key}: {value}" for key, value in facts.items()), "", LEGEND, ""]
    kernels = any(row.kernel_encode_s is not None for row in rows)
    head = [*HEAD, *(("kernel encode ms", "kernel decode ms") if kernels else ())]
    for sample in dict.fromkeys([row.sample for row in rows]):
        parts += [f"## {sample}", "", _line(head), _line(["---", *["---:"] * (len(head) - 1)])]
        parts += [_line(_cells(row, kernels=kernels)) for row in rows if row.sample == sample]
        parts.append("")
    if refusals:
        parts += ["## Refused", "", *(f"* {r.format} on {r.sample}: {r.reason}" for r in refusals), ""]
    return "\n".join(parts)


def document(rows: Sequence[BenchRow], refusals: Sequence[Refusal], facts: dict[str, str]) -> dict[str, Any]:
    """Return all numbers as one JSON document; bytes and seconds."""
    return {
        "facts": facts,
        "rows": [
            {**dataclasses.asdict(row), "ratio": row.ratio, "bytes_per_token_and_head": row.bytes_per_token}
            for row in rows
        ],
        "refused": [dataclasses.asdict(r) for r in refusals],
    }


def _cells(row: BenchRow, *, kernels: bool) -> list[str]:
    cells = [
        row.format,
        f"{row.raw_bytes / 1024:,.0f}",
        f"{row.encoded_bytes / 1024:,.0f}",
        f"{row.ratio:.2f}",
        f"{row.bytes_per_token:.1f}",
        f"{row.encode_s * 1e3:.0f}",
        f"{row.decode_s * 1e3:.0f}",
        _number(row.correlation_blind, ".6f"),
        *(f"{x:.3g}" for x in (row.mean_error, row.max_error)),
        *(f"{x:.2%}" for x in (row.k_error, row.v_error)),
        *(f"{x:.3g}" for x in (row.max_steps, row.over_bound)),
        *(f"{x:.2%}" for x in (row.attention_error, row.max_attention_error)),
        f"{row.top1_flips:,} of {row.queries:,}",
    ]
    if kernels:
        cells += [
            _number(x * 1e3 if x is not None else None, ".3f") for x in (row.kernel_encode_s, row.kernel_decode_s)
        ]
    return cells


def _number(x: float | None, form: str) -> str:
    return "n/a" if x is None else format(x, form)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
