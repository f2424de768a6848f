"""``kvverify diff OLD NEW``: what got better, worse, newly covered or lost between two releases."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvverify.cli.options import json_option

if TYPE_CHECKING:
    from kvverify.report.changes import Change

HEADINGS = {
    "worse": "Worse",
    "undecided": "No longer decided",
    "lost": "Lost: checked before, not now",
    "better": "Better",
    "new": "Newly covered",
}
MOST = 200


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
    from kvverify.report.changes import compare, read_side, to_json
    from kvverify.report.final import json_line

    sides = read_side([old, *old_runs]), read_side([new, *new_runs])
    changes = compare(*sides)
    for kind, heading in HEADINGS.items():
        _print(heading, getattr(changes, kind))
    words = {"PASS": "nothing is worse", "FAIL": "something is worse", "INCONCLUSIVE": "cannot be decided"}
    counts = ", ".join(f"{len(getattr(changes, kind))} {kind}" for kind in HEADINGS)
    click.echo(f"{changes.verdict}: {words[changes.verdict]}: {counts}, {changes.same} as before")
    for side in sides:
        if side.stated:
            click.echo(f"verdicts of {side.name} are those that the sign-off states")
    if as_json:
        click.echo(json_line(to_json(changes, *sides)))
    return EXIT_CODES[changes.verdict]


def _print(heading: str, changes: list[Change]) -> None:
    from kvverify.report.words import printable

    if not changes:
        return
    click.echo(f"{heading}:")
    for change in changes[:MOST]:
        sides = [f"{c.verdict}{f' ({c.figure})' if c.figure else ''}" if c else "–" for c in (change.old, change.new)]
        click.echo(printable(f"  {change.name}: {sides[0]} -> {sides[1]}"))
    if len(changes) > MOST:
        click.echo(f"  and {len(changes) - MOST:,} more")
    click.echo()
