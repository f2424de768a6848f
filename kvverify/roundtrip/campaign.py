"""A campaign: batches of programs over kernels and layouts, with events for everything that happened.

Batch k of a kernel is decided by (seed, kernel, k) alone. So it does not matter in which order kernels take turns, and a run
that was killed continues with the batch that was unfinished.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvverify.arena.payload import derive_key
from kvverify.errors import EnvironmentProblem
from kvverify.events import BatchFinished, CampaignStarted, Event, FailureFound, KernelProbed, ProblemMet
from kvverify.kernels.registry import KernelSource
from kvverify.layout.document import to_document
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.recipe import Recipe
from kvverify.roundtrip.child import Unavailable, log_file
from kvverify.roundtrip.failure import FailureFile, failure_document
from kvverify.roundtrip.hunt import Batch, hunt
from kvverify.roundtrip.program import Program
from kvverify.roundtrip.ranks import Runner, runner
from kvverify.roundtrip.strategies import Shape

Emit = Callable[[Event], None]
SaveFailure = Callable[[str, dict[str, Any]], str]

_HOST_BYTES = 2 << 20  # host slots are given out until about this many bytes are used
_LARGE_BATCH = 16
_LARGE_BYTES = 1 << 30  # of a buffer on a GPU that is not kept for the next turn
_OPENED_AT_ONCE = 4  # kernels whose processes start side by side
_FAILING_BATCHES = 5  # after so many a kernel's campaign ends: it is broken, and each costs a shrink


@dataclass(frozen=True, slots=True)
class Profile:
    """How much a campaign does: sequences a batch, longest sequence, and what ends it where the user says nothing."""

    name: str
    batch: int
    max_steps: int
    examples: int | None = None
    budget_s: float | None = None


PROFILES = {
    "ci": Profile("ci", 8, 12, examples=1056),
    "dev": Profile("dev", 8, 12, budget_s=60.0),
    "soak": Profile("soak", 8, 40, budget_s=3600.0),
}
SLOW_SHARE = 8  # a kernel in an interpreter gets this part of the examples
_SLOW_BATCH = 2  # and small batches, so that it meets many layouts
_SLOW_LAYERS = 16  # and no layouts of more layers, of which one sequence takes seconds


@dataclass(frozen=True, slots=True)
class Target:
    """A layout that a kernel accepted, with what its programs may use."""

    recipe: dict[str, Any]
    layout: Layout
    shape: Shape


@dataclass(slots=True)
class Lane:
    """One kernel's campaign: its child, its layouts and how far it is."""

    source: KernelSource
    child: Runner
    targets: list[Target] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)
    next_batch: int = 0
    sequences: int = 0
    spent_s: float = 0.0
    failing_batches: int = 0
    slow: bool = False
    closed: bool = False

    def batch_size(self, profile: Profile) -> int:
        """Sequences of one batch of this kernel."""
        return _SLOW_BATCH if self.slow else profile.batch


@dataclass(frozen=True, slots=True)
class Plan:
    """What to run. ``examples`` is per kernel; exactly one of ``examples`` and ``budget_s`` is set."""

    sources: tuple[KernelSource, ...]
    recipes: tuple[Recipe, ...]
    seed: int
    profile: Profile
    named: bool = True  # kernels asked for by name must run; of others, those that cannot run here are left out
    examples: int | None = None
    budget_s: float | None = None
    fault: str = ""
    time_limit: float = 20.0
    logs: Path | None = None
    forking: bool = True
    ranks: int = 1  # processes that execute each program, on a GPU each


class Campaign:
    """Runs a plan; ``earlier`` are the events of an interrupted run that is resumed."""

    def __init__(self, plan: Plan, emit: Emit, save_failure: SaveFailure, earlier: Iterable[Event] = ()) -> None:
        self.plan = plan
        self._emit = emit
        self._save = save_failure
        self._earlier = list(earlier)
        self._lanes: list[Lane] = []

    def run(self) -> None:
        """Open every kernel's lane, then let the lanes take turns until examples or budget are used up."""
        began = time.monotonic()
        try:
            self._lanes = [self._lane(source) for source in self.plan.sources]
            with ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:  # importing a serving engine takes ten seconds
                offers = [pool.submit(self._offer_layouts, lane) for lane in self._lanes]
                for opened, offer in zip(self._lanes, offers, strict=True):
                    self._open(opened, offer)
            while (lane := self._next_lane(time.monotonic() - began)) is not None:
                self._turn(lane)
        finally:
            for lane in self._lanes:
                lane.child.close()

    def _lane(self, source: KernelSource) -> Lane:
        child = runner(
            source,
            ranks=self.plan.ranks,
            fault=self.plan.fault,
            time_limit=self.plan.time_limit,
            log=log_file(self.plan.logs, source),
            forking=self.plan.forking,
        )
        return Lane(source, child)

    def _open(self, lane: Lane, offer: Future[dict[str, str]]) -> None:
        source = lane.source
        try:
            refused = offer.result()
        except Unavailable as error:
            lane.closed = True
            self._emit(KernelProbed(kernel=source.name, available=False, requested=self.plan.named, reason=str(error)))
            if self.plan.named and len(self.plan.sources) == 1:  # nothing of what was asked for can be done here
                self._emit(ProblemMet(where=f"kernel {source.name}", problem=str(error)))
            return
        except EnvironmentProblem as error:
            lane.closed = True
            self._emit(KernelProbed(kernel=source.name, available=False, reason=str(error)))
            self._emit(ProblemMet(where=f"kernel {source.name}", problem=str(error)))
            return
        self._emit(KernelProbed(kernel=source.name, available=True, provenance=lane.provenance))
        layouts = {t.layout.name: list(t.layout.formats) for t in lane.targets}
        self._emit(CampaignStarted(kernel=source.name, layouts=layouts, refused=refused, notes=self._notes(lane)))
        self._recall(lane)

    def _offer_layouts(self, lane: Lane) -> dict[str, str]:
        """Start the kernel's process and ask it about every layout; return what it refuses, with its reasons."""
        lane.child.start()
        refused = {}
        for recipe in self.plan.recipes:
            document, layout = to_document(recipe), place(recipe)
            answer = lane.child.describe(document)
            lane.slow = lane.slow or answer["slow"]
            if (reason := unusable(layout, answer)) is not None:
                refused[layout.name] = reason
            elif answer["slow"] and len(layout.layers) > _SLOW_LAYERS and len(self.plan.recipes) > 1:
                refused[layout.name] = (
                    f"{len(layout.layers)} layers take a kernel in an interpreter too long; name it with --layout"
                )
            else:
                lane.provenance = answer["provenance"] or lane.provenance
                lane.targets.append(Target(document, layout, shape_for(layout, answer)))
        return refused

    def _notes(self, lane: Lane) -> list[str]:
        notes = []
        if any(not t.shape.host_checked for t in lane.targets):
            notes.append("host side not checked: the library owns its tier and does not hand it out")
        if self.plan.fault:
            notes.append(f"planted fault {self.plan.fault}")
        if self.plan.ranks > 1:
            notes.append(
                f"{self.plan.ranks} ranks, a process each, that execute the same programs; bytes are those of all"
            )
        return notes

    def _recall(self, lane: Lane) -> None:
        """Take over what an interrupted run had finished for this kernel."""
        done = [e for e in self._earlier if isinstance(e, BatchFinished) and e.kernel == lane.source.name]
        finished = {e.batch for e in done}
        lane.next_batch = max(finished, default=-1) + 1
        lane.sequences = sum(e.sequences for e in done)
        lane.spent_s = sum(e.seconds for e in done)
        failures = [e for e in self._earlier if isinstance(e, FailureFound) and e.kernel == lane.source.name]
        lane.failing_batches = len({e.batch for e in failures if e.batch in finished})

    def _next_lane(self, elapsed: float) -> Lane | None:
        """The lane that has used the least time and is not done; None when all are."""
        open_lanes = [lane for lane in self._lanes if not self._done(lane)]
        if self.plan.budget_s is not None and elapsed >= self.plan.budget_s:
            open_lanes = [lane for lane in open_lanes if lane.sequences == 0]  # each kernel gets a turn at least
        return min(open_lanes, key=lambda lane: lane.spent_s, default=None)

    def _done(self, lane: Lane) -> bool:
        if lane.closed or not lane.targets or lane.failing_batches >= _FAILING_BATCHES:
            return True
        return self.plan.examples is not None and lane.next_batch * lane.batch_size(
            self.plan.profile
        ) >= self._examples(lane)

    def _examples(self, lane: Lane) -> int:
        wanted = self.plan.examples or 0
        return -(-wanted // SLOW_SHARE) if lane.slow else wanted

    def _turn(self, lane: Lane) -> None:
        number, target = lane.next_batch, lane.targets[lane.next_batch % len(lane.targets)]
        examples = lane.batch_size(self.plan.profile)
        if self.plan.examples is not None:
            examples = min(examples, self._examples(lane) - number * examples)
        seed = derive_key(self.plan.seed, zlib.crc32(lane.source.name.encode()), number)
        began = time.monotonic()
        try:
            batch = hunt(
                lane.child,
                target.recipe,
                target.shape,
                seed=seed,
                examples=examples,
                max_steps=self.plan.profile.max_steps,
            )
        except EnvironmentProblem as error:
            self._emit(ProblemMet(where=f"kernel {lane.source.name}, layout {target.layout.name}", problem=str(error)))
            lane.closed = True
            return
        seconds = time.monotonic() - began
        if batch.refused:
            self._emit(
                ProblemMet(where=f"kernel {lane.source.name}, layout {target.layout.name}", problem=batch.refused)
            )
        self._report_failure(lane, number, target, batch)
        self._emit(_finished(lane, number, target, batch, seconds))
        if lane.source.device != "cpu" and target.layout.size_bytes >= _LARGE_BYTES:
            lane.child.release()  # the processes of all kernels share the GPU
        lane.next_batch += 1
        lane.sequences += batch.sequences
        lane.spent_s += seconds

    def _report_failure(self, lane: Lane, number: int, target: Target, batch: Batch) -> None:
        if batch.found is None:
            return
        program, outcome = batch.found.program, batch.found.outcome
        failure = FailureFile(
            lane.source.spec,
            self.plan.fault,
            target.recipe,
            program,
            outcome,
            lane.source.device,
            self.plan.ranks,
        )
        document = failure_document(
            failure, seed=self.plan.seed, batch=number, provenance=lane.provenance, time_limit=self.plan.time_limit
        )
        path = self._save(f"{lane.source.name}-{number:05d}-{outcome.fingerprint}", document)
        lane.failing_batches += 1
        known = {(e.kernel, e.batch, e.fingerprint) for e in self._earlier if isinstance(e, FailureFound)}
        if (lane.source.name, number, outcome.fingerprint) in known:
            return
        self._emit(failure_found(failure, number, lane.source.name, target.layout.name, path))


def unusable(layout: Layout, answer: dict[str, Any]) -> str | None:
    """Return None where programs can exercise a kernel on ``layout``, else why not; ``answer`` is of ``describe``."""
    if answer["reason"] is not None:
        return str(answer["reason"])
    if len(layout.groups) > 1 and not answer["groups"]:
        return f"{len(layout.groups)} block tables, and the kernel does not declare groups = True"
    per_slot = answer["blocks_per_slot"]
    if len(layout.blocks) < per_slot and not answer["partial_slots"]:  # stores alone would pass for a verified layout
        return f"{len(layout.blocks)} blocks, and a load of this kernel takes {per_slot} or more"
    return None


def shape_for(layout: Layout, answer: dict[str, Any]) -> Shape:
    """Return what programs may use, from the layout and from what the kernel said of itself (a ``describe`` answer)."""
    per_slot = int(answer["blocks_per_slot"])
    slot_bytes = layout.host_slot_bytes() * per_slot
    affordable = max(2, _HOST_BYTES // max(1, slot_bytes))
    # a batch of 16 and one more has to fit where the pool is large enough to need it; elsewhere LMCache's batch of 4 and one
    wanted = _LARGE_BATCH + 2 if len(layout.blocks) > _LARGE_BATCH * per_slot else 6
    return Shape(
        blocks=layout.blocks,
        groups=len(layout.groups),
        host_slots=min(wanted, affordable, max(5, len(layout.blocks) // per_slot + 1)),
        blocks_per_slot=per_slot,
        load_part=bool(answer["load_part"]),
        partial_slots=bool(answer["partial_slots"]),
        slow=bool(answer["slow"]),
        races=answer["device"] != "cpu",
        polls=bool(answer["done"]),
        host_checked=not answer["owns_host"],
    )


def _finished(lane: Lane, number: int, target: Target, batch: Batch, seconds: float) -> BatchFinished:
    return BatchFinished(
        batch=number,
        kernel=lane.source.name,
        layout=target.layout.name,
        order=target.layout.order,
        sequences=batch.sequences,
        steps=dict(batch.steps),
        formats=dict.fromkeys(target.layout.formats, batch.sequences),
        lengths=dict(batch.lengths),
        compared_bytes=batch.compared_bytes,
        moved_bytes=batch.moved_bytes,
        seconds=seconds,
    )


def failure_found(failure: FailureFile, batch: int, kernel: str, layout: str, path: str) -> FailureFound:
    """Return the event that tells of ``failure``, which was written to ``path`` inside the run folder."""
    outcome = failure.outcome
    return FailureFound(
        batch=batch,
        kernel=kernel,
        layout=layout,
        kind=outcome.kind,
        step=outcome.step,
        headline=outcome.headline,
        details=[*program_lines(failure.program, outcome.step), *outcome.details],
        path=path,
        fingerprint=outcome.fingerprint,
    )


def program_lines(program: Program, at: int) -> list[str]:
    """Write a program for a person, a line a step; ``at`` is the step at fault."""
    lines = []
    for number, step in enumerate(program.steps):
        kind, *arguments = step.to_json()
        lines.append(f"step {number}: {kind}({', '.join(map(str, arguments))}){'  <- here' if number == at else ''}")
    return lines
