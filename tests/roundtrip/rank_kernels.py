"""Kernels of several ranks, right and wrong; campaigns load them from this file by path.

The host tier of ``SharedHost`` is one buffer in shared memory for all ranks, as serving engines keep it: in every slot lie the parts
of all ranks beside each other, and each rank copies its own.
"""

from __future__ import annotations

import mmap
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from kvverify.kernels.contract import ArenaView
from kvverify.kernels.torch_reference import TorchReference

_FOLDER = Path("/dev/shm")


class SharedHost(TorchReference):
    """Right: copies this rank's part of every slot."""

    name = "shared-host"

    def prepare(self, arena: ArenaView) -> torch.Tensor:  # type: ignore[override]  # a library that owns its tier
        """Map the tier of all ranks; return this rank's rows, uint8 [slots, part bytes]."""
        slots, width = arena.host.shape
        part = -(-width // mmap.PAGESIZE) * mmap.PAGESIZE
        tier = _shared(slots * arena.world_size * part).view(slots, arena.world_size, part)
        self._parts = [tier[:, rank] for rank in range(arena.world_size)]
        self._rank, self._world_size = arena.rank, arena.world_size
        self._lay_over(arena, self._parts[self._rank])
        return self._parts[self._rank]

    def _lay_over(self, arena: ArenaView, rows: torch.Tensor) -> None:
        given: Any = types.SimpleNamespace(
            layout=arena.layout, group_layers=arena.group_layers, stream=arena.stream, host=rows
        )
        super().prepare(given)


class WrongSlice(SharedHost):
    """Wrong: loads take the part of the next rank."""

    name = "wrong-slice"

    def prepare(self, arena: ArenaView) -> torch.Tensor:  # type: ignore[override]  # a library that owns its tier
        rows = super().prepare(arena)
        self._reader = TorchReference()
        given: Any = types.SimpleNamespace(
            layout=arena.layout,
            group_layers=arena.group_layers,
            stream=arena.stream,
            host=self._parts[(self._rank + 1) % self._world_size],
        )
        self._reader.prepare(given)
        return rows

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        self._reader.load(host_slots, block_ids, group=group)


class FirstSlice(SharedHost):
    """Wrong: stores of every rank go to the part of rank 0."""

    name = "first-slice"

    def prepare(self, arena: ArenaView) -> torch.Tensor:  # type: ignore[override]  # a library that owns its tier
        rows = super().prepare(arena)
        self._lay_over(arena, self._parts[0])
        return rows


class RankZeroLoads(TorchReference):
    """Wrong: other ranks than 0 load nothing."""

    name = "rank-zero-loads"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._rank = arena.rank

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        if self._rank == 0:
            super().load(host_slots, block_ids, group=group)


class RankZeroStores(RankZeroLoads):
    """Wrong: other ranks than 0 store nothing."""

    name = "rank-zero-stores"

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        if self._rank == 0:
            super().store(block_ids, host_slots, group=group)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        TorchReference.load(self, host_slots, block_ids, group=group)


class LastRankDies(TorchReference):
    """Wrong: the last rank's process ends in a store of two blocks or more, or hangs, raises, refuses."""

    name = "last-rank-dies"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._is_last = arena.rank == arena.world_size - 1

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        if self._is_last and len(block_ids) >= 2:
            self.misbehave()
        super().store(block_ids, host_slots, group=group)

    def misbehave(self) -> None:
        os._exit(3)


class LastRankHangs(LastRankDies):
    """Wrong: the last rank never comes back."""

    name = "last-rank-hangs"

    def misbehave(self) -> None:
        while True:
            pass


class LastRankRaises(LastRankDies):
    """Wrong: the last rank raises."""

    name = "last-rank-raises"

    def misbehave(self) -> None:
        raise RuntimeError("not on this rank")


def _shared(size: int) -> torch.Tensor:
    """Return ``size`` bytes that all ranks see, uint8 [size]; the file has no name any more when this returns."""
    together = dist.is_initialized()
    number = torch.tensor([int.from_bytes(os.urandom(7), "little")])
    if together:
        dist.broadcast(number, 0)
    path = _FOLDER / f"kvverify-ranks-{int(number):x}"
    if not together or dist.get_rank() == 0:
        with path.open("wb") as file:
            file.truncate(size)
    _meet(together)
    with path.open("r+b") as file:
        memory = mmap.mmap(file.fileno(), size)
    _meet(together)
    path.unlink(missing_ok=True)
    return torch.frombuffer(memory, dtype=torch.uint8)


def _meet(together: bool) -> None:
    if together:
        dist.all_reduce(torch.zeros(1))  # in host memory: a barrier would connect the GPUs
