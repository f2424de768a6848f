"""Run folders whose log holds events of the test's choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from kvverify.events import Event
from kvverify.report.folder import RunFolder
from kvverify.report.log import EventWriter

AT = 1_790_000_000.0  # seconds; of events that say no time


def write(path: Path, events: Iterable[Event]) -> Path:
    """Make the folder of a run with ``events`` in its log, and return it."""
    folder = RunFolder.create(path, "recorded")
    writer = EventWriter(folder)
    for event in events:
        writer.handle(event if event.at else replace(event, at=AT))
    writer.close()
    return folder.path
