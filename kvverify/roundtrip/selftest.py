"""The self-test: plant every fault of the catalogue into every kernel and see that the campaigns' own check finds it.

Beside the faults each kernel runs the same programs without one, as the control: an oracle that cried at everything would kill
every fault.
"""

from __future__ import annotations

import dataclasses
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any

from kvverify.arena.payload import derive_key
from kvverify.errors import EnvironmentProblem
from kvverify.events import (
    BatchFinished,
    CampaignStarted,
    Event,
    FaultPlanted,
    KernelProbed,
    ProblemMet,
)
from kvverify.faults.catalogue import catalogue
from kvverify.faults.fault import CARRIED_BLOCKS, CARRIERS, Fault
from kvverify.kernels.registry import KernelSource, names
from kvverify.layout.document import to_document
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe
from kvverify.roundtrip.campaign import SaveFailure, failure_found, shape_for, unusable
from kvverify.roundtrip.child import Child, Unavailable, log_file
from kvverify.roundtrip.collect import collected
from kvverify.roundtrip.failure import FailureFile, failure_document
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.program import Program
from kvverify.roundtrip.strategies import Shape

Emit = Callable[[Event], None]
LeftOut = Callable[[str, str], None]
Describe = dict[str, Any]

DEFAULT_KERNELS = ("torch", "lmcache", "vllm-triton")
_PORTION = 16  # programs made at a time
_PORTIONS = 6  # most portions that one fault gets on one layout
_LAYOUTS = 3  # layouts that one fault gets with one kernel
_CONTROLS, _SLOW_CONTROLS = 16, 4  # clean programs on each layout that a fault was tried on
_WORKERS = 2  # kernels at a time


@dataclass(frozen=True, slots=True)
class SelfTest:
    """What to do.

    ``given`` says that the user named the kernels. Where he did not, one that does not run here is left out, and a slow one
    (in an interpreter) gets the reported faults only.
    """

    sources: tuple[KernelSource, ...]
    faults: tuple[Fault, ...]
    seed: int
    given: bool = False
    recipes: tuple[Recipe, ...] = field(default_factory=campaign_pool)
    time_limit: float = 20.0
    logs: Path | None = None
    done: frozenset[tuple[str, str]] = frozenset()  # pairs of fault id and kernel that an interrupted run has behind it


def default_kernels(device: str) -> tuple[str, ...]:
    """Return the kernels of a self-test that names none."""
    return DEFAULT_KERNELS if device == "cpu" else tuple(names(device))


def plantable(device: str = "cpu") -> tuple[Fault, ...]:
    """Return the faults that a copy kernel on ``device`` can carry."""
    return tuple(fault for fault in catalogue() if not fault.out_of_reach(device))


def selftest(plan: SelfTest, emit: Emit, save_failure: SaveFailure, left_out: LeftOut) -> None:
    """Try every fault with every kernel; emits one ``FaultPlanted`` for each pair and the control's batches.

    Args:
        plan: kernels, faults, seed.
        emit: receives the events; called by one thread at a time.
        save_failure: writes a failure file of a control that failed and returns its path.
        left_out: is told name and reason of a kernel that nobody asked for and that does not run here.
    """
    lock = Lock()

    def emit_one(event: Event) -> None:
        with lock:
            emit(event)

    lanes = [_Lane(plan, source, emit_one, save_failure, left_out) for source in plan.sources]
    with ThreadPoolExecutor(_WORKERS) as pool:
        running = [pool.submit(lane.run) for lane in lanes]
        try:
            for result in running:
                result.result()
        except BaseException:
            for lane in lanes:
                lane.stop()
            raise


class _Stopped(Exception):
    """The run ends; raised in the thread of a lane."""


@dataclass(slots=True)
class _Target:
    """A layout of the pool; ``answer`` is what the kernel says of it with no fault planted, None where nobody asked yet."""

    recipe: dict[str, Any]
    layout: Layout
    answer: Describe | None = None
    tried: bool = False


class _Lane:
    """All faults with one kernel."""

    def __init__(
        self, plan: SelfTest, source: KernelSource, emit: Emit, save_failure: SaveFailure, left_out: LeftOut
    ) -> None:
        self._plan, self._source, self._emit, self._save, self._left_out = plan, source, emit, save_failure, left_out
        self._child = Child(source, time_limit=plan.time_limit, log=log_file(plan.logs, source))
        self._stopped = False
        self._targets = [_Target(to_document(recipe), place(recipe)) for recipe in plan.recipes]
        self._traits: Describe = {}  # what the kernel says of itself, the same for every layout

    def run(self) -> None:
        """Ask what the kernel is, try the faults, run the control."""
        try:
            self._child.start()
            first = next((t for t in self._targets if self._takes(t)), None)
            self._traits = first.answer if first is not None and first.answer is not None else {}
            self._emit(
                KernelProbed(kernel=self._source.name, available=True, provenance=self._traits.get("provenance", {}))
            )
            if self._traits:
                self._plant_all()
            self._control()
        except Unavailable as error:
            if self._plan.given:
                self._emit(KernelProbed(kernel=self._source.name, available=False, reason=str(error)))
                if len(self._plan.sources) == 1:  # nothing of what was asked for can be done here
                    self._emit(ProblemMet(where=f"kernel {self._source.name}", problem=str(error)))
            else:
                self._left_out(self._source.name, str(error))
        except EnvironmentProblem as error:
            self._emit(ProblemMet(where=f"kernel {self._source.name}", problem=str(error)))
        except _Stopped:
            return
        finally:
            self._child.close()

    def stop(self) -> None:
        """Let a run in another thread end after the program that it executes."""
        self._stopped = True

    def _run(self, target: _Target, program: Program) -> Outcome:
        if self._stopped:
            raise _Stopped
        return self._child.run(target.recipe, program, explain=True)

    def _takes(self, target: _Target) -> bool:
        """Does the kernel, with no fault planted, take the layout? Asked once."""
        if target.answer is None:
            planted, self._child.fault = self._child.fault, ""
            target.answer = self._child.describe(target.recipe)
            self._child.fault = planted
            target.answer["reason"] = unusable(target.layout, target.answer)
        return target.answer["reason"] is None

    def _plant_all(self) -> None:
        spared = self._traits["slow"] and not self._plan.given
        for fault in self._plan.faults:
            if not (spared and fault.id.startswith("K")) and (fault.id, self._source.name) not in self._plan.done:
                self._emit(self._plant(fault))
        self._child.fault = ""

    def _plant(self, fault: Fault) -> FaultPlanted:
        name = self._source.name
        if reason := fault.out_of_reach(self._source.device):
            return FaultPlanted(fault=fault.id, name=fault.name, kernel=name, outcome="n/a", reason=reason)
        self._child.fault = fault.id
        began, examples = time.monotonic(), 0
        other: Outcome | None = None  # a failure that no comparison found, such as an exception
        tried = 0
        for target, shape in self._chosen(fault):
            tried += 1
            target.tried = True
            for program in self._programs(target, shape):
                outcome = self._run(target, program)
                examples += 1
                if outcome.kind in fault.checks:
                    return _killed(fault, name, outcome, examples, time.monotonic() - began)
                if outcome.failed:
                    other = outcome
                    break
        seconds = time.monotonic() - began
        if other is not None:
            return _killed(fault, name, other, examples, seconds)
        if not tried:
            reason = self._why_not(fault)
            return FaultPlanted(fault=fault.id, name=fault.name, kernel=name, outcome="n/a", reason=reason)
        return FaultPlanted(
            fault=fault.id,
            name=fault.name,
            kernel=name,
            outcome="survived",
            reason=fault.description,
            examples=examples,
            seconds=seconds,
        )

    def _chosen(self, fault: Fault) -> Iterator[tuple[_Target, Shape]]:
        """Yield the first layouts that can show ``fault``, with what programs may use."""
        showing = (t for t in self._targets if self._reason(fault, t) is None and self._takes(t))
        for target in islice(showing, _LAYOUTS):
            answer = self._child.describe(
                target.recipe
            )  # with the fault in the kernel, which may have other traits then
            if fault.shows_on(answer, target.layout) is None:
                yield target, shape_for(target.layout, answer)

    def _reason(self, fault: Fault, target: _Target) -> str | None:
        traits = self._traits
        if fault.chunked and self._source.name in CARRIERS:  # which get several blocks a slot for it
            traits = {**traits, "blocks_per_slot": CARRIED_BLOCKS, "load_part": True}
        return fault.shows_on(traits, target.layout)

    def _why_not(self, fault: Fault) -> str:
        hidden = Counter(reason for t in self._targets if (reason := self._reason(fault, t)) is not None)
        if len(self._targets) > hidden.total():
            return "the kernel refuses every layout that can show it"
        return hidden.most_common(1)[0][0]

    def _programs(self, target: _Target, shape: Shape) -> Iterator[Program]:
        # others on each layout: with the same 48 on all of one shape, a rare fault (K12) survived one seed in five
        layout = zlib.crc32(target.layout.name.encode())
        for portion in range(_PORTIONS):
            yield from collected(shape, derive_key(self._plan.seed, layout, portion), _PORTION)

    def _control(self) -> None:
        tried = [t for t in self._targets if t.tried] or [t for t in self._targets if self._takes(t)][:_LAYOUTS]
        layouts = {t.layout.name: list(t.layout.formats) for t in tried}
        refused = {t.layout.name: t.answer["reason"] for t in self._targets if t.answer and t.answer["reason"]}
        self._emit(CampaignStarted(kernel=self._source.name, layouts=layouts, refused=refused, notes=self._notes()))
        for number, target in enumerate(tried):
            self._control_batch(number, target)

    def _notes(self) -> list[str]:
        """Say once what no copy kernel can show, unless the user chose the faults."""
        device = self._source.device
        if self._source != self._plan.sources[0] or self._plan.faults != plantable(device):
            return []
        missing = ((f, f.out_of_reach(device)) for f in catalogue())
        return [f"fault {f.id} {f.name} was not planted: {reason}" for f, reason in missing if reason]

    def _control_batch(self, number: int, target: _Target) -> None:
        shape = shape_for(target.layout, target.answer or self._traits)
        count = _SLOW_CONTROLS if self._traits["slow"] else _CONTROLS
        began, moved, compared, sequences = time.monotonic(), 0, 0, 0
        steps: Counter[str] = Counter()
        lengths: Counter[str] = Counter()
        for program in islice(self._programs(target, shape), count):
            outcome = self._run(target, program)
            sequences += 1
            steps.update(outcome.steps)
            lengths[str(len(program.steps))] += 1
            compared += outcome.compared_bytes
            moved += outcome.moved_bytes
            if outcome.failed:
                self._report(number, target, program, outcome)
                break
        self._emit(
            BatchFinished(
                batch=number,
                kernel=self._source.name,
                layout=target.layout.name,
                order=target.layout.order,
                sequences=sequences,
                steps=dict(steps),
                formats=dict.fromkeys(target.layout.formats, sequences),
                lengths=dict(lengths),
                compared_bytes=compared,
                moved_bytes=moved,
                seconds=time.monotonic() - began,
            )
        )

    def _report(self, number: int, target: _Target, program: Program, outcome: Outcome) -> None:
        failure = FailureFile(self._source.spec, "", target.recipe, program, outcome, self._source.device)
        document = failure_document(
            failure,
            seed=self._plan.seed,
            batch=number,
            provenance=self._traits["provenance"],
            time_limit=self._plan.time_limit,
        )
        path = self._save(f"control-{self._source.name}-{number:05d}-{outcome.fingerprint}", document)
        found = failure_found(failure, number, self._source.name, target.layout.name, path)
        self._emit(dataclasses.replace(found, headline=f"without any planted fault: {found.headline}"))


def _killed(fault: Fault, kernel: str, outcome: Outcome, examples: int, seconds: float) -> FaultPlanted:
    return FaultPlanted(
        fault=fault.id,
        name=fault.name,
        kernel=kernel,
        outcome="killed",
        reason=f"planted by altering its {fault.by}",
        by=outcome.kind,
        headline=outcome.headline,
        examples=examples,
        seconds=seconds,
    )
