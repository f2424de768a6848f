"""Faults of order: F12, F13, F15 of the catalogue, and our own. A copy comes too early, or it comes after it was said to be done.

Those that need a GPU make the kernel see a stream of its own for ``arena.stream``, and leave out one of the waits between the two.
They show where a kernel orders itself behind the stream it is given, and not where kvverify has to wait for it (``caller_syncs``).
The others put off whole calls, so they are as deterministic as a copy on the CPU.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kvverify.faults.fault import Shows, Traits
from kvverify.faults.planted import Planted, SeenArena, current

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView, CopyKernel
    from kvverify.layout.placement import Layout

Copy = Callable[[list[int], list[int]], None]
_HELD_UP_CYCLES = 40_000_000  # of a GPU's clock: 20 ms at 2 GHz


class BesideStream(Planted):
    """The kernel works on a stream of its own: as the engine's orders it, unless a subclass leaves something out."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._side: Any = None  # what the kernel takes for arena.stream; None on the CPU

    def prepare(self, arena: ArenaView) -> Any:
        """Prepare the kernel with the stream beside the arena's."""
        import torch

        if arena.stream is None:
            return super().prepare(arena)
        # of another priority, so it is never the arena's own from torch's pool, nor in one hardware queue with it
        self._side = torch.cuda.Stream(arena.layers[0].device, priority=-1)  # type: ignore[no-untyped-call]
        self._side.wait_stream(arena.stream)
        with current(self._side):
            owned = super().prepare(arena)
        arena.stream.wait_stream(self._side)
        return owned

    def seen(self, arena: SeenArena) -> ArenaView:
        """Replace the stream."""
        return dataclasses.replace(arena, stream=self._side)

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Enqueue the store on the other stream."""
        self._enqueue("store", lambda: copy(blocks, slots))

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Enqueue the load on the other stream."""
        self._enqueue("load", lambda: copy(slots, blocks))

    def wait(self) -> None:
        """Wait as the kernel does."""
        with current(self._side):
            super().wait()

    def close(self) -> None:
        """Close, when the other stream has nothing left to do."""
        if self._side is not None:
            self._side.synchronize()
        with current(self._side):
            super().close()

    def _enqueue(self, direction: str, copy: Callable[[], None]) -> None:
        if self._side is None:
            copy()
            return
        self.before(direction)
        with current(self._side):
            copy()
        self.after(direction)

    def before(self, direction: str) -> None:
        """Put the copy behind what the engine has enqueued."""
        self._side.wait_stream(self.arena.stream)

    def after(self, direction: str) -> None:
        """Put what the engine enqueues next behind the copy."""
        self.arena.stream.wait_stream(self._side)


class NoWait(BesideStream):
    """F12, F13: copies in one direction do not wait for what the engine has enqueued."""

    def __init__(self, kernel: CopyKernel, direction: str) -> None:
        super().__init__(kernel)
        self._direction = direction

    def before(self, direction: str) -> None:
        """Wait in the other direction only."""
        if direction != self._direction:
            super().before(direction)


def store_no_wait(kernel: CopyKernel) -> CopyKernel:
    """F12: a store does not wait for the kernels that produce its blocks."""
    return NoWait(kernel, "store")


def load_no_wait(kernel: CopyKernel) -> CopyKernel:
    """F13: a load does not wait for those who still read or write its blocks."""
    return NoWait(kernel, "load")


def orders_itself(direction: str) -> Shows:
    """F12 and F13 need a kernel that waits by itself in ``direction``."""

    def shows(traits: Traits, _layout: Layout) -> str | None:
        waited = direction in traits.get("caller_syncs", ())
        return f"kvverify waits for this kernel before a {direction}" if waited else None

    return shows


class HeldUp(BesideStream):
    """Copies come late, which is no fault, since the engine has to wait for them: in :meth:`done` or :meth:`wait`."""

    def before(self, direction: str) -> None:
        """Let the copy start late."""
        import torch

        super().before(direction)
        with current(self._side):
            torch.cuda._sleep(_HELD_UP_CYCLES)  # type: ignore[no-untyped-call]  # spins on CUDA and ROCm

    def after(self, direction: str) -> None:
        """The engine goes on beside the copy."""


class DoneTooEarly(HeldUp):
    """K22: done() says yes as soon as the copies were asked for."""

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)  # a kernel without done() does not get one
        return _always if name == "done" and self._side is not None else found


def _always() -> bool:
    return True


class WaitTooShort(HeldUp):
    """K23: wait() returns at once: slots are read, and blocks too, after others write there."""

    def wait(self) -> None:
        """Nothing where copies are asynchronous."""
        if self._side is None:
            super().wait()


def has_done(traits: Traits, _layout: Layout) -> str | None:
    """K22 and K23 need a kernel that goes on after its calls have returned, as one with done() does."""
    if not traits.get("done", False):
        return "the kernel has no done(), so its copies may be complete when a call returns"
    waited = traits.get("caller_syncs", ())
    return "kvverify waits for this kernel, so nothing holds up its copies" if waited else None


class PendingStore(Planted):
    """F15: wait() returns while a store is pending; it reads its blocks when the next call comes, whoever has them then."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._pending: Callable[[], None] | None = None

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Do the store before, and remember this one."""
        self._catch_up()
        self._pending = lambda: copy(blocks, slots)

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Do the store that is pending, then load."""
        self._catch_up()
        copy(slots, blocks)

    def _catch_up(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()
            self.kernel.wait()  # the engine waited for it, and relies on that


class LastNotWaited(Planted):
    """K24: wait() forgets the last of several transfers, which then comes with the next call."""

    def __init__(self, kernel: CopyKernel) -> None:
        super().__init__(kernel)
        self._held: Callable[[], None] | None = None
        self._issued = 0  # transfers since the last wait, the one held back included

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Copy) -> None:
        """Hold the store back."""
        self._issue(lambda: copy(blocks, slots))

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Copy) -> None:
        """Hold the load back."""
        self._issue(lambda: copy(slots, blocks))

    def wait(self) -> None:
        """Wait for all but the last of several."""
        if self._issued == 1:
            self._release()
        self._issued = 0
        super().wait()

    def _issue(self, transfer: Callable[[], None]) -> None:
        self._release()
        self._held = transfer
        self._issued += 1

    def _release(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held()
