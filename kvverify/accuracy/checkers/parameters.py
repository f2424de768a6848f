"""How many fields of a JSON value are right: every leaf by its path, nothing forgiven but how a number is written."""

from __future__ import annotations

import math
from typing import Any

Path = tuple[str | int, ...]


def share_right(expected: Any, got: Any) -> float:
    """Return right leaves / leaves of either side, 0 to 1; 1 exactly where both are the same value.

    A field that is missing and a field that nobody asked for count alike. 3 and 3.0 are one number, true and 1 are not, and an
    empty list is a leaf of its own.
    """
    mine, theirs = _leaves(expected), _leaves(got)
    right = sum(path in theirs and same_leaf(leaf, theirs[path]) for path, leaf in mine.items())
    return right / len(mine.keys() | theirs.keys())


def same_leaf(expected: Any, got: Any) -> bool:
    """Return whether two values without an inside are the same JSON value."""
    if isinstance(expected, bool) or isinstance(got, bool):
        return expected is got
    if isinstance(expected, int | float) and isinstance(got, int | float):
        return _same_number(expected, got)
    return type(expected) is type(got) and bool(expected == got)


def _same_number(expected: float, got: float) -> bool:
    if isinstance(expected, int) and isinstance(got, int):
        return expected == got
    try:
        return math.isclose(expected, got, rel_tol=1e-9)
    except OverflowError:  # an integer beyond the largest double
        return False


def _leaves(value: Any) -> dict[Path, Any]:
    """Return every leaf by its path; no recursion, since an answer may be nested as deeply as JSON's reader allows."""
    leaves: dict[Path, Any] = {}
    waiting: list[tuple[Path, Any]] = [((), value)]
    while waiting:
        path, at = waiting.pop()
        if isinstance(at, dict) and at:
            waiting += [((*path, key), inner) for key, inner in at.items()]
        elif isinstance(at, list) and at:
            waiting += [((*path, place), inner) for place, inner in enumerate(at)]
        else:
            leaves[path] = at
    return leaves
