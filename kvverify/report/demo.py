"""How the acts of ``kvverify demo`` ended, against what was announced: on the console, as one page, as JSON."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from kvverify.events import EXIT_CODES, Verdict
from kvverify.report.final import STYLES, detail_lines, replay_command, section_table, verdict_line
from kvverify.report.html import template
from kvverify.report.section import Section
from kvverify.report.summary import Summary
from kvverify.report.words import duration, plural, printable

MOST_LINES = 12  # of a diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class ActEnded:
    """One act: what was announced, what came. ``folder`` is that of its run within the demo's, empty where there is none.

    ``shown`` is the finding that had to be there, or the numbers of a PASS; ``otherwise`` says in what the act did not end as
    announced, and is empty if it did.
    """

    name: str
    title: str
    explains: str
    typed: Sequence[str]
    announced: Verdict
    verdict: Verdict
    shown: str
    otherwise: str
    seconds: float
    folder: str = ""
    diagnosis: Sequence[str] = ()
    tables: Sequence[Section] = ()


def judged(announced: Verdict, shows: str, code: int, summary: Summary | None, last: str) -> tuple[Verdict, str, str]:
    """Return verdict, what shows it, and in what the act ended otherwise than announced (empty: in nothing).

    Args:
        announced: the verdict that was announced.
        shows: regular expression for one finding; empty where PASS was announced.
        code: exit code of the command.
        summary: of its run; None where it made none.
        last: the last line that it printed.
    """
    if summary is None:
        return Verdict.ERROR, "", f"no run was made, exit code {code}: {last}"
    verdict = summary.verdict
    if verdict is not announced:
        why = "; ".join(reason.text for reason in summary.reasons[:2]) or verdict_line(summary)
        return verdict, "", f"{announced} was announced, {verdict} came: {why}"
    if code != EXIT_CODES[verdict]:
        return verdict, "", f"exit code {EXIT_CODES[verdict]} was announced, {code} came: {last}"
    if not shows:
        return verdict, verdict_line(summary).partition(": ")[2], ""
    found = next((text for text in findings(summary) if re.search(shows, text)), "")
    return verdict, found, "" if found else f"the verdict is right, but nothing found says «{shows}»"


def findings(summary: Summary) -> list[str]:
    """Return what a run found, each in one line: diagnoses, then the reasons of the verdict."""
    return [f.event.headline for f in summary.failures] + [reason.text for reason in summary.reasons]


def diagnosis(summary: Summary, run: Path) -> list[str]:
    """Return the first failure of a copy kernel line by line, with its replay command; nothing of other runs."""
    for failure in summary.failures[:1]:
        return [failure.event.headline, *detail_lines(failure)[:MOST_LINES], replay_command(run, failure)]
    return []


def tables(summary: Summary, titles: Sequence[str]) -> list[Section]:
    """Return the tables with these titles, as far as the run has them."""
    known = {s.title: s for s in [*(summary.live.sections if summary.live else []), _layouts(summary)] if s.rows}
    return [known[title] for title in titles if title in known]


def _layouts(summary: Summary) -> Section:
    rows = [
        [
            *(c.layout, ", ".join(sorted(c.formats)), f"{c.sequences:,}", f"{c.compared_bytes:,}"),
            str(c.verdict),
        ]
        for c in summary.cases
        if c.verdict is not None
    ]
    head = ["layout", "formats", "sequences", "bytes compared", "verdict"]
    return Section("Layouts", "Layouts that were met, and the bytes compared on them.", head, rows, frozenset((2, 3)))


def as_announced(acts: Iterable[ActEnded]) -> bool:
    """Did all acts end as announced? No acts, no."""
    ends = [not act.otherwise for act in acts]
    return bool(ends) and all(ends)


def closing_line(acts: Sequence[ActEnded], planned: int, seconds: float) -> str:
    """Return the result in one line; acts that did not run did not end as announced."""
    right = sum(not act.otherwise for act in acts)
    missing = f", {planned - len(acts)} did not run" if len(acts) < planned else ""
    return f"{right} of {plural(planned, 'act')} ended as announced{missing}, in {duration(seconds)}"


def render_demo(acts: Sequence[ActEnded], planned: int, seconds: float, machine: Mapping[str, str]) -> str:
    """Return the page; its links are relative to the demo's folder, all else is in it."""
    return template("demo.html.j2").render(
        acts=acts,
        right=as_announced(acts) and len(acts) == planned,
        line=closing_line(acts, planned, seconds),
        machine=machine,
        verdicts=[str(v) for v in Verdict],
    )


def demo_json(acts: Sequence[ActEnded], planned: int, seconds: float, run: Path, code: int) -> dict[str, Any]:
    """Return the result as one JSON document."""
    documents = [{k: v for k, v in dataclasses.asdict(act).items() if k != "tables"} for act in acts]
    as_said = as_announced(acts) and len(acts) == planned
    return {
        "command": "demo",
        "as_announced": as_said,
        "exit_code": code,
        "run": str(run),
        "report": str(run / "report.html"),
        "seconds": round(seconds, 3),
        "acts": documents,
    }


def print_opening(console: Console, title: str, explains: str, typed: Sequence[str]) -> None:
    """Say what comes, and with which commands it is made."""
    _line(console, f"\n{title}", "bold")
    _line(console, f"  {explains}")
    for line in typed:
        _line(console, f"  $ {line}", "cyan")


def print_end(console: Console, act: ActEnded) -> None:
    """Say how an act ended: its first table, its finding, and whether it is what was announced."""
    for table in act.tables[:1]:
        console.print(section_table(table))
    for text in filter(None, act.diagnosis or [act.shown]):
        _line(console, f"  {text}")
    if act.otherwise:
        _line(console, f"  NOT AS ANNOUNCED: {act.otherwise}", "bold red")
    else:
        _line(console, f"  {act.verdict}, as announced, in {duration(act.seconds)}", STYLES[act.verdict])


def print_closing(console: Console, acts: Sequence[ActEnded], planned: int, seconds: float, report: Path) -> None:
    """Say what all acts come to, and where the page is."""
    right = as_announced(acts) and len(acts) == planned
    _line(console, f"\n{closing_line(acts, planned, seconds)}", "bold green" if right else "bold red")
    _line(console, f"report: {report}")


def _line(console: Console, text: str, style: str = "") -> None:
    # never folded: commands are there to be copied; a break at the beginning is ours
    body = text.lstrip("\n")
    if body != text:
        console.print()
    console.print(Text(printable(body), style=style), soft_wrap=True)
