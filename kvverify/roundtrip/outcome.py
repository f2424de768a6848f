"""What came of one program."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What one program did. ``kind`` is empty when all is right; ``step`` is the step at fault."""

    kind: str = ""
    step: int = -1
    headline: str = ""
    details: list[str] = dataclasses.field(default_factory=list)
    first: dict[str, Any] = dataclasses.field(default_factory=dict)
    fingerprint: str = ""
    compared_bytes: int = 0
    moved_bytes: int = 0
    steps: dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def failed(self) -> bool:
        """Did the kernel break a property?"""
        return bool(self.kind)
