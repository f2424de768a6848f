"""Faults of order on a GPU: with the fault the wrong bytes arrive each time, without it never; nothing but a spin kernel helps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.faults.catalogue import fault_named
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.memcpy_batch import AsyncMemcpy
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.place import place
from tests.gpu.device_arena import DeviceArena, make_device_arena
from tests.kernels.recipes import RECIPES

TRIES = 20
SPIN_CYCLES = 40_000_000  # 20 ms at 2 GHz
OLD = 255  # what is wrong wherever it arrives; a try's number is right
Try = Callable[[Any, DeviceArena, int], t.Tensor]
MakeKernel = Callable[[Callable[[], CopyKernel]], CopyKernel]


def _spin() -> None:
    t.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]


def _store_behind_a_producer(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    _spin()
    arena.memory.fill_(number)
    kernel.store([0, 1], [2, 3])
    kernel.wait()
    return _content(arena)


def _load_behind_a_reader(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    """What the reader saw, who must still see OLD; told as the number where it did."""
    _content(arena).fill_(number)
    seen = t.empty_like(arena.layers[0][:2])
    t.cuda.synchronize()
    _spin()
    seen.copy_(arena.layers[0][:2])
    kernel.load([2, 3], [0, 1])
    kernel.wait()
    assert (_bytes(arena.layers[0][:2]) == number).all()  # with the fault, too, the load itself is right
    return t.where(_bytes(seen) == OLD, number, OLD)


def _load_and_poll(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    _content(arena).fill_(number)
    kernel.load([2, 3], [0, 1])
    while not kernel.done():
        pass
    return _bytes(arena.layers[0][:2]).clone()


def _load_and_wait(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    _content(arena).fill_(number)
    kernel.load([2, 3], [0, 1])
    kernel.wait()
    return _bytes(arena.layers[0][:2]).clone()


def _overwrite_a_slot_after_wait(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    _content(arena).fill_(number)
    kernel.load([2, 3], [0, 1])
    kernel.wait()
    _content(arena).fill_(OLD)
    t.cuda.synchronize()
    return _bytes(arena.layers[0][:2])


def _refill_after_wait(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    arena.memory.fill_(number)
    kernel.store([0, 1], [2, 3])
    kernel.wait()
    arena.memory.fill_(OLD)
    kernel.load([2, 3], [4, 5])
    kernel.wait()
    return _bytes(arena.layers[0][4:6])


def _load_twice_and_wait(kernel: Any, arena: DeviceArena, number: int) -> t.Tensor:
    _content(arena).fill_(number)
    kernel.load([2], [0])
    kernel.load([3], [1])
    kernel.wait()
    return _bytes(arena.layers[0][1]).clone()


def _bytes(view: t.Tensor) -> t.Tensor:
    return view.view(t.uint8)


def _content(arena: DeviceArena) -> t.Tensor:
    """The bytes of host slots 2 and 3 that a block takes, uint8 [2, bytes]."""
    return arena.host[2:4, : arena.layout.host_slot_bytes()]


BOTH, MEMCPY = (AsyncMemcpy, TorchReference), (AsyncMemcpy,)
CASES: list[tuple[str, Try, tuple[Callable[[], CopyKernel], ...]]] = [
    ("F12", _store_behind_a_producer, BOTH),
    ("F13", _load_behind_a_reader, BOTH),
    ("F15", _refill_after_wait, BOTH),
    ("K22", _load_and_poll, MEMCPY),  # the reference has no done(), and its copies are complete when a call returns
    ("K23", _load_and_wait, MEMCPY),
    ("K23", _overwrite_a_slot_after_wait, MEMCPY),
    ("K24", _load_twice_and_wait, BOTH),
]


def _right(kernel: CopyKernel, attempt: Try) -> int:
    """Return how many tries brought the right bytes everywhere, and check that the others brought none."""
    arena = make_device_arena(place(RECIPES["bf16 LBNHC"]))  # no padding, pages are multiples of 16 bytes
    right = 0
    with arena.current():
        kernel.prepare(arena)
        kernel.store([0, 1], [2, 3])  # loads code and fills caches of memory, which may synchronise
        kernel.load([2, 3], [0, 1])
        kernel.wait()
        _bytes(arena.layers[0][:2]).clone()
        for number in range(1, TRIES + 1):
            kernel.store([6], [0])  # brings what an earlier call has put off
            kernel.wait()
            t.cuda.synchronize()
            arena.memory.fill_(OLD)
            _content(arena).fill_(OLD)
            t.cuda.synchronize()
            found = attempt(kernel, arena, number)
            t.cuda.synchronize()
            assert bool((found == number).all()) or bool((found == OLD).all())
            right += bool((found == number).all())
            t.cuda.synchronize()
        kernel.wait()
        kernel.close()
    t.cuda.synchronize()
    return right


@pytest.mark.parametrize(
    ("fault", "attempt", "factory"),
    [(fault, attempt, factory) for fault, attempt, factories in CASES for factory in factories],
)
def test_a_race_shows_each_time_and_only_with_the_fault(
    make_kernel: MakeKernel, fault: str, attempt: Try, factory: Callable[[], CopyKernel]
) -> None:
    assert _right(make_kernel(factory), attempt) == TRIES
    assert _right(fault_named(fault).plant(make_kernel(factory)), attempt) == 0
