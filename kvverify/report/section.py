"""What the reports of live runs are made of: tables, and the things checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvverify.events import Verdict


@dataclass(frozen=True, slots=True)
class Section:
    """One table. ``numbers`` are the columns that are aligned to the right; ``brief``: also at the end of the run's output.

    ``picture`` is an SVG of the same, for the page; its texts are escaped. Cells of the columns ``unbroken`` stay on one line.
    """

    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: frozenset[int] = frozenset()
    brief: bool = False
    picture: str = ""
    unbroken: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class LiveCase:
    """One thing that was checked, for JUnit: ``messages`` say why it is not a PASS. ``family`` is live or accuracy."""

    group: str
    name: str
    verdict: Verdict
    messages: list[str]
    numbers: str = ""
    family: str = "live"
