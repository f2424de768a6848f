"""One comparison of real software with the reference, as the child process hands it to its parent."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvverify.conformance.difference import Difference


@dataclass(frozen=True, slots=True)
class Check:
    """What was compared; the fields are those of :class:`kvverify.events.CodecCompared`."""

    library: str
    format: str
    head_size: int
    what: str
    compared_bytes: int
    different_bytes: int
    near_midpoint: int = 0
    headline: str = ""
    note: str = ""
    seconds: float = 0.0


def timed(library: str, fmt: str, head_size: int, what: str, run: Callable[[], tuple[Difference, int, str]]) -> Check:
    """Run one comparison that returns its difference, the numbers near a midpoint, and a note; what it raises is a finding."""
    began = time.monotonic()
    numbers: dict[str, Any]
    try:
        found, near, note = run()
        numbers = {
            "compared_bytes": found.compared_bytes,
            "different_bytes": found.different_bytes,
            "near_midpoint": near,
            "headline": found.headline,
            "note": note,
        }
    except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
        lines = str(error).strip().splitlines() or [""]
        numbers = {"compared_bytes": 0, "different_bytes": 0, "headline": f"raised {type(error).__name__}: {lines[0]}"}
    return Check(library, fmt, head_size, what, seconds=time.monotonic() - began, **numbers)
