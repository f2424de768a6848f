"""One batch: let Hypothesis look for a program that one kernel gets wrong in one layout, and shrink it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded

from kvverify.arena.payload import derive_key
from kvverify.errors import EnvironmentProblem
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Ids, Program, Spin
from kvverify.roundtrip.ranks import Runner
from kvverify.roundtrip.shrink import shrink
from kvverify.roundtrip.strategies import Shape, programs

_SHRINK_TRIES = 300  # executions; counted and not timed, so that a batch ends the same way each time
_MOST_HANGS = 12  # each costs the time limit
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


def hunt(
    child: Runner, recipe: dict[str, Any], shape: Shape, *, seed: int, examples: int, max_steps: int = 12
) -> Batch:
    """Execute up to ``examples`` programs; stop at the first that fails and shrink it.

    Args:
        child: runs the kernel.
        recipe: the layout, as a document.
        shape: what programs may use.
        seed: decides every choice of the batch.
        examples: most programs before giving up.
        max_steps: longest program.

    Raises:
        EnvironmentProblem: the child cannot execute programs, through no fault of the kernel.
    """
    search = _Search(child, recipe)
    options = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate,),  # shrink.py shrinks, and says why
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        verbosity=Verbosity.quiet,
    )

    @seeded(derive_key(seed, 1))
    @options
    @given(programs(shape, derive_key(seed, 2) & 0xFFFFFFFF, max_steps))
    def no_program_fails(program: Program) -> None:
        if search.fails(program):
            raise KernelFailed(search.first.headline)

    with contextlib.suppress(KernelFailed):  # what failed is kept in the search
        no_program_fails()
    if search.problem is not None:
        raise search.problem
    if (failing := search.drained()) is not None:
        search.batch.found = search.explained(failing, shape.blocks)
    return search.batch


class _Search:
    """Executes for Hypothesis until something fails, then for the shrinker."""

    def __init__(self, child: Runner, recipe: dict[str, Any]) -> None:
        self.batch = Batch()
        self.failing: Program | None = None
        self.first = Outcome()  # of the failing program
        self.problem: EnvironmentProblem | None = None  # kept: Hypothesis would run the example again and call it flaky
        self._child = child
        self._recipe = recipe
        self._under_way: Program | None = None
        self._hung = 0

    def fails(self, program: Program) -> bool:
        """Hand ``program`` to the child; True once an earlier one has failed.

        The child executes while Hypothesis draws the next program, so an outcome is known one call later.
        """
        if self.problem is not None:
            return True
        try:
            if self.drained() is not None:
                return True
            self._child.begin(self._recipe, program)
        except EnvironmentProblem as problem:
            self.problem = problem
            return True
        self._under_way = program
        return False

    def drained(self) -> Program | None:
        """Take the outcome that is still to come; return the program that failed, if one has."""
        program, self._under_way = self._under_way, None
        if program is None:
            return self.failing
        outcome = self._child.finish()
        if outcome.kind == "refused":
            self.batch.refused = outcome.headline
            return None
        self._count(program, outcome)
        if outcome.failed:
            self.failing, self.first = program, outcome
        return self.failing

    def explained(self, failing: Program, blocks: Ids) -> Found:
        """Shrink the failing program and run what is left once more for its explanation."""
        program = shrink(failing, blocks, self._fails_alike, _SHRINK_TRIES)
        for _ in range(_REPEATS):
            outcome = self._child.run(self._recipe, program, explain=True)
            if _unexplained(outcome.kind) == self.first.kind:
                return Found(program, self._told_if_race(program, outcome))
        note = (
            f"failed once ({self.first.headline}) and then not in {_REPEATS} runs: a race, or state kept by the kernel"
        )
        return Found(failing, dataclasses.replace(self.first, details=[*self.first.details, note]))

    def _told_if_race(self, program: Program, outcome: Outcome) -> Outcome:
        """Say so if the program is executed rightly while the stream is idle."""
        idle = dataclasses.replace(program, steps=tuple(s for s in program.steps if not isinstance(s, Spin)))
        if idle == program or self._child.run(self._recipe, idle).failed:
            return outcome
        note = (
            "only while the stream is busy: without the spin the same steps are right, so a copy does not wait for what was "
            "enqueued on arena.stream before it"
        )
        return dataclasses.replace(outcome, details=[note, *outcome.details])

    def _fails_alike(self, program: Program) -> bool:
        if self._hung >= _MOST_HANGS:
            return False
        outcome = self._child.run(self._recipe, program)
        self._hung += outcome.kind == "hung"
        return outcome.kind == self.first.kind

    def _count(self, program: Program, outcome: Outcome) -> None:
        batch = self.batch
        batch.sequences += 1
        batch.steps.update(outcome.steps)
        batch.lengths[str(len(program.steps))] += 1
        batch.compared_bytes += outcome.compared_bytes
        batch.moved_bytes += outcome.moved_bytes


def _unexplained(kind: str) -> str:
    """The kind as it is before bytes are watched for a while: only an explanation tells early ones from wrong ones."""
    return "wrong-bytes" if kind == "early-return" else kind
