"""The run folder: where one run keeps its event log, its provenance, its failure files and its reports.

A folder that cannot be written is found out before anything runs, and nothing half written is left behind.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kvverify.errors import EnvironmentProblem, UsageError

PROBE_BYTES = 65536  # less, and a file system that holds small files in its inodes would hide that it is full
_OWNED = ("events.ndjson", "run.json", "failures", "report.html", "report.md", "junit.xml")


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The folder of one run. Make one with :meth:`create` or :meth:`open`."""

    path: Path

    @property
    def events(self) -> Path:
        """The NDJSON event log, which is the truth about the run."""
        return self.path / "events.ndjson"

    @property
    def run_json(self) -> Path:
        """Versions, seed and the source of every option."""
        return self.path / "run.json"

    @property
    def failures(self) -> Path:
        """The folder of failure files; it exists once there is one."""
        return self.path / "failures"

    @property
    def html(self) -> Path:
        """The self-contained page."""
        return self.path / "report.html"

    @property
    def markdown(self) -> Path:
        """The Markdown report."""
        return self.path / "report.md"

    @property
    def junit(self) -> Path:
        """The JUnit report."""
        return self.path / "junit.xml"

    @classmethod
    def create(cls, out: Path | None, command: str) -> RunFolder:
        """Make a new folder: ``out``, or ``runs/<UTC time>-<command>[-n]`` where that is None.

        Raises:
            UsageError: ``out`` already holds a run.
            EnvironmentProblem: the folder cannot be made or written; nothing of it is left.
        """
        if out is not None and (held := next((name for name in _OWNED if os.path.lexists(out / name)), None)):
            raise UsageError(
                f"--out {out}: already holds a run ({held}); continue it with --resume {out}, or name another folder"
            )
        made: list[Path] = []
        wanted = out if out is not None else Path("runs") / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{command}"
        try:
            with _disk_problems(f"run folder {wanted}"):
                path = _make_folders(wanted, made, numbered=out is None)
                _probe(path)
        except BaseException:
            for folder in reversed(made):
                with suppress(OSError):
                    folder.rmdir()
            raise
        return cls(path)

    @classmethod
    def open(cls, path: Path, *, writable: bool = True) -> RunFolder:
        """Return the folder of an earlier run; ``writable`` False where it will only be read.

        Raises:
            UsageError: there is no run in ``path``.
            EnvironmentProblem: ``path`` is to be written and cannot be.
        """
        folder = cls(path)
        if not path.is_dir():
            problem = "is a file" if path.exists() else "does not exist"
            raise UsageError(f"run {path}: {problem}; expected the folder that an earlier run printed")
        if not folder.events.is_file():
            raise UsageError(f"run {path}: holds no events.ndjson; expected the folder that an earlier run printed")
        if writable:
            with _disk_problems(f"run folder {path}"):
                _probe(path)
        return folder

    def make(self) -> None:
        """Make the folder, with its parents, for reports alone; EnvironmentProblem where that is not possible."""
        with _disk_problems(f"folder {self.path}"):
            self.path.mkdir(parents=True, exist_ok=True)

    def write_run_json(self, data: dict[str, Any]) -> None:
        """Write ``run.json``; EnvironmentProblem where that is not possible."""
        write_atomically(self.run_json, _as_json(data))

    def write_failure(self, name: str, data: dict[str, Any]) -> str:
        """Write one failure file and return its path inside the run folder, as ``FailureFound.path`` wants it.

        Characters of ``name`` that a file name cannot carry everywhere are replaced by ``_``.

        Raises:
            EnvironmentProblem: it cannot be written; an earlier file of that name is kept.
        """
        safe = re.sub(r"[^A-Za-z0-9._-]", "_", name.removesuffix(".json")).lstrip(".")[:120] or "failure"
        with _disk_problems(f"run folder {self.failures}"):
            self.failures.mkdir(exist_ok=True)
        write_atomically(self.failures / f"{safe}.json", _as_json(data))
        return f"failures/{safe}.json"


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that ``path`` holds either all of it or what it held before.

    Raises:
        EnvironmentProblem: the disk is full or the folder not writable.
    """
    # a name from a kernel may hold lone surrogates, which UTF-8 refuses
    data = text.encode("utf-8", errors="backslashreplace")
    with _disk_problems(f"file {path}"):
        # not mkstemp, whose files only their owner can read: reports are for others too
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def disk_problem(where: str, error: OSError) -> EnvironmentProblem:
    """Return the one-line problem for what the operating system refused."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return EnvironmentProblem(f"{where}: no space left; free some, or name a folder on another disk with --out")
    if error.errno in (errno.EEXIST, errno.ENOTDIR):
        return EnvironmentProblem(f"{where}: a file is in the way ({error.filename}); name another folder with --out")
    reason = error.strerror or str(error)
    return EnvironmentProblem(f"{where}: cannot be written ({reason}); name a writable folder with --out")


@contextmanager
def _disk_problems(where: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise disk_problem(where, error) from error


def _make_folders(wanted: Path, made: list[Path], *, numbered: bool) -> Path:
    """Make ``wanted`` and its parents, noting each new one in ``made``; ``numbered`` never takes an existing one."""
    for parent in reversed(wanted.parents):
        _make_one(parent, made)
    if not numbered:
        _make_one(wanted, made)
        return wanted
    path, n = wanted, 1
    while True:
        try:
            path.mkdir()
        except FileExistsError:
            n += 1
            path = wanted.with_name(f"{wanted.name}-{n}")
        else:
            made.append(path)
            return path


def _make_one(path: Path, made: list[Path]) -> None:
    if path.is_dir():
        return
    try:
        path.mkdir()
    except FileExistsError:
        if not path.is_dir():  # else another run made it in the meantime
            raise
    else:
        made.append(path)


def _probe(path: Path) -> None:
    """Write, sync and remove a file: only that shows a full disk or a quota."""
    handle, name = tempfile.mkstemp(prefix=".probe-", dir=path)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(b"\xa5" * PROBE_BYTES)
            file.flush()
            os.fsync(file.fileno())
    finally:
        Path(name).unlink(missing_ok=True)


def _as_json(data: dict[str, Any]) -> str:
    return json.dumps(data, indent=2, default=str) + "\n"
