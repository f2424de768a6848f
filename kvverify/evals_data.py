"""Where suites, corpora and policies are: the user's own path first, then what is shipped."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from kvverify.errors import UsageError, nearest


def shipped(folder: str) -> Path:
    """Return the folder of evals/ that is shipped: inside the wheel, or beside the package in a checkout."""
    inside = Path(str(files("kvverify"))) / "evals" / folder
    return inside if inside.is_dir() else Path(str(files("kvverify"))).parent / "evals" / folder


def data_file(folder: str, name: str, suffix: str) -> Path:
    """Return the file that ``name`` means: a path of the user's, or the name of a shipped file without its ``suffix``.

    Raises:
        UsageError: neither exists; the nearest names are given.
    """
    own = Path(name)
    if own.is_file():
        return own
    found = shipped(folder) / f"{name}{suffix}"
    if found.is_file():
        return found
    names = [path.name.removesuffix(suffix) for path in shipped(folder).glob(f"*{suffix}")]
    raise UsageError(f"{name}: no such file and nothing shipped of this name in {folder}; {nearest(name, names)}")
