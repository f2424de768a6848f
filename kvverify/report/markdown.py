"""The Markdown report: what fits into a pull request comment or a job summary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from kvverify.report.final import (
    COMPARISON_HEAD,
    comparison_rows,
    detail_lines,
    fault_cell,
    replay_command,
    verdict_line,
)
from kvverify.report.summary import Failure, KernelRow, Summary
from kvverify.report.words import gpu_line, printable, size

MOST_FAILURES = 50
MOST_LAYOUTS = 200


def render_markdown(summary: Summary, run: Path) -> str:
    """Return the report of the run in folder ``run``."""
    parts = [f"# kvverify: {summary.verdict}", _escape(verdict_line(summary)) + "."]
    if summary.reasons:
        parts.append(_list(f"{r.verdict}: {r.text}" for r in summary.reasons))
    if summary.start:
        start = summary.start
        facts = {"command": start.command, "version": start.version, "seed": start.seed, "run": run, **start.options}
        if summary.gpu:
            facts["gpu"] = gpu_line(summary.gpu)
        parts += ["## Run", _table(["what", "value"], [[k, str(v)] for k, v in facts.items()])]
    if summary.failures:
        parts.append("## Failures")
        parts += [_failure(f, run) for f in summary.failures[:MOST_FAILURES]]
        if len(summary.failures) > MOST_FAILURES:
            parts.append(f"{len(summary.failures) - MOST_FAILURES} more are in events.ndjson.")
    if summary.kernels:
        head = ["kernel", "device", "library", "layouts", "sequences", "steps", "compared", "moved", "failures"]
        parts += ["## Kernels", _table(head, [_kernel(k) for k in summary.kernels])]
    for section in summary.live.sections if summary.live else []:
        parts += [f"## {section.title}", section.caption, _table(section.head, section.rows)]
    parts += _coverage(summary)
    if summary.comparisons:
        parts += ["## Reference codecs", _table(COMPARISON_HEAD, comparison_rows(summary))]
    if summary.faults:
        parts += ["## Planted faults", _kill_table(summary)]
    parts += ["## Not covered", _list(summary.not_covered) if summary.not_covered else "Nothing that was asked for."]
    return "\n\n".join(parts) + "\n"


def _coverage(summary: Summary) -> list[str]:
    parts = []
    if summary.cases:
        rows = [
            [
                *(c.kernel, c.layout, ", ".join(sorted(c.orders)), ", ".join(sorted(c.formats))),
                *(f"{c.sequences:,}", size(c.compared_bytes), str(c.verdict or "not met")),
            ]
            for c in summary.cases[:MOST_LAYOUTS]
        ]
        head = ["kernel", "layout", "order", "formats", "sequences", "compared", "verdict"]
        parts += ["## Layouts", _table(head, rows)]
        if len(summary.cases) > MOST_LAYOUTS:
            parts.append(f"{len(summary.cases) - MOST_LAYOUTS} more are in report.html.")
    if summary.coverage:
        parts.append("## Formats and orders")
        parts.append("Sequences and bytes compared; a layout with several formats counts in the row of each.")
        rows = [
            [kernel, name]
            + [
                f"{cells[o].sequences:,} · {size(cells[o].compared_bytes)}" if o in cells else "–"
                for o in summary.orders
            ]
            for kernel, formats in summary.coverage.items()
            for name, cells in formats.items()
        ]
        parts.append(_table(["kernel", "format", *summary.orders], rows))
    if summary.steps:
        kernels = [k.kernel for k in summary.kernels if k.sequences]
        rows = [[kind, *(f"{counts.get(k, 0):,}" for k in kernels)] for kind, counts in summary.steps.items()]
        parts += ["## Steps", _table(["step", *kernels], rows)]
    refused = [[k, layout, why] for k, row in summary.refused.items() for layout, why in row.items()]
    if refused:
        parts += ["## Refused layouts", _table(["kernel", "layout", "reason"], refused[:MOST_LAYOUTS])]
    return parts


def _kernel(row: KernelRow) -> list[str]:
    library = " ".join(str(row.provenance[k]) for k in ("library", "version") if row.provenance.get(k))
    layouts = f"{row.met} of {row.offered}, {row.refused} refused"
    numbers = [f"{row.sequences:,}", f"{row.steps:,}", size(row.compared_bytes), size(row.moved_bytes)]
    return [row.kernel, row.device or "–", library or row.reason or "–", layouts, *numbers, str(row.failures)]


def _failure(failure: Failure, run: Path) -> str:
    e = failure.event
    title = f"### {_escape(e.kernel)} on {_escape(e.layout)}: {_escape(e.kind)} at step {e.step}"
    text = "\n".join(printable(line) for line in [e.headline, *detail_lines(failure), "", replay_command(run, failure)])
    # a fence longer than any run of backticks inside
    fence = "`" * max(3, 1 + max((len(run_) for run_ in re.findall("`+", text)), default=0))
    return f"{title}\n\n{fence}text\n{text}\n{fence}"


def _kill_table(summary: Summary) -> str:
    kernels = list(dict.fromkeys(k for row in summary.faults.values() for k in row))
    rows = [
        [f"{fault} {name}"]
        + [fault_cell(e.outcome, e.by, e.reason, e.examples, e.seconds) if (e := row.get(k)) else "–" for k in kernels]
        for (fault, name), row in summary.faults.items()
    ]
    return _table(["fault", *kernels], rows)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(cell if i == 1 else _escape(cell) for cell in line) + " |" for i, line in enumerate(lines)
    )


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_escape(line)}" for line in lines)


def _escape(text: str) -> str:
    """Return ``text`` so that Markdown shows it as it is, inside a table cell too."""
    plain = re.sub(r"([\\`*_\[\]|~#])", r"\\\1", printable(text))
    return plain.replace("&", "&amp;").replace("<", "&lt;").replace("@", "&#64;")
