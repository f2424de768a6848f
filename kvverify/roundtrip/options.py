"""The options of a roundtrip run as one record: checked once, stored in the event log, read back by --resume."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvverify.errors import UsageError, nearest
from kvverify.kernels.registry import resolve
from kvverify.layout.document import from_document
from kvverify.logged_options import LoggedOptions
from kvverify.roundtrip.campaign import PROFILES, Plan

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class RoundtripOptions(LoggedOptions):
    """What decides a run. ``recipes`` are the layouts as documents, so that a resumed run needs no file or model again."""

    kernels: tuple[str, ...]
    named: bool  # by the user; of kernels that were not, those that cannot run here are left out
    recipes: tuple[dict[str, Any], ...]
    profile: str
    examples: int | None
    budget_s: float | None
    plant: str
    time_limit: float
    seed: int
    device: str = "cpu"
    ranks: int = 1

    def plan(self, *, logs: Path | None, spent_s: float = 0.0) -> Plan:
        """Return the plan; ``spent_s`` of the budget were used before an interruption."""
        return Plan(
            sources=tuple(resolve(spec, self.device) for spec in self.kernels),
            named=self.named,
            recipes=tuple(from_document(r, "layout of the run") for r in self.recipes),
            seed=self.seed,
            profile=PROFILES[self.profile],
            examples=self.examples,
            budget_s=None if self.budget_s is None else max(0.0, self.budget_s - spent_s),
            fault=self.plant,
            time_limit=self.time_limit,
            logs=logs,
            ranks=self.ranks,
        )


def seconds_of(text: str) -> float:
    """Read a duration such as ``90``, ``60s``, ``10m`` or ``2h``.

    Raises:
        UsageError: it is none, or not positive.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip().lower())
    if match is None or float(match[1]) <= 0:
        raise UsageError(f"--budget {text!r}: not a duration; expected a number with s, m or h, such as 60s")
    return float(match[1]) * _UNITS[match[2] or "s"]


def profile_named(name: str) -> str:
    """Return ``name`` if there is such a profile.

    Raises:
        UsageError: there is none.
    """
    if name not in PROFILES:
        raise UsageError(f"--profile {name!r}: unknown; {nearest(name, PROFILES)}")
    return name
