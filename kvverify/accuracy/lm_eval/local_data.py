"""A task's data set from files on this machine, read anew on every run: nothing is taken from a cache under another name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.errors import UsageError


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of a data set as it was named, where it is and its SHA-256."""

    name: str
    path: Path
    sha256: str


def find_file(task: str, name: str, folders: Sequence[Path], sha256: str = "") -> LocalFile:
    """Return the file ``name``: a path of the user's, or one relative to any of ``folders``, the first that has it.

    Raises:
        UsageError: there is none, or it has another checksum than ``sha256``.
    """
    found = next((path for path in (folder / name for folder in folders) if path.is_file()), None)
    if found is None:
        places = ", ".join(str(folder) for folder in folders)
        raise UsageError(f"task {task}: no file {name} in {places}; put it there: kvverify downloads nothing")
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if sha256 and digest != sha256:
        raise UsageError(f"task {task}: {found} has another checksum: expected {sha256}, got {digest}")
    return LocalFile(name, found, digest)


def read_split(task: str, file: LocalFile) -> Any:
    """Return the rows of ``file`` as a ``datasets.Dataset``, held in memory.

    Raises:
        UsageError: the format is unknown or the file is damaged.
    """
    import datasets
    import pyarrow as pa

    reader = READERS.get(file.path.suffix)
    if reader is None:
        raise UsageError(f"task {task}: {file.path}: expected a file named {', '.join(READERS)}")
    try:
        table = reader(file.path)
    except (ValueError, pa.ArrowException) as problem:  # ValueError: JSON and UTF-8
        raise UsageError(f"task {task}: {file.path} is damaged: {problem}") from problem
    if table.num_rows == 0:
        raise UsageError(f"task {task}: {file.path} holds no row")
    return datasets.Dataset(table)


def _jsonl(path: Path) -> Any:
    import pyarrow as pa

    lines = path.read_text(encoding="utf-8").split("\n")
    return pa.Table.from_pylist([json.loads(line) for line in lines if line.strip()])


def _json(path: Path) -> Any:
    import pyarrow as pa

    rows = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected a list of objects")
    return pa.Table.from_pylist(rows)


def _parquet(path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.read_table(path)


def _csv(path: Path) -> Any:
    import pyarrow.csv

    return pyarrow.csv.read_csv(path)


READERS: dict[str, Callable[[Path], Any]] = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet, ".csv": _csv}


def data_set(task: str, files: Mapping[str, LocalFile]) -> Callable[..., dict[str, Any]]:
    """Return what lm-eval calls ``custom_dataset``: a function that gives the splits, whatever it is asked with."""
    splits = {split: read_split(task, file) for split, file in files.items()}
    return lambda **_: splits
