"""Faults of order: which waits between streams are left out, and which calls are put off."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.arena.device_arena import DeviceArena
from kvverify.faults.catalogue import fault_named
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from tests.faults.hunting import pool, traits_of
from tests.kernels.recipes import RECIPES

Log = list[str]


class Recorded:
    """A stand-in for a stream where there is no GPU: writes down who was made to wait for whom."""

    def __init__(self, name: str, log: Log) -> None:
        self.name, self._log = name, log

    def wait_stream(self, other: Recorded) -> None:
        self._log.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        self._log.append(f"host waits for {self.name}")


class Telling:
    """A kernel that only says what it is asked, and on which stream."""

    name = "telling"

    def __init__(self, log: Log, running: list[str]) -> None:
        self._log, self._running = log, running

    def supports(self, layout: Layout) -> bool | str:
        return True

    def prepare(self, arena: Any) -> None:
        self._log.append(f"prepare with {arena.stream.name} on {self._running[-1]}")

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int]) -> None:
        self._log.append(f"store on {self._running[-1]}")

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int]) -> None:
        self._log.append(f"load on {self._running[-1]}")

    def wait(self) -> None:
        self._log.append(f"wait on {self._running[-1]}")

    def done(self) -> bool:
        return False

    def close(self) -> None:
        self._log.append(f"close on {self._running[-1]}")


@pytest.fixture
def told(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> tuple[Log, CopyKernel, DeviceArena]:
    """The log, a kernel that writes to it, and an arena whose stream does."""
    log: Log = []
    running = ["real"]

    @contextlib.contextmanager
    def stream(chosen: Recorded) -> Iterator[None]:
        running.append(chosen.name)
        yield
        running.pop()

    monkeypatch.setattr(t.cuda, "Stream", lambda _device, priority: Recorded("side", log))
    monkeypatch.setattr(t.cuda, "stream", stream)
    monkeypatch.setattr(t.cuda, "_sleep", lambda _: log.append(f"sleep on {running[-1]}"))
    arena = DeviceArena(place(RECIPES["mixed LBNHC"]), 4, 1, t.device("cpu"))
    arena.stream = Recorded("real", log)
    return log, Telling(log, running), arena


BEFORE, AFTER = "side waits for real", "real waits for side"


@pytest.mark.parametrize(
    ("name", "store", "load"),
    [
        ("F12", ["store on side", AFTER], [BEFORE, "load on side", AFTER]),
        ("F13", [BEFORE, "store on side", AFTER], ["load on side", AFTER]),
        ("K22", [BEFORE, "sleep on side", "store on side"], [BEFORE, "sleep on side", "load on side"]),
    ],
)
def test_only_the_wait_of_the_fault_is_left_out(
    name: str, store: Log, load: Log, told: tuple[Log, CopyKernel, DeviceArena]
) -> None:
    log, kernel, arena = told
    planted: Any = fault_named(name).plant(kernel)
    planted.prepare(arena)
    planted.store([1], [2])
    planted.load([2], [3])
    planted.wait()
    planted.close()
    prepared = [BEFORE, "prepare with side on side", AFTER]
    assert log == [*prepared, *store, *load, "wait on side", "host waits for side", "close on side"]


def test_done_and_wait_lie_in_one_fault_each(told: tuple[Log, CopyKernel, DeviceArena]) -> None:
    log, kernel, arena = told
    early: Any = fault_named("K22").plant(kernel)
    short: Any = fault_named("K23").plant(kernel)
    for planted in (early, short):
        planted.prepare(arena)
    assert (early.done(), short.done()) == (True, False)
    log.clear()
    short.wait()
    assert log == []
    early.wait()
    assert log == ["wait on side"]


def test_a_kernel_without_done_does_not_get_one(torch: ModuleType) -> None:
    assert not hasattr(fault_named("K22").plant(TorchReference()), "done")


def test_where_the_faults_of_streams_show() -> None:
    layout = pool()[0]
    gpu = {**traits_of(TorchReference(), "cuda"), "done": True}
    caller_waits = {**gpu, "caller_syncs": ["load"]}
    reasons = {
        name: [
            fault_named(name).shows_on(traits, layout) for traits in (traits_of(TorchReference()), gpu, caller_waits)
        ]
        for name in ("F12", "F13", "K22", "K23")
    }
    assert reasons["F12"] == ["needs a GPU stream", None, None]
    assert reasons["F13"] == ["needs a GPU stream", None, "kvverify waits for this kernel before a load"]
    waited = "kvverify waits for this kernel, so nothing holds up its copies"
    assert reasons["K22"] == reasons["K23"] == ["needs a GPU stream", None, waited]
    without = fault_named("K22").shows_on({**gpu, "done": False}, layout)
    assert without == "the kernel has no done(), so its copies may be complete when a call returns"


@pytest.mark.parametrize("name", ["F12", "F13", "K22", "K23"])
def test_without_a_stream_they_change_nothing(name: str, torch: ModuleType) -> None:
    assert _stored_then_refilled(name) == 1


def _stored_then_refilled(name: str) -> int:
    """Store block 0 full of ones, wait, fill it with twos, load it into block 2; return what block 2 holds."""
    arena = DeviceArena(place(RECIPES["bf16 LBNHC"]), 4, 1, t.device("cpu"))
    kernel: Any = fault_named(name).plant(TorchReference())
    kernel.prepare(arena)
    memory = [view.view(t.uint8) for view in arena.layers]
    for value in (1, 2):
        for view in memory:
            view[0] = value
        if value == 1:
            kernel.store([0], [3])
            kernel.wait()
    kernel.load([3], [2])
    kernel.wait()
    assert (memory[0][2] == memory[0][2].flatten()[0]).all()
    return int(memory[0][2].flatten()[0])


def test_a_pending_store_reads_what_came_after_wait(torch: ModuleType) -> None:
    assert _stored_then_refilled("F15") == 2


@pytest.mark.parametrize(("transfers", "late"), [(1, 0), (2, 1), (3, 1)])
def test_wait_forgets_the_last_of_several(transfers: int, late: int, torch: ModuleType) -> None:
    arena = DeviceArena(place(RECIPES["bf16 LBNHC"]), 4, 1, t.device("cpu"))
    kernel: Any = fault_named("K24").plant(TorchReference())
    kernel.prepare(arena)
    arena.host.fill_(5)
    for view in arena.layers:
        view.view(t.uint8).fill_(0)
    for block in range(transfers):
        kernel.load([0], [block])
    kernel.wait()
    held = [bool((arena.layers[0].view(t.uint8)[block] == 5).all()) for block in range(transfers)]
    assert held == [True] * (transfers - late) + [False] * late
    kernel.load([0], [4])  # the next call brings what is late
    assert (arena.layers[0].view(t.uint8)[:transfers] == 5).all()
