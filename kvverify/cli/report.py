"""``kvverify report RUN...``: make the reports of runs again from their events."""

from __future__ import annotations

from pathlib import Path

import click

from kvverify.cli.options import json_option
from kvverify.errors import UsageError


@click.command("report")
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the reports instead of the run folder; with several runs, each gets a folder inside.",
)
@json_option
def command(runs: tuple[Path, ...], out: Path | None, as_json: bool) -> int:
    """Make console summary, report.html, report.md and junit.xml of runs again from their events.

    The verdict is computed anew, and the exit code is that of the worst one.
    """
    from kvverify.events import EXIT_CODES
    from kvverify.reasons import worst
    from kvverify.report.files import write_reports
    from kvverify.report.final import json_line, print_summary, summary_json
    from kvverify.report.folder import RunFolder
    from kvverify.report.log import read_events
    from kvverify.report.summary import summarise

    folders = [RunFolder.open(run, writable=False) for run in runs]
    targets = _targets(runs, out)
    # all are read before anything is written: a damaged log must not leave half of the reports new
    summaries = [summarise(read_events(folder.events)) for folder in folders]
    for folder, target, summary in zip(folders, targets, summaries, strict=True):
        into = RunFolder(target)
        into.make()
        write_reports(summary, into, folder.path)
        print_summary(summary, folder.path, into.html)
    verdict = worst(summary.verdict for summary in summaries)
    if as_json:
        documents = [summary_json(s, folder.path) for s, folder in zip(summaries, folders, strict=True)]
        click.echo(json_line({"verdict": verdict, "exit_code": EXIT_CODES[verdict], "runs": documents}))
    return EXIT_CODES[verdict]


def _targets(runs: tuple[Path, ...], out: Path | None) -> list[Path]:
    """Return the folder that gets the reports of each run; UsageError where two would share one."""
    if out is None:
        targets = list(runs)
    elif len(runs) == 1:
        targets = [out]
    else:
        targets = [out / run.resolve().name for run in runs]
    for run, target in zip(runs, targets, strict=True):
        if (target / "events.ndjson").exists() and target.resolve() != run.resolve():
            raise UsageError(f"--out {target}: holds another run; name a folder without one")
    if len({target.resolve() for target in targets}) < len(targets):
        names = ", ".join(str(run) for run in runs)
        raise UsageError(
            f"runs {names}: two of them would write to one folder; name each once, or report them one by one"
        )
    return targets
