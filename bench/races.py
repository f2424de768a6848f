"""How surely do campaigns find races, and do they cry without one? Needs a GPU.

    python -m bench.races --kernel memcpy-async --kernel lmcache-block --tries 100 --clean 200 --json races.json

A try is a campaign of up to 16 sequences with a seed of its own and one planted race; a clean campaign is the same without it.
Nothing is synchronised that a user's campaign would not. Exit code 1 where fewer than 99 % of the tries find the race, or a clean
campaign fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kvverify.arena.payload import derive_key
from kvverify.kernels.registry import resolve
from kvverify.layout.document import to_document
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe
from kvverify.roundtrip.campaign import shape_for
from kvverify.roundtrip.child import Child
from kvverify.roundtrip.collect import collected
from kvverify.roundtrip.outcome import Outcome

_FAULTS = ("F12", "F13", "F15")
_SEQUENCES = 16
_BAR = 0.99


@dataclass
class Series:
    """Campaigns of one kernel with one fault; ``fault`` is empty for clean ones."""

    kernel: str
    fault: str
    layout: str
    campaigns: int = 0
    failed: int = 0
    sequences: int = 0
    kinds: dict[str, int] = field(default_factory=dict)
    headline: str = ""
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Is the bar met: races found, or no alarm without one?"""
        return self.failed >= _BAR * self.campaigns if self.fault else self.failed == 0

    def add(self, outcome: Outcome | None, sequences: int) -> None:
        """Count one campaign with the outcome that failed, None where all were right."""
        self.campaigns += 1
        self.sequences += sequences
        if outcome is not None:
            self.failed += 1
            self.kinds[outcome.kind] = self.kinds.get(outcome.kind, 0) + 1
            self.headline = self.headline or outcome.headline


def measure(spec: str, device: str, fault: str, campaigns: int, seed: int) -> Series | None:
    """Run ``campaigns`` campaigns; None where the kernel cannot show the fault."""
    with Child(resolve(spec, device), fault=fault) as child:
        child.start()
        recipe, answer = _first_layout(child)
        layout = place(recipe)
        series, began = Series(spec, fault, layout.name), time.monotonic()
        if fault and _hidden(fault, answer, recipe):
            return None
        for number in range(campaigns):
            programs = collected(shape_for(layout, answer), derive_key(seed, number), _SEQUENCES)
            series.add(*_campaign(child, recipe, programs))
        series.seconds = round(time.monotonic() - began, 2)
        return series


def _campaign(child: Child, recipe: Recipe, programs: tuple[Any, ...]) -> tuple[Outcome | None, int]:
    for count, program in enumerate(programs, 1):
        outcome = child.run(to_document(recipe), program)
        if outcome.failed:
            return outcome, count
    return None, len(programs)


def _first_layout(child: Child) -> tuple[Recipe, dict[str, Any]]:
    for recipe in campaign_pool():
        answer = child.describe(to_document(recipe))
        if answer["reason"] is None and len(recipe.groups) == 1:
            return recipe, answer
    raise SystemExit(f"{child.source.name} takes no layout of the pool")


def _hidden(fault: str, answer: dict[str, Any], recipe: Recipe) -> str | None:
    from kvverify.faults.catalogue import fault_named

    return fault_named(fault).shows_on(answer, place(recipe))


def main() -> int:
    """Print a line a series, write all of them as JSON, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0] if __doc__ else "")
    parser.add_argument("--kernel", action="append", required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--clean", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = []
    for spec in given.kernel:
        for fault, campaigns in (*((f, given.tries) for f in _FAULTS), ("", given.clean)):
            series = measure(spec, given.device, fault, campaigns, given.seed)
            if series is None:
                print(f"{spec:<24} {fault}: n/a", flush=True)
                continue
            found.append(series)
            words = f"{series.failed} of {series.campaigns} {'found' if fault else 'false alarms'}"
            print(
                f"{spec:<24} {fault or 'clean':<6} {words}, {series.sequences} sequences, {series.seconds} s",
                flush=True,
            )
    if given.json:
        given.json.write_text(json.dumps([asdict(s) for s in found], indent=1) + "\n")
    return 0 if found and all(s.good for s in found) else 1


if __name__ == "__main__":
    sys.exit(main())
