"""Faults of several ranks: a kernel that serves rank 0 alone, and one that takes another rank's slice of the heads.

For slices the ranks share one host tier, as serving engines keep it: in every slot the parts of all ranks lie beside each other
(vLLM's ``SharedOffloadRegion``). :class:`SharedTier` is that tier without a fault. On one rank the faults do nothing.
"""

from __future__ import annotations

import dataclasses
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvverify.errors import EnvironmentProblem
from kvverify.faults.fault import Traits
from kvverify.faults.planted import Planted, SeenArena

if TYPE_CHECKING:
    import torch

    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

Copy = Callable[[list[int], list[int]], None]
_FOLDER = Path("/dev/shm")  # noqa: S108 - where shared memory lies on Linux


def has_ranks(traits: Traits, _layout: Layout) -> str | None:
    """They show where programs run on several ranks."""
    return None if traits.get("ranks", 1) > 1 else "needs several ranks"


class RankZeroLoads(Planted):
    """Other ranks than 0 load nothing."""

    def around_load(self, slots: list[int], blocks: list[int], _group: int, copy: Copy) -> None:
        """Load on rank 0."""
        if self.arena.rank == 0:
            copy(slots, blocks)


class RankZeroStores(Planted):
    """Other ranks than 0 store nothing."""

    def around_store(self, blocks: list[int], slots: list[int], _group: int, copy: Copy) -> None:
        """Store on rank 0."""
        if self.arena.rank == 0:
            copy(blocks, slots)


class SharedTier(Planted):
    """No fault: the kernel copies between its rank's blocks and its rank's part of every slot of one tier for all ranks.

    The kernel sees a tier of ``world_size`` times as many slots, in which part r of slot s is slot ``s * world_size + r``.
    """

    def prepare(self, arena: ArenaView) -> torch.Tensor:
        """Prepare the kernel over the shared tier; return this rank's rows, uint8 [slots, part bytes].

        Raises:
            EnvironmentProblem: the kernel brings a tier of its own, or the memory cannot be shared or pinned.
        """
        slots, width = arena.host.shape
        part = -(-width // mmap.PAGESIZE) * mmap.PAGESIZE
        self._tier = shared_bytes(slots * arena.world_size * part, pinned=arena.stream is not None)
        self._parts = self._tier.view(slots * arena.world_size, part)
        if super().prepare(arena) is not None:
            raise EnvironmentProblem(
                f"{self.name} brings a host tier of its own, and cannot be given one for all ranks"
            )
        rows: torch.Tensor = self._tier.view(slots, arena.world_size, part)[:, arena.rank]
        self.host = rows
        return rows

    def seen(self, arena: SeenArena) -> ArenaView:
        """Show the parts of all ranks."""
        return dataclasses.replace(arena, host=self._parts)

    def stored_part(self) -> int:
        """Return the rank whose part a store writes."""
        return self.arena.rank

    def loaded_part(self) -> int:
        """Return the rank whose part a load reads."""
        return self.arena.rank

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], **named: int) -> None:
        """Store to a part of each slot."""
        self.kernel.store(block_ids, self._slots(host_slots, self.stored_part()), **named)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], **named: int) -> None:
        """Load from a part of each slot."""
        self.kernel.load(self._slots(host_slots, self.loaded_part()), block_ids, **named)

    def _load_part(self, slot: int, first: int, block_ids: Sequence[int], **named: int) -> None:
        kernel: Any = self.kernel
        kernel.load_part(*self._slots([slot], self.loaded_part()), first, block_ids, **named)

    def _slots(self, host_slots: Sequence[int], rank: int) -> list[int]:
        return [slot * self.arena.world_size + rank for slot in host_slots]


class NextSlice(SharedTier):
    """Loads take the part of the next rank."""

    def loaded_part(self) -> int:
        """Return the neighbour."""
        return (self.arena.rank + 1) % self.arena.world_size


class FirstSlice(SharedTier):
    """Stores and loads of all ranks use the part of rank 0."""

    def stored_part(self) -> int:
        """Return rank 0."""
        return 0

    def loaded_part(self) -> int:
        """Return rank 0."""
        return 0


def shared_bytes(size: int, *, pinned: bool) -> torch.Tensor:
    """Return ``size`` bytes that all ranks see, uint8 [size]; to be called by all of them at once.

    The file has lost its name when this returns, so a process that dies leaves nothing behind.

    Raises:
        EnvironmentProblem: the memory cannot be made, or the GPU's driver does not pin it.
    """
    import torch
    import torch.distributed as dist

    together = dist.is_initialized()
    number = torch.tensor([int.from_bytes(os.urandom(7), "little")])
    if together:
        dist.broadcast(number, 0)
    path = _FOLDER / f"kvverify-ranks-{int(number):x}"
    try:
        if not together or dist.get_rank() == 0:
            with path.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, size)  # too little memory would end the process when it is touched
        _meet(together=together)
        with path.open("r+b") as file:
            memory = mmap.mmap(file.fileno(), size)
        _meet(together=together)
    except OSError as error:
        raise EnvironmentProblem(f"cannot share {size:,} bytes in {_FOLDER}: {error}") from error
    finally:
        path.unlink(missing_ok=True)
    shared = torch.frombuffer(memory, dtype=torch.uint8)
    if pinned:
        _pin(shared)
    return shared


def _meet(*, together: bool) -> None:
    import torch
    import torch.distributed as dist

    if together:
        dist.all_reduce(torch.zeros(1))  # in host memory: a barrier would connect the GPUs


def _pin(shared: torch.Tensor) -> None:
    import torch

    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # HIP's on ROCm, under the same names
    code = int(runtime.cudaHostRegister(shared.data_ptr(), shared.numel(), 0))
    if code:
        raise EnvironmentProblem(
            f"cannot pin {shared.numel():,} bytes of shared memory: error {code} of the GPU's runtime"
        )
    # the storage ends before the mapping that it holds
    weakref.finalize(shared.untyped_storage(), runtime.cudaHostUnregister, shared.data_ptr()).atexit = False
