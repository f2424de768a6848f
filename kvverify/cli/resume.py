"""``--resume``: the interrupted run that a command goes on with."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvverify.cli.options import sources
from kvverify.errors import UsageError

if TYPE_CHECKING:
    import click

    from kvverify.events import Event, RunStarted
    from kvverify.report.folder import RunFolder


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A run to go on with: its folder, what its log holds, and the event that began it."""

    folder: RunFolder
    events: list[Event]
    start: RunStarted


def interrupted(context: click.Context, command: str, *, allowed: Collection[str] = ()) -> Interrupted | None:
    """Return the run that ``--resume`` names, of this ``command``; None where the option was not given.

    Other options come from the log, but for those of the ``allowed`` names.

    Raises:
        UsageError: another option but ``--json`` was given, which is named; or the folder holds no run of ``command``.
    """
    where = context.params["resume"]
    if where is None:
        return None
    _refuse_others(context, allowed)
    from kvverify.events import RunStarted
    from kvverify.report.folder import RunFolder
    from kvverify.report.log import read_events

    folder = RunFolder.open(where)
    events = read_events(folder.events)
    start = next((e for e in events if isinstance(e, RunStarted)), None)
    if start is None or start.command != command:
        held = f"a run of {start.command}" if start else "no run"
        raise UsageError(f"--resume {where}: holds {held}; expected one of {command}")
    return Interrupted(folder, events, start)


def _refuse_others(context: click.Context, allowed: Collection[str]) -> None:
    given = {name for name, source in sources(context).items() if source == "command line"}
    given -= {"resume", "as_json", *allowed}
    flags = sorted(option.opts[0] for option in context.command.params if option.name in given)
    if flags:
        raise UsageError(f"--resume goes on with the run as it was started; leave out {', '.join(flags)}")
