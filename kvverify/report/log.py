"""The event log: one JSON object a line, appended as things happen, readable after a kill at any byte.

A killed writer leaves at most one unfinished line, the last. Reading drops it, resuming removes it; a damaged line anywhere
else means that somebody changed the log, and that is an error.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from kvverify.errors import UsageError
from kvverify.event_json import from_json, to_json
from kvverify.events import Event
from kvverify.report.folder import RunFolder, disk_problem


class Consumer(Protocol):
    """Whoever wants to hear of events."""

    def handle(self, event: Event) -> None:
        """Take one event; events come in order."""
        ...

    def close(self) -> None:
        """Release what is held; called once, also after a problem."""
        ...


class EventBus:
    """Hands every event to all consumers, in their order, and keeps it in ``events``.

    ``earlier`` are the events of the run that is being resumed; they are kept but not handed out again.
    """

    def __init__(self, consumers: Iterable[Consumer], earlier: Iterable[Event] = ()) -> None:
        self.events: list[Event] = list(earlier)
        self._consumers = list(consumers)

    def emit(self, event: Event) -> None:
        """Give ``event`` its time and hand it out."""
        event = _stamped(event)
        self.events.append(event)
        for consumer in self._consumers:
            consumer.handle(event)

    def close(self) -> None:
        """Close all consumers, also where one of them fails to."""
        with contextlib.ExitStack() as stack:
            for consumer in reversed(self._consumers):
                stack.callback(consumer.close)


class EventWriter:
    """Appends events to the log of a run folder; every event is with the operating system when ``handle`` returns.

    Opening the log of an earlier run removes an unfinished last line.

    Raises:
        UsageError: the log is damaged, or another process is writing it.
        EnvironmentProblem: the log cannot be written.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._path = folder.events
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise disk_problem(f"event log {self._path}", error) from error
        try:
            self._lock()
            self._repair()
        except BaseException:
            self.close()
            raise

    def handle(self, event: Event) -> None:
        """Append ``event``; EnvironmentProblem where it does not fit, the log then ends with the event before."""
        self._append(_line(_stamped(event)))

    def close(self) -> None:
        """Close the log; a second call does nothing."""
        if self._file < 0:
            return
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):  # what a full disk refuses has been reported when it was written
            os.fsync(file)
        os.close(file)

    def _append(self, data: bytes) -> None:
        size = os.fstat(self._file).st_size
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, size)
            raise disk_problem(f"event log {self._path}", error) from error

    def _lock(self) -> None:
        # a POSIX lock and not flock: a hung child must not keep it after its parent is gone
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                message = f"run {self._path.parent}: another process is still writing it; wait for it or stop it first"
                raise UsageError(message) from error

    def _repair(self) -> None:
        # through the same descriptor: closing another one of this file would give up the lock
        data = os.pread(self._file, os.fstat(self._file).st_size, 0)
        _, good = _parse(self._path, data)
        if good < len(data):
            os.ftruncate(self._file, good)
        if good and not data[:good].endswith(b"\n"):
            self._append(b"\n")


def read_events(path: Path) -> list[Event]:
    """Return the events of a log; ``path`` is the log or its run folder. An unfinished last line is left out.

    Raises:
        UsageError: no such log, or a damaged line, which is named.
    """
    log = path / "events.ndjson" if path.is_dir() else path
    try:
        data = log.read_bytes()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"event log {log}: cannot be read ({reason}); expected a run folder or its events.ndjson"
        ) from error
    return _parse(log, data)[0]


def _parse(path: Path, data: bytes) -> tuple[list[Event], int]:
    """Return the events in ``data`` and how many bytes of it are good."""
    *lines, tail = data.split(b"\n")
    events: list[Event] = []
    for number, line in enumerate(lines, start=1):
        try:
            events.append(from_json(_as_object(line)))
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"event log {path}, line {number}: damaged ({error}); expected one event as a JSON object; "
                "restore the file or run again"
            ) from error
    try:
        events.append(from_json(_as_object(tail)))
    except (ValueError, RecursionError):  # the writer was killed inside this line
        return events, len(data) - len(tail)
    return events, len(data)


def _as_object(line: bytes) -> dict[str, Any]:
    value = json.loads(line.decode("utf-8"))
    if not isinstance(value, dict):
        raise ValueError(f"got {type(value).__name__}")
    return value


def _stamped(event: Event) -> Event:
    return event if event.at else replace(event, at=time.time())


def _line(event: Event) -> bytes:
    data = to_json(event)
    try:
        text = json.dumps(data, allow_nan=False, default=str)
    except (TypeError, ValueError):  # provenance is whatever a kernel returned
        text = json.dumps(_plain(data), allow_nan=False, default=str)
    return text.encode("ascii") + b"\n"


def _plain(value: Any) -> Any:
    """Return ``value`` with string keys and without the floats that JSON does not know."""
    match value:
        case dict():
            return {str(k): _plain(v) for k, v in value.items()}
        case list() | tuple():
            return [_plain(v) for v in value]
        case float() if not math.isfinite(value):
            return str(value)
        case _:
            return value
