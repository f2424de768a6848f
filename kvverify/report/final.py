"""The end of a run on standard output: coverage, kill table, failures, verdict; or one JSON document."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvverify.event_json import to_json
from kvverify.events import EXIT_CODES, Verdict
from kvverify.report.live import Live
from kvverify.report.section import Section
from kvverify.report.summary import Failure, Summary
from kvverify.report.words import duration, gpu_line, plural, printable, size
from kvverify.verdicts import differs

MOST_FAILURES = 10  # with all details; the report has the rest
MOST_ROWS = 40
STYLES = {
    Verdict.PASS: "bold green",
    Verdict.FAIL: "bold red",
    Verdict.INCONCLUSIVE: "bold yellow",
    Verdict.ERROR: "bold yellow",
}


def print_summary(summary: Summary, run: Path, report: Path | None = None, file: IO[str] | None = None) -> None:
    """Print the result of the run in folder ``run``; ``report`` is the page with the rest of it.

    The last line names the report, each failure ends with the command that replays it.
    """
    console = Console(file=file, highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, width=1000)  # a pipe has no width to fold to
    for section in summary.live.sections if summary.live else []:
        if section.brief:
            console.print(section_table(section))
            console.print()
    for kernel in summary.mixes:
        console.print(_coverage(summary, kernel))
        console.print()
    if summary.comparisons:
        console.print(_comparison_table(summary))
        console.print()
    if summary.faults:
        console.print(_kill_table(summary))
        console.print()
    for failure in summary.failures[:MOST_FAILURES]:
        _print_failure(console, failure, run)
    if len(summary.failures) > MOST_FAILURES:
        _line(console, f"and {plural(len(summary.failures) - MOST_FAILURES, 'failure')} more in the report\n")
    stated = {reason.text for reason in summary.reasons}
    if rest := [text for text in summary.not_covered if text not in stated]:
        _line(console, "Not covered:")
        for text in rest:
            _line(console, f"  {text}")
        console.print()
    if summary.gpu:
        _line(console, f"GPU: {gpu_line(summary.gpu)}")
    _line(console, verdict_line(summary), STYLES[summary.verdict])
    for reason in summary.reasons:
        _line(console, f"  {reason.verdict}: {reason.text}")
    if report is not None:
        _line(console, f"report: {report}")


def verdict_line(summary: Summary) -> str:
    """Return the verdict with the numbers it rests on."""
    if summary.faults:
        outcomes = [e.outcome for row in summary.faults.values() for e in row.values()]
        killed = sum(any(e.outcome == "killed" for e in row.values()) for row in summary.faults.values())
        faults = f"{killed} of {plural(len(summary.faults), 'fault')} killed, {outcomes.count('survived')} survived; "
    else:
        faults = ""
    if summary.live:
        return f"{summary.verdict}: {summary.live.line} in {duration(summary.seconds)}"
    if summary.comparisons:
        kernels = sum(k.compared_bytes > 0 for k in summary.kernels)
        near = sum(e.near_midpoint for e in summary.comparisons)
        open_ = f", {plural(near, 'number')} within float32 error of a decision point" if near else ""
        return (
            f"{summary.verdict}: {plural(len(summary.comparisons), 'comparison')}, {size(summary.compared_bytes)} compared "
            f"with {plural(kernels, 'kernel')} in {duration(summary.seconds)}{open_}"
        )
    return (
        f"{summary.verdict}: {faults}{plural(summary.sequences, 'sequence')}, {size(summary.compared_bytes)} compared "
        f"with {plural(sum(k.sequences > 0 for k in summary.kernels), 'kernel')} in {duration(summary.seconds)}"
    )


def summary_json(summary: Summary, run: Path) -> dict[str, Any]:
    """Return the result as one JSON document; sizes in bytes, times in seconds."""
    return {
        "verdict": summary.verdict,
        "exit_code": EXIT_CODES[summary.verdict],
        "reasons": [dataclasses.asdict(r) for r in summary.reasons],
        "run": str(run),
        "command": summary.start.command if summary.start else None,
        "version": summary.start.version if summary.start else None,
        "seed": summary.start.seed if summary.start else None,
        "gpu": summary.gpu or None,
        "seconds": round(summary.seconds, 3),
        "sequences": summary.sequences,
        "compared_bytes": summary.compared_bytes,
        "kernels": [dataclasses.asdict(k) for k in summary.kernels],
        "layouts": [
            {
                "kernel": c.kernel,
                "layout": c.layout,
                "orders": sorted(c.orders),
                "formats": sorted(c.formats),
                "sequences": c.sequences,
                "compared_bytes": c.compared_bytes,
                "moved_bytes": c.moved_bytes,
                "verdict": c.verdict,
            }
            for c in summary.cases
        ],
        "coverage": {
            kernel: {name: {o: dataclasses.asdict(c) for o, c in cells.items()} for name, cells in rows.items()}
            for kernel, rows in summary.coverage.items()
        },
        "steps": summary.steps,
        "lengths": {str(k): v for k, v in summary.lengths.items()},
        "refused": summary.refused,
        "failures": [_failure_json(f, run) for f in summary.failures],
        "faults": [dataclasses.asdict(e) for row in summary.faults.values() for e in row.values()],
        "comparisons": [dataclasses.asdict(e) for e in summary.comparisons],
        "not_covered": summary.not_covered,
        **({summary.live.kind: _live_json(summary.live)} if summary.live else {}),
    }


def json_line(document: dict[str, Any]) -> str:
    """Return ``document`` on one line, for ``--json``."""
    return json.dumps(document, default=str)


def _failure_json(failure: Failure, run: Path) -> dict[str, Any]:
    return {**dataclasses.asdict(failure.event), "times": failure.times, "replay": replay_command(run, failure)}


def _live_json(live: Live) -> dict[str, Any]:
    tables = {s.title: [dict(zip(s.head, row, strict=True)) for row in s.rows] for s in live.sections}
    cases = [dataclasses.asdict(case) for case in live.cases]
    measured = {"measured": [to_json(e) for e in live.measured]} if live.measured else {}
    return {"line": live.line, "tables": tables, "cases": cases, **measured}


def section_table(section: Section) -> Table:
    """Return a table for the console."""
    table = Table(title=section.title, title_justify="left", box=None)
    for number, heading in enumerate(section.head):
        table.add_column(heading, justify="right" if number in section.numbers else "left")
    for row in section.rows:
        table.add_row(*(Text(printable(cell), "bold red" if cell == Verdict.FAIL else "") for cell in row))
    return table


def _coverage(summary: Summary, kernel: str) -> Table:
    """Bytes compared by one kernel: a row for each set of formats in a layout, a column for each physical order."""
    rows = {mix: sum(c.compared_bytes for c in cells.values()) for mix, cells in summary.mixes[kernel].items()}
    shown = sorted(rows, key=lambda mix: (-rows[mix], mix))[:MOST_ROWS]
    orders = sorted({order for cells in summary.mixes[kernel].values() for order in cells})
    table = Table(title=Text(f"Bytes compared, kernel {printable(kernel)}"), title_justify="left", box=None)
    table.add_column("formats in the layout")
    for heading in [*orders, "all", "sequences"]:
        table.add_column(Text(printable(heading)), justify="right")
    for mix in shown:
        cells = summary.mixes[kernel][mix]
        values = [size(cells[o].compared_bytes) if o in cells else "–" for o in orders]
        table.add_row(Text(printable(mix)), *values, size(rows[mix]), f"{sum(c.sequences for c in cells.values()):,}")
    if len(rows) > MOST_ROWS:
        rest = [mix for mix in rows if mix not in shown]
        sequences = sum(c.sequences for mix in rest for c in summary.mixes[kernel][mix].values())
        blank = [""] * len(orders)
        table.add_row(f"{len(rest)} more", *blank, size(sum(rows[mix] for mix in rest)), f"{sequences:,}")
    return table


def _kill_table(summary: Summary) -> Table:
    kernels = list(dict.fromkeys(k for row in summary.faults.values() for k in row))
    table = Table(title="Planted faults", title_justify="left", box=None)
    table.add_column("fault")
    for kernel in kernels:
        table.add_column(Text(printable(kernel)))
    for (fault, name), row in summary.faults.items():
        cells = []
        for kernel in kernels:
            e = row.get(kernel)
            style = "bold red" if e and e.outcome == "survived" else ""
            cells.append(Text(fault_cell(e.outcome, e.by, e.reason, e.examples, e.seconds) if e else "–", style))
        table.add_row(Text(printable(f"{fault} {name}")), *cells)
    return table


def comparison_rows(summary: Summary) -> list[list[str]]:
    """Return library, format, head size, operation, bytes compared, bytes that differ, numbers near a midpoint, remark."""
    return [
        [
            *(e.library, e.format, str(e.head_size), e.what),
            *(f"{e.compared_bytes:,}", f"{e.different_bytes:,}", f"{e.near_midpoint:,}"),
            printable(e.headline or e.note),
        ]
        for e in summary.comparisons
    ]


COMPARISON_HEAD = ["library", "format", "head size", "operation", "bytes", "differ", "near midpoint", "remark"]


def _comparison_table(summary: Summary) -> Table:
    """Bytes compared with the reference: a row for each library and format, a column for each head size."""
    sizes = sorted({e.head_size for e in summary.comparisons})
    table = Table(title="Bytes compared with the reference codecs", title_justify="left", box=None)
    table.add_column("library")
    table.add_column("format")
    for heading in [*(f"head size {n}" for n in sizes), "differ", "near midpoint"]:
        table.add_column(heading, justify="right")
    for library, fmt in dict.fromkeys((e.library, e.format) for e in summary.comparisons):
        row = [e for e in summary.comparisons if (e.library, e.format) == (library, fmt)]
        cells = [f"{sum(e.compared_bytes for e in row if e.head_size == n):,}" for n in sizes]
        counts = [f"{sum(e.different_bytes for e in row):,}", f"{sum(e.near_midpoint for e in row):,}"]
        style = "bold red" if any(differs(e) for e in row) else ""
        table.add_row(*(Text(printable(text), style) for text in [library, fmt, *cells, *counts]))
    return table


def fault_cell(outcome: str, by: str, reason: str, examples: int, seconds: float) -> str:
    """Return one cell of the kill table: the outcome and what it took, or why the fault does not apply."""
    if outcome == "n/a":
        return printable(f"n/a: {reason}" if reason else "n/a")
    if outcome == "declared":
        return printable(f"not seen, as declared: {reason}")
    cause = f" by {by}" if by else ""
    return printable(f"{outcome}{cause}, {plural(examples, 'example')}, {duration(seconds)}")


def replay_command(run: Path, failure: Failure) -> str:
    """Return the command that runs a failure file of the run folder ``run`` again."""
    return f"kvverify replay {shlex.quote(str(run / failure.event.path))}"


def detail_lines(failure: Failure) -> list[str]:
    """Return the details of a failure line by line; a detail may be a traceback."""
    return [line for detail in failure.event.details for line in detail.splitlines()]


def _print_failure(console: Console, failure: Failure, run: Path) -> None:
    e = failure.event
    again = f", found {failure.times} times" if failure.times > 1 else ""
    _line(console, f"FAIL {e.kernel} on {e.layout}, {e.kind} at step {e.step}{again}", "bold red")
    for text in [e.headline, *detail_lines(failure)]:
        _line(console, f"  {text}")
    _line(console, f"  {replay_command(run, failure)}\n")


def _line(console: Console, text: str, style: str = "") -> None:
    # never folded: paths and commands are there to be copied
    body = text.rstrip("\n")
    console.print(Text(printable(body), style=style), soft_wrap=True)
    if body != text:
        console.print()
