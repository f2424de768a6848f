"""The runs a sign-off is made of: their events, their tables, their failure files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from kvverify.errors import UsageError
from kvverify.events import Event, FailureFound, Verdict
from kvverify.report.folder import RunFolder
from kvverify.report.log import read_events
from kvverify.report.summary import Summary, of_type, summarise

E = TypeVar("E", bound=Event)

MOST_FAILURE_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``failures`` maps the path of a failure file inside the run folder to its contents, None where it is not there."""

    name: str
    path: Path
    events: Sequence[Event]
    summary: Summary
    log_hash: str
    failures: Mapping[str, dict[str, Any] | None] = field(default_factory=dict)

    @property
    def command(self) -> str:
        """The command that made the run, empty where the log does not say."""
        return self.summary.start.command if self.summary.start else ""

    @property
    def verdict(self) -> Verdict:
        """The verdict of the run by itself, computed from its events."""
        return self.summary.verdict

    def of(self, kind: type[E]) -> list[E]:
        """Return the events of one type, in order."""
        return of_type(self.events, kind)


def gather(paths: Iterable[Path]) -> list[Run]:
    """Read the runs in these folders, in their order.

    Raises:
        UsageError: a folder holds no run, its log is damaged, or one run was named twice.
    """
    listed = list(paths)
    runs: list[Run] = []
    for path, name in zip(listed, names(listed), strict=True):
        folder = RunFolder.open(path, writable=False)
        data = hashlib.sha256(folder.events.read_bytes()).hexdigest()
        twin = next((run for run in runs if run.log_hash == data), None)
        if twin is not None:
            raise UsageError(f"run {path}: its events are those of {twin.path}; name each run once")
        events = read_events(folder.events)
        runs.append(Run(name, path, events, summarise(events), data, _failures(path, events)))
    return runs


def names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest endings of the paths that tell them apart.

    >>> names([Path("a/h200/selftest"), Path("a/selftest"), Path("a/doctor")])
    ['h200/selftest', 'a/selftest', 'doctor']
    """
    parts = [path.resolve().parts for path in paths]
    found = []
    for own in parts:
        rest = [other for other in parts if other is not own]
        length = next((n for n in range(1, len(own) + 1) if all(other[-n:] != own[-n:] for other in rest)), len(own))
        found.append("/".join(own[-length:]))
    return found


def _failures(path: Path, events: Sequence[Event]) -> dict[str, dict[str, Any] | None]:
    return {e.path: _document(path / e.path) for e in of_type(events, FailureFound) if e.path}


def _document(path: Path) -> dict[str, Any] | None:
    """Return what a failure file says; None where it is missing or damaged, which a report says and replay explains."""
    try:
        if path.stat().st_size > MOST_FAILURE_BYTES:
            return None
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None
