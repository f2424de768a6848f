"""One comparison of real software with the reference, which the child process makes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvverify.conformance.difference import Difference
from kvverify.events import CodecCompared


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison that is still to be made; ``run`` returns its difference, the numbers near a midpoint, and a note."""

    library: str
    format: str
    head_size: int
    what: str
    run: Callable[[], tuple[Difference, int, str]]

    @property
    def name(self) -> tuple[str, int, str]:
        """What tells it from the others of its library."""
        return self.format, self.head_size, self.what

    def check(self) -> CodecCompared:
        """Make and time it; what it raises is a finding."""
        began = time.monotonic()
        numbers: dict[str, Any]
        try:
            found, near, note = self.run()
            numbers = {
                "compared_bytes": found.compared_bytes,
                "different_bytes": found.different_bytes,
                "near_midpoint": near,
                "headline": found.headline,
                "note": note,
            }
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, NotImplementedError) as error:
            lines = str(error).strip().splitlines() or [""]
            headline = f"raised {type(error).__name__}: {lines[0]}"
            numbers = {"compared_bytes": 0, "different_bytes": 0, "headline": headline}
        seconds = time.monotonic() - began
        return CodecCompared(
            library=self.library,
            format=self.format,
            head_size=self.head_size,
            what=self.what,
            seconds=seconds,
            **numbers,
        )
