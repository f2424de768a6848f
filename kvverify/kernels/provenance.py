"""Which code did the work: library versions and file digests for reports."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
from collections.abc import Iterable
from pathlib import Path


def file_digests(paths: Iterable[str | None]) -> dict[str, str]:
    """Return the sha256 of each file, keyed by package-relative name; missing paths are left out.

    The name is the path from the folder that holds the top package (``vllm/v1/.../swap_blocks_triton.py``), so that a report
    does not carry a machine's folders.
    """
    found = (Path(p) for p in paths if p)
    return {_package_name(p): _digest(p, p.stat().st_mtime_ns) for p in found if p.is_file()}


@functools.lru_cache(maxsize=1024)
def _digest(path: Path, _changed_ns: int) -> str:
    # a kernel is asked for every layout, and extensions have hundreds of megabytes
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _package_name(path: Path) -> str:
    top = path.parent
    while (top / "__init__.py").is_file():
        top = top.parent
    return path.relative_to(top).as_posix()


def library_version(distribution: str) -> str:
    """Return the installed version of ``distribution``, «unknown» where its metadata are missing."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
