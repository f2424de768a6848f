"""Arenas in device memory with the oracle that works there."""

from __future__ import annotations

from dataclasses import dataclass

from kvverify.arena.arena import Arena
from kvverify.arena.device_arena import DeviceArena, device_named
from kvverify.arena.device_oracle import DeviceOracle
from kvverify.arena.expectation import Expectation
from kvverify.layout.placement import Layout


@dataclass(frozen=True, slots=True)
class DevicePlace:
    """Device memory of one process; ``rank`` and ``world_size`` are those of the processes that share a model."""

    device: str
    rank: int = 0
    world_size: int = 1

    def arena(self, layout: Layout, host_slots: int, blocks_per_slot: int) -> DeviceArena:
        """Return an arena whose buffer lies on the device."""
        device = device_named(self.device)
        return DeviceArena(layout, host_slots, blocks_per_slot, device, rank=self.rank, world_size=self.world_size)

    def oracle(self, arena: Arena) -> Expectation:
        """Return the oracle of ``arena``.

        Raises:
            TypeError: the arena is not one of :meth:`arena`.
        """
        if not isinstance(arena, DeviceArena):
            raise TypeError(f"expected an arena in device memory, got {type(arena).__name__}")
        return DeviceOracle(arena)
