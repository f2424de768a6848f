"""``kvverify diff OLD NEW``: what got better, worse, newly covered or lost between two releases."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvverify.cli.options import json_option

if TYPE_CHECKING:
    from kvverify.report.changes import Change

_KINDS = {"planted": "planted faults", "bytes": "formats"}  # by the first word of a check
HEADINGS = {
    "undecided": "No longer decided",
    "lost": "Lost: checked before, not now",
    "better": "Better",
    "new": "Newly covered",
}
MOST = 200
MOST_NEW = 5  # of one kernel, one by one


@click.command("diff")
@click.argument("old", metavar="OLD", type=click.Path(exists=True, path_type=Path))
@click.argument("new", metavar="NEW", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--old-run",
    "old_runs",
    multiple=True,
    metavar="RUN",
    type=click.Path(exists=True, path_type=Path),
    help="One more run of OLD.",
)
@click.option(
    "--new-run",
    "new_runs",
    multiple=True,
    metavar="RUN",
    type=click.Path(exists=True, path_type=Path),
    help="One more run of NEW.",
)
@json_option
def command(old: Path, new: Path, old_runs: tuple[Path, ...], new_runs: tuple[Path, ...], as_json: bool) -> int:
    """Compare two releases check by check: OLD and NEW are sign-offs (folder or signoff.json) or run folders.

    Exit codes: 0 nothing is worse, 1 something is, 3 that cannot be said: a check is lost or no longer decided, or the two have
    none in common.
    """
    from kvverify.events import EXIT_CODES
    from kvverify.report.changes import compare, moved, read_side, to_json
    from kvverify.report.final import json_line

    sides = read_side([old, *old_runs]), read_side([new, *new_runs])
    changes = compare(*sides)
    _print_tested(moved(*sides))
    _print("Worse", [change for change in changes.worse if change.old])
    _print("Fails, and was not checked before", [change for change in changes.worse if not change.old])
    for kind, heading in HEADINGS.items():
        _print(heading, getattr(changes, kind), brief=kind == "new")
    words = {"PASS": "nothing is worse", "FAIL": "something is worse", "INCONCLUSIVE": "cannot be decided"}
    counts = ", ".join(f"{len(getattr(changes, kind))} {kind}" for kind in ("worse", *HEADINGS))
    click.echo(f"{changes.verdict}: {words[changes.verdict]}: {counts}, {changes.same} as before")
    for side in sides:
        if side.stated:
            click.echo(f"verdicts of {side.name} are those that the sign-off states")
    if as_json:
        click.echo(json_line(to_json(changes, *sides)))
    return EXIT_CODES[changes.verdict]


def _print_tested(words: list[tuple[str, str, str]]) -> None:
    from kvverify.report.words import printable

    if words:
        click.echo("Tested was another thing:")
        for word, before, after in words:
            click.echo(printable(f"  {word}: {before} -> {after}"))
        click.echo()


def _print(heading: str, changes: list[Change], *, brief: bool = False) -> None:
    from kvverify.report.words import printable

    if not changes:
        return
    lines = _brief(changes) if brief else [_line(change) for change in changes]
    click.echo(f"{heading}:")
    for line in lines[:MOST]:
        click.echo(printable(f"  {line}"))
    if len(lines) > MOST:
        click.echo(f"  and {len(lines) - MOST:,} more")
    click.echo()


def _line(change: Change) -> str:
    sides = [f"{c.verdict}{f' ({c.figure})' if c.figure else ''}" if c else "–" for c in (change.old, change.new)]
    return f"{change.name}: {sides[0]} -> {sides[1]}"


def _brief(changes: list[Change]) -> list[str]:
    """Return a line for each new check, and one for many of a kind that a kernel has: a new kernel brings a new check of everything."""
    kinds: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        what, _, kernel = change.name.rpartition(" with ")
        kinds.setdefault((_KINDS.get(what.split(" ")[0], "") and kernel, what.split(" ")[0]), []).append(change)
    lines = []
    for (kernel, word), own in kinds.items():
        if not kernel or len(own) <= MOST_NEW:
            lines += [_line(change) for change in own]
        else:
            verdicts = Counter(str(change.new.verdict) for change in own if change.new)
            told = ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items())
            lines.append(f"{len(own)} {_KINDS[word]} with {kernel}: – -> {told}")
    return lines
