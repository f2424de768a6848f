"""What every command that runs checks does around them: log, live view, end or interruption, reports, exit code."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import sources

if TYPE_CHECKING:
    from kvverify.events import Event
    from kvverify.report.console import LiveConsole
    from kvverify.report.folder import RunFolder


def run_checks(
    folder: RunFolder,
    checks: Callable[[Callable[[Event], None]], None],
    *,
    command: str,
    seed: int,
    options: dict[str, Any],
    earlier: Iterable[Event],
    live: LiveConsole,
    as_json: bool,
) -> int:
    """Run ``checks``, which emit events through the function they are given, and return the exit code.

    Args:
        folder: the run folder, new or of the run that is resumed.
        checks: does the work.
        command: name of the command, for the log.
        seed: of all random choices.
        options: what decides the run, as it is stored in the log.
        earlier: events of the run that is resumed; none for a new one.
        live: shows progress.
        as_json: end with one JSON document on standard output.
    """
    import kvverify
    from kvverify.events import EXIT_CODES, EXIT_INTERRUPTED, RunFinished, RunStarted
    from kvverify.report.files import write_reports
    from kvverify.report.final import json_line, print_summary, summary_json
    from kvverify.report.log import EventBus, EventWriter
    from kvverify.report.summary import summarise
    from kvverify.roundtrip.record import run_record

    before = list(earlier)
    bus = EventBus([EventWriter(folder), live], before)
    began, interrupted = time.monotonic(), False
    version = kvverify.__version__
    try:
        bus.emit(RunStarted(command=command, version=version, seed=seed, options=options, resumed=bool(before)))
        try:
            checks(bus.emit)
        except KeyboardInterrupt:
            interrupted = True
        bus.emit(RunFinished(seconds=time.monotonic() - began, interrupted=interrupted))
    finally:
        bus.close()
    folder.write_run_json(run_record(bus.events, options, sources(click.get_current_context())))
    summary = summarise(bus.events)
    write_reports(summary, folder)
    print_summary(summary, folder.path, folder.html)
    if as_json:
        click.echo(json_line(summary_json(summary, folder.path)))
    return EXIT_INTERRUPTED if interrupted else EXIT_CODES[summary.verdict]
