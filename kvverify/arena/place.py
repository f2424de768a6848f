"""Where an arena's memory lies, and the oracle that goes with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from kvverify.arena.arena import Arena
from kvverify.arena.expectation import Expectation
from kvverify.arena.oracle import Oracle
from kvverify.layout.placement import Layout


class MemoryPlace(Protocol):
    """Makes arenas and oracles of one kind of memory."""

    def arena(self, layout: Layout, host_slots: int, blocks_per_slot: int) -> Arena:
        """Return an arena for ``layout``."""
        ...

    def oracle(self, arena: Arena) -> Expectation:
        """Return the oracle of ``arena``, which :meth:`arena` made."""
        ...


@dataclass(frozen=True, slots=True)
class _Cpu:
    rank: int = 0
    world_size: int = 1

    def arena(self, layout: Layout, host_slots: int, blocks_per_slot: int) -> Arena:
        return Arena(layout, host_slots, blocks_per_slot, rank=self.rank, world_size=self.world_size)

    def oracle(self, arena: Arena) -> Expectation:
        return Oracle(arena)


ON_CPU: MemoryPlace = _Cpu()


def place_named(device: str, *, rank: int = 0, world_size: int = 1) -> MemoryPlace:
    """Return the memory that ``--device`` names: ``cpu``, or ``cuda`` for the current GPU of CUDA or ROCm.

    ``records`` is the oracle of a GPU over memory of the CPU, for tests where there is no GPU.
    """
    if device == "cpu":
        return _Cpu(rank, world_size)
    from kvverify.arena.device_place import DevicePlace

    return DevicePlace("cpu" if device == "records" else device, rank, world_size)
