"""What a mean over tasks may be called: RULER's score is the mean of all its 13 tasks, and of nothing less."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kvverify.report.words import plural

_NIAH = ("single_1", "single_2", "single_3", "multikey_1", "multikey_2", "multikey_3", "multivalue", "multiquery")
RULER_TASKS = frozenset([*(f"niah_{name}" for name in _NIAH), "vt", "cwe", "fwe", "qa_1", "qa_2"])
_SCOPE = re.compile(r"(?:task (?P<task>.+?))? ?(?:length (?P<length>\d+))?")


def mean_name(tasks: Iterable[str]) -> str:
    """Return the name of the mean over these tasks.

    >>> mean_name(["vt", "cwe"]), mean_name(RULER_TASKS)
    ('mean of 2 tasks', 'RULER mean of 13 tasks')
    """
    names = frozenset(tasks)
    return f"RULER mean of {len(names)} tasks" if names == RULER_TASKS else f"mean of {plural(len(names), 'task')}"


def scope_parts(scope: str) -> tuple[str, int | None]:
    """Return task and length of the scope of a difference; "" and None where it is over all of them.

    >>> scope_parts("task vt length 4096"), scope_parts("length 4096"), scope_parts("all")
    (('vt', 4096), ('', 4096), ('', None))
    """
    found = _SCOPE.fullmatch(scope)
    if found is None:
        return "", None
    return found["task"] or "", int(found["length"]) if found["length"] else None
