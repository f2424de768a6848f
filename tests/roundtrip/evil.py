"""Kernels that misbehave in one way each; campaigns load them from this file by path."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.contract import ArenaView
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.placement import Layout


class Raises(TorchReference):
    """Raises in a load of two blocks or more."""

    name = "raises"

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        if len(block_ids) >= 2:
            raise RuntimeError("the copy engine is on fire\nsecond line")
        super().load(host_slots, block_ids, group=group)


class Hangs(TorchReference):
    """Never comes back from a load of two blocks or more."""

    name = "hangs"

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        while len(block_ids) >= 2:
            time.sleep(0.05)
        super().load(host_slots, block_ids, group=group)


class Crashes(TorchReference):
    """Reads address 8 in a store of two blocks or more."""

    name = "crashes"

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        if len(block_ids) >= 2:
            ctypes.string_at(8)
        super().store(block_ids, host_slots, group=group)


class Exits(TorchReference):
    """Ends the process as if all were well."""

    name = "exits"

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        if len(block_ids) >= 2:
            os._exit(0)
        super().store(block_ids, host_slots, group=group)


class OutOfBounds(TorchReference):
    """Writes one byte 20,000 bytes before the arena's first layer: no page is mapped there."""

    name = "out-of-bounds"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._first = arena.layers[0].data_ptr()

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        super().load(host_slots, block_ids, group=group)
        ctypes.memset(self._first - 20_000, 1, 1)


class GuardWriter(TorchReference):
    """Writes one byte just before the arena's first layer: a guard byte."""

    name = "guard-writer"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._first = arena.layers[0].data_ptr()

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        super().load(host_slots, block_ids, group=group)
        address = self._first - 1
        ctypes.memset(address, ctypes.string_at(address, 1)[0] ^ 1, 1)


class Frees(TorchReference):
    """Unmaps a page of the host memory it was lent."""

    name = "frees"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._host = arena.host.data_ptr() // 4096 * 4096

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        super().store(block_ids, host_slots, group=group)
        ctypes.CDLL(None).munmap(ctypes.c_void_p(self._host), ctypes.c_size_t(4096))


class ReturnsEarly(TorchReference):
    """Does its loads 50 ms after wait() has returned."""

    name = "returns-early"

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        slots, blocks = list(host_slots), list(block_ids)
        late = super().load
        threading.Timer(0.05, lambda: late(slots, blocks, group=group)).start()


class CutsTheTail(TorchReference):
    """Leaves the last element of every cell as it was."""

    name = "cuts-the-tail"

    def _load(self, source: tuple[torch.Tensor, torch.Tensor], block_ids: Sequence[int], group: int) -> None:
        blocks = torch.tensor(block_ids)
        for device, host in self._pages[group]:
            pages = host[source].clone()
            pages[..., -1] = device.index_select(0, blocks)[..., -1]
            device.index_copy_(0, blocks, pages)


class RemembersSequences(TorchReference):
    """Goes wrong in the sixth load of its process, whatever the program: state that outlives sequences."""

    name = "remembers"

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        calls = int(os.environ.get("EVIL_CALLS", "0")) + 1
        os.environ["EVIL_CALLS"] = str(calls)
        if calls != 6:
            super().load(host_slots, block_ids, group=group)


class Undecided(TorchReference):
    """Breaks rule 1 of the contract: supports() returns neither True nor a reason."""

    name = "undecided"

    def supports(self, layout: Layout) -> bool | str:
        return False


class OwnsItsHost(TorchReference):
    """Keeps its host tier itself and hands it out."""

    name = "owns-its-host"

    def prepare(self, arena: ArenaView) -> torch.Tensor:  # type: ignore[override]
        own = torch.zeros(tuple(arena.host.shape), dtype=torch.uint8)
        super().prepare(_Borrowed(arena, own))
        return own


class HidesItsHost(OwnsItsHost):
    """Keeps its host tier and does not hand it out."""

    name = "hides-its-host"
    owns_host = True

    def prepare(self, arena: ArenaView) -> None:  # type: ignore[override]
        super().prepare(arena)


class _Borrowed:
    """The arena with another host tensor."""

    def __init__(self, arena: ArenaView, host: torch.Tensor) -> None:
        self.layout, self.layers, self.group_layers = arena.layout, arena.layers, arena.group_layers
        self.stream, self.rank, self.world_size = arena.stream, arena.rank, arena.world_size
        self.host = host


class NeedsMemory(TorchReference):
    """Finds less shared memory than it needs."""

    name = "needs-memory"

    def prepare(self, arena: ArenaView) -> None:
        raise EnvironmentProblem("/dev/shm has 1 KiB free; needs 2 GiB")


_TAKEN = "KVVERIFY_TESTS_TAKEN"  # in the environment of the process, since this file is imported anew for each instance


def _take() -> None:
    """Take something that only one instance can have, as pinned memory is."""
    if _TAKEN in os.environ:
        raise RuntimeError("already taken")
    os.environ[_TAKEN] = "1"


class TakesAndCannotBePrepared(TorchReference):
    """Takes what only one instance can have, and then finds too little of something else; close() stumbles, too."""

    def prepare(self, arena: ArenaView) -> None:
        _take()
        raise RuntimeError("no streams left")

    def close(self) -> None:
        os.environ.pop(_TAKEN)
        raise ValueError("there is no stream to end")


class HoldsUntilClosed(CutsTheTail):
    """Takes what only one instance can have, and gives it back in close()."""

    def prepare(self, arena: Any) -> None:
        _take()
        super().prepare(arena)

    def close(self) -> None:
        os.environ.pop(_TAKEN)
        super().close()


class WholeSlots(TorchReference):
    """Takes eight blocks to a slot and fills every slot, which is no fault; a load does nothing, which is one."""

    name = "whole-slots"
    partial_slots = False

    def __init__(self, blocks_per_slot: int = 8) -> None:
        super().__init__(blocks_per_slot)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None: ...

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None: ...


class HugeSlots(WholeSlots):
    """More blocks to a slot than any of the first layouts has."""

    def __init__(self) -> None:
        super().__init__(64)
