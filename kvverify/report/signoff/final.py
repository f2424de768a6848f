"""The sign-off on standard output: questions, what a policy asks for, what was not covered, verdict, where the page is."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvverify.events import Verdict
from kvverify.report.final import STYLES, _line
from kvverify.report.signoff.signoff import Signoff
from kvverify.report.words import plural, printable

MOST_KINDS = 10


def print_signoff(s: Signoff, page: Path, file: IO[str] | None = None) -> None:
    """Print the result; the last line names the page."""
    console = Console(file=file, highlight=False, markup=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, markup=False, width=1000)  # a pipe has no width to fold to
    table = Table(box=None)
    for heading in ("question", "verdict", "answer"):
        table.add_column(heading)
    for q in s.answered:
        table.add_row(_text(f"{q.number}. {q.title}"), _verdict(q.verdict), _text(q.answer))
    if s.answered:
        console.print(table)
        console.print()
    if s.judgement:
        rules = Table(title=Text(f"Policy {printable(s.judgement.policy)}"), title_justify="left", box=None)
        for heading in ("requirement", "verdict", "found", "still needed"):
            rules.add_column(heading)
        for r in s.judgement.requirements:
            rules.add_row(_text(r.name), _verdict(r.verdict), _text(r.found), _text(r.missing or "–"))
        console.print(rules)
        console.print()
    for g in s.groups[:MOST_KINDS]:
        _line(
            console,
            f"{'known' if g.known else 'FAIL'} {g.title}{f' ({g.runs})' if g.runs else ''}",
            "" if g.known else "bold red",
        )
        _line(console, f"  {g.first.headline}")
        _line(console, f"  {g.first.replay}\n")
    if len(s.groups) > MOST_KINDS:
        _line(console, f"and {plural(len(s.groups) - MOST_KINDS, 'kind')} of failure more on the page\n")
    _line(console, "Not covered:")
    for text in s.gaps.short or ["nothing that was asked for"]:
        _line(console, f"  {text}")
    console.print()
    decision = f"{s.headline}: " if s.headline != s.verdict else ""
    _line(console, f"{decision}{s.verdict}: {s.line}", STYLES[s.verdict])
    _line(console, f"sign-off: {page}")


def _verdict(verdict: Verdict) -> Text:
    return Text(str(verdict), STYLES[verdict])


def _text(words: str) -> Text:
    return Text(printable(words))
