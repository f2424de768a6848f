"""Run one program against one kernel in one arena, inside a child process, and say what came of it."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from kvverify.arena.arena import Arena
from kvverify.arena.compare import Mismatch
from kvverify.arena.diagnosis import diagnose
from kvverify.arena.place import ON_CPU, MemoryPlace
from kvverify.errors import ContractError, EnvironmentProblem
from kvverify.kernels.contract import CopyKernel
from kvverify.layout.placement import Layout
from kvverify.roundtrip.outcome import Outcome
from kvverify.roundtrip.pending import Pending
from kvverify.roundtrip.program import (
    Check,
    Evict,
    Fill,
    Forget,
    Ids,
    Load,
    LoadPart,
    Poll,
    Program,
    Read,
    Spin,
    Step,
    Store,
)

_POLL_S = 0.0001
_LATE_S = 0.3  # how long a mismatch is watched before it counts as wrong bytes and not as an early return


class KernelRaised(Exception):
    """The kernel under test raised while it did ``what``."""

    def __init__(self, what: str, error: BaseException) -> None:
        super().__init__(f"{what} raised {type(error).__name__}: {_first_line(error)}")
        self.name = type(error).__name__


class _PromiseBroken(Exception):
    """The kernel changed something that its caller lent it for the time of a call."""


def _nobody() -> None:
    """Meet no other rank."""


class Session:
    """One kernel instance with its arena; programs of the same shape run in it one after the other.

    ``meet`` waits for the other ranks where the engine's memory is spread over several processes. They may share host memory, so
    no rank compares or overwrites any while a copy of another is under way.
    """

    def __init__(
        self,
        kernel: CopyKernel,
        layout: Layout,
        host_slots: int,
        blocks_per_slot: int,
        memory: MemoryPlace = ON_CPU,
        *,
        meet: Callable[[], None] = _nobody,
    ) -> None:
        self.meet = meet
        self.kernel = kernel
        self.layout = layout
        self.arena = memory.arena(layout, host_slots, blocks_per_slot)
        self._lent = _geometry(self.arena)
        with contextlib.ExitStack() as undo:
            undo.callback(self._give_up)
            with self.arena.current():
                owned = self._call("prepare", self.kernel.prepare, self.arena)
            self._owned = owned is not None
            if owned is not None:
                self.arena.adopt_host(owned)
            self.oracle = memory.oracle(self.arena)
            undo.pop_all()
        self.ordered = getattr(kernel, "ordered", False) is True
        self.caller_syncs = frozenset(getattr(kernel, "caller_syncs", ()))
        self._block_bytes = [
            sum(layout.layers[i].page_bytes for i in layout.group_layers(g.index)) for g in layout.groups
        ]

    def run(self, program: Program, *, explain: bool, progress: Callable[[int], None]) -> Outcome:
        """Execute all steps; stop at the first that goes wrong. ``progress`` is told the step before it runs."""
        run = _Run(self, program, explain)
        outcome = Outcome()
        with self.arena.current():
            self.oracle.reset(program.seed)
            self.oracle.compared_bytes = 0
            self.meet()
            for number, step in enumerate((*program.steps, Check())):
                progress(number)
                outcome = run.step(number, step)
                if outcome.failed:
                    break
        return dataclasses.replace(
            outcome, compared_bytes=self.oracle.compared_bytes, moved_bytes=run.moved_bytes, steps=dict(run.steps)
        )

    def close(self) -> None:
        """Let the kernel release what it holds."""
        with self.arena.current():
            self._call("close", self.kernel.close)

    def _give_up(self) -> None:
        """Close a kernel that could not be prepared: what it took until then, the next instance needs."""
        with contextlib.suppress(KernelRaised):  # what prepare raised is the finding
            self.close()

    def close_checked(self, outcome: Outcome) -> Outcome:
        """Close, then compare once more: memory that was lent stays the lender's.

        Args:
            outcome: that of the last program, which went well; returned where closing changes no byte.
        """
        self.close()
        self.meet()
        with self.arena.current():
            mismatch = self.oracle.check(host=not self._owned)  # memory that the kernel owned may be gone
        if mismatch is None:
            return outcome
        text = f"close() changed {mismatch.total:,} {mismatch.region} bytes of the memory it was lent"
        first = {"region": mismatch.region, "position": int(mismatch.positions[0]), "wrong_bytes": mismatch.total}
        return dataclasses.replace(
            outcome,
            kind="wrong-bytes",
            step=sum(outcome.steps.values()) - 1,
            headline=text,
            first=first,
            fingerprint="close",
        )

    def views_changed(self) -> str | None:
        """Say which of the lent tensors the kernel reshaped or exchanged in place; they are the engine's own."""
        now = _geometry(self.arena)
        if len(now) != len(self._lent):
            return f"the kernel changed the list arena.layers: {len(self._lent) - 1} tensors became {len(now) - 1}"
        for (name, was), (_, found) in zip(self._lent, now, strict=True):
            if was != found:
                text = f"shape {was[1]} and strides {was[2]} are now {found[1]} and {found[2]}"
                return f"the kernel changed the lent tensor {name} in place: {text}"
        return None

    def block_bytes(self, group: int) -> int:
        """Content bytes of one block of all layers of ``group``."""
        return self._block_bytes[group]

    def _call(self, what: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except ContractError:
            raise
        except EnvironmentProblem as error:
            # what a kernel cannot get when it is prepared, the machine lacks; once it copies, all is its own doing
            if what == "prepare":
                raise
            raise KernelRaised(what, error) from error
        except Exception as error:  # whatever a kernel under test raises is a finding, not a crash of ours
            raise KernelRaised(what, error) from error


class _Run:
    """State of one program's execution."""

    def __init__(self, session: Session, program: Program, explain: bool) -> None:
        self.session = session
        self.program = program
        self.explain = explain
        self.pending = Pending()
        self.loaded: set[int] = set()
        self.stored: set[int] = set()
        self.transfer = 0  # the last step that called the kernel: what a mismatch is blamed on
        self.moved_bytes = 0
        self.steps: Counter[str] = Counter()

    def step(self, number: int, step: Step) -> Outcome:
        self.steps[step.kind] += 1
        try:
            session = self.session
            if self.pending.hinders(step, ordered=session.ordered, on_stream=session.arena.stream is not None):
                session._call("wait", session.kernel.wait)
                self.pending = Pending()
                session.meet()
            if not self.loaded.isdisjoint(_overwritten(step)):
                # what a load brought is looked at before anybody writes over it, when all copies are complete
                if not session.ordered:
                    session._call("wait", session.kernel.wait)
                    self.pending = Pending()
                outcome = self._checked()
                if outcome.failed:
                    return outcome
            self._do(number, step)
        except KernelRaised as error:
            if is_device_error(error.__cause__):
                return self._context_lost(error.__cause__)
            return Outcome("raised", number, str(error), fingerprint=f"raised-{step.kind}-{error.name}")
        except _PromiseBroken as error:
            return Outcome("contract", number, str(error), fingerprint=f"contract-{step.kind}")
        except RuntimeError as error:
            # errors of a GPU come late, out of whatever call is next, ours included
            if not is_device_error(error):
                raise
            return self._context_lost(error)
        return self._checked() if isinstance(step, Check) else Outcome()

    def _context_lost(self, error: BaseException | None) -> Outcome:
        kind = self.program.steps[self.transfer].kind
        said = _first_line(error) if error is not None else ""
        text = f"the GPU's context was lost in {kind} or a copy before it: {said}"
        return Outcome("crashed", self.transfer, text, fingerprint=f"crashed-{kind}")

    def _do(self, number: int, step: Step) -> None:
        oracle, kernel = self.session.oracle, self.session.kernel
        per_slot = self.program.blocks_per_slot
        match step:
            case Fill(blocks, group):
                oracle.fill(blocks, group, f"fill (step {number})")
            case Evict(blocks):
                owners = {b: oracle.contents[b].group if b in oracle.contents else 0 for b in blocks}
                for group in sorted(set(owners.values())):
                    oracle.fill([b for b in blocks if owners[b] == group], group, f"evict (step {number})")
            case Forget(slots):
                oracle.forget(slots)
            case Spin(milliseconds):
                self.session.arena.spin(milliseconds)
            case Read(blocks):
                oracle.watch(blocks, f"step {number}")
            case Poll():
                self._poll()
            case Store(blocks, slots, group):
                oracle.expect_store(blocks, slots, per_slot)
                self._began(number, blocks, slots, group, loading=False)
                self._lend("store", kernel.store, group, blocks, slots)
            case Load(slots, blocks, group):
                oracle.expect_load([held for s in slots for held in oracle.slots[s]], blocks)
                self._began(number, blocks, slots, group, loading=True)
                self._lend("load", kernel.load, group, slots, blocks)
            case LoadPart(slot, first, blocks, group):
                oracle.expect_load(oracle.slots[slot][first : first + len(blocks)], blocks)
                self._began(number, blocks, (slot,), group, loading=True)
                part: Any = kernel  # load_part is optional in the contract; the generator asks before it uses it
                self._lend("load_part", part.load_part, group, slot, first, blocks)
            case _:
                pass

    def _poll(self) -> None:
        """Wait as an engine does that never blocks: by asking."""
        polled: Any = self.session.kernel  # done() is optional; the generator asks before it uses it
        while not self.session._call("done()", polled.done):
            time.sleep(_POLL_S)
        self.pending = Pending()

    def _lend(self, name: str, function: Callable[..., Any], group: int, *given: int | Ids) -> None:
        """Call the kernel with lists of its own making, which an engine fills anew for its next call."""
        lent = [list(value) if isinstance(value, tuple) else value for value in given]
        if name.removesuffix("_part") in self.session.caller_syncs:
            self.session.arena.synchronize()
        self.session._call(f"{name}({', '.join(map(str, lent))})", function, *lent, **self._named(group))
        for value, now in zip(given, lent, strict=True):
            if isinstance(now, list):
                if tuple(now) != value:
                    raise _PromiseBroken(f"{name} changed the list of its caller from {value} to {tuple(now)}")
                now.clear()  # whoever reads it later reads what the engine does next

    def _named(self, group: int) -> dict[str, int]:
        return {"group": group} if len(self.session.layout.groups) > 1 else {}

    def _began(
        self, number: int, blocks: tuple[int, ...], slots: tuple[int, ...], group: int, *, loading: bool
    ) -> None:
        self.transfer = number
        self.moved_bytes += len(blocks) * self.session.block_bytes(group)
        if loading:
            self.pending.written_blocks.update(blocks)
            self.pending.read_slots.update(slots)
            self.loaded.update(blocks)
        else:
            self.pending.read_blocks.update(blocks)
            self.pending.written_slots.update(slots)
            self.stored.update(slots)

    def _checked(self) -> Outcome:
        self.session.meet()
        outcome = self._compared()
        if not outcome.failed:
            self.session.meet()
        return outcome

    def _compared(self) -> Outcome:
        mismatch = self.session.oracle.check()
        reader = self.session.oracle.misread()
        if reader is not None:
            text = (
                f"a load wrote into blocks that the reader of {reader}, enqueued on arena.stream before it, had not read "
                f"yet: the copy did not wait for that stream"
            )
            return Outcome("race", self.transfer, text, fingerprint="race-reader")
        changed = self.session.views_changed()
        if mismatch is None and changed is not None:
            return Outcome("contract", self.transfer, changed, fingerprint="contract-views")
        if mismatch is None:
            self.loaded.clear()
            self.stored.clear()
            return Outcome()
        if not self.explain:
            return Outcome("wrong-bytes", self.transfer, f"{mismatch.total:,} wrong {mismatch.region} bytes")
        return self._explained(mismatch)

    def _explained(self, mismatch: Mismatch) -> Outcome:
        said = diagnose(self.session.oracle, mismatch, self.loaded, self.stored)
        kind, headline = "wrong-bytes", said.headline
        deadline = time.monotonic() + _LATE_S
        while kind == "wrong-bytes" and time.monotonic() < deadline:
            time.sleep(_LATE_S / 15)
            if self.session.oracle.check() is None:
                kind = "early-return"
                headline = f"wait() returned before the copies were done: right after it, {said.headline}"
        return Outcome(kind, self.transfer, headline, said.details, said.first, f"{kind}-{said.fingerprint}")


def is_device_error(error: BaseException | None) -> bool:
    """Is it an error of the GPU, such as an illegal memory access, after which its context cannot be used any more?"""
    return isinstance(error, RuntimeError) and any(words in str(error) for words in ("CUDA error", "HIP error"))


def _geometry(arena: Arena) -> list[tuple[str, tuple[Any, ...]]]:
    """Name, address, shape, strides and dtype of every lent tensor."""
    lent = [*zip((layer.name for layer in arena.layout.layers), arena.layers, strict=False), ("host", arena.host)]
    return [(name, (t.data_ptr(), tuple(t.shape), t.stride(), str(t.dtype))) for name, t in lent]


def _overwritten(step: Step) -> tuple[int, ...]:
    match step:
        case Fill(blocks) | Evict(blocks) | Load(_, blocks) | LoadPart(_, _, blocks):
            return blocks
        case _:
            return ()


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:300] if text else ""
