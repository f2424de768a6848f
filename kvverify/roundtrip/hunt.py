"""One batch: let Hypothesis look for a program that one kernel gets wrong in one layout, and shrink it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded
from hypothesis.errors import Flaky

from kvverify.arena.payload import derive_key
from kvverify.roundtrip.child import Child
from kvverify.roundtrip.executor import Outcome
from kvverify.roundtrip.program import Ids, Program
from kvverify.roundtrip.shrink import shrink
from kvverify.roundtrip.strategies import Shape, programs

_SHRINK_TRIES = 300  # executions; counted and not timed, so that a batch ends the same way each time
_HUNG_COSTS = 25  # a hang costs as much as this many executions
_REPEATS = 5  # runs of the shrunk program before it is called irreproducible


class KernelFailed(Exception):
    """Raised inside the test function, for Hypothesis."""


@dataclass(frozen=True, slots=True)
class Found:
    """A failing program, shrunk, with its explanation."""

    program: Program
    outcome: Outcome


@dataclass(slots=True)
class Batch:
    """What one batch executed (shrinking not counted) and found."""

    sequences: int = 0
    steps: Counter[str] = field(default_factory=Counter)
    lengths: Counter[str] = field(default_factory=Counter)
    compared_bytes: int = 0
    moved_bytes: int = 0
    found: Found | None = None
    refused: str = ""


def hunt(child: Child, recipe: dict[str, Any], shape: Shape, *, seed: int, examples: int, max_steps: int = 18) -> Batch:
    """Execute up to ``examples`` programs; stop at the first that fails and shrink it.

    Args:
        child: runs the kernel.
        recipe: the layout, as a document.
        shape: what programs may use.
        seed: decides every choice of the batch.
        examples: most programs before giving up.
        max_steps: longest program.
    """
    search = _Search(child, recipe)
    options = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )

    @seeded(derive_key(seed, 1))
    @options
    @given(programs(shape, derive_key(seed, 2) & 0xFFFFFFFF, max_steps))
    def no_program_fails(program: Program) -> None:
        if search.fails(program):
            raise KernelFailed(search.kind)

    try:
        no_program_fails()
    except (
        KernelFailed,
        Flaky,
    ):  # flaky: a race or a value that comes and goes; what failed once is kept in the search
        pass
    if search.best is not None:
        search.batch.found = search.explained(shape.blocks)
    return search.batch


class _Search:
    """Executes for Hypothesis, remembers the smallest failing program, and bounds the work of shrinking."""

    def __init__(self, child: Child, recipe: dict[str, Any]) -> None:
        self.batch = Batch()
        self.best: Program | None = None
        self.original: Program | None = None
        self.kind = ""
        self._child = child
        self._recipe = recipe
        self._first = Outcome()
        self._known: dict[Program, bool] = {}
        self._left = _SHRINK_TRIES

    def fails(self, program: Program) -> bool:
        """Does ``program`` fail (as the first failure did, once there is one)?"""
        if self.best is not None:  # shrinking: what was answered once is answered alike
            if program in self._known:
                return self._known[program]
            if self._left <= 0:
                return False
        outcome = self._child.run(self._recipe, program)
        failed = self._took(program, outcome) if self.best is None else self._shrunk(program, outcome)
        self._known[program] = failed
        return failed

    def explained(self, blocks: Ids) -> Found:
        """Shrink the best program further and run it once more for its explanation."""
        if self.best is None or self.original is None:
            raise AssertionError("nothing failed")
        self._left = max(self._left, _SHRINK_TRIES // 2)
        program = shrink(self.best, blocks, self.fails)
        for _ in range(_REPEATS):
            outcome = self._child.run(self._recipe, program, explain=True)
            if outcome.failed:
                return Found(program, outcome)
        note = (
            f"failed once ({self._first.headline}) and then not in {_REPEATS} runs: a race, or state kept by the kernel"
        )
        return Found(self.original, dataclasses.replace(self._first, details=[*self._first.details, note]))

    def _took(self, program: Program, outcome: Outcome) -> bool:
        if outcome.kind == "refused":
            self.batch.refused = outcome.headline
            return False
        batch = self.batch
        batch.sequences += 1
        batch.steps.update(outcome.steps)
        batch.lengths[str(len(program.steps))] += 1
        batch.compared_bytes += outcome.compared_bytes
        batch.moved_bytes += outcome.moved_bytes
        if outcome.failed:
            self.best = self.original = program
            self.kind, self._first = outcome.kind, outcome
        return outcome.failed

    def _shrunk(self, program: Program, outcome: Outcome) -> bool:
        self._left -= _HUNG_COSTS if outcome.kind == "hung" else 1
        if outcome.kind != self.kind:
            return False
        if self.best is None or _size(program) < _size(self.best):
            self.best = program
        return True


def _size(program: Program) -> tuple[int, int]:
    return len(program.steps), sum(len(step.to_json()[1:]) + _ids(step) for step in program.steps)


def _ids(step: object) -> int:
    return len(getattr(step, "blocks", ())) + len(getattr(step, "slots", ()))
