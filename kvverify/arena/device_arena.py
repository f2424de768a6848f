"""The arena of a GPU: the engine's buffer with guards in one device allocation, host slots with guards in pinned memory.

    device allocation  [guard | engine buffer | guard]
    host mapping       [no access | guard | slot 0 | guard | slot 1 | guard | ... | no access]

A device cannot take access away from parts of an allocation, so everything is guard that the buffer does not cover, and all of it is
compared. Buffers beyond 2^31 bytes are really allocated; the guard in front is then as long as a negative 32-bit offset reaches.
"""

from __future__ import annotations

import contextlib
import functools
from contextlib import AbstractContextManager

import torch

from kvverify.arena.arena import GUARD, Arena, host_windows
from kvverify.arena.device_memory import allocate, register
from kvverify.arena.memory import Mapping, page_ceil
from kvverify.layout.placement import Layout

_GUARD = 1 << 20
_FAR_GUARD = 4 << 30  # a 32-bit offset in elements of 2 bytes that turned negative
_INT32 = 1 << 31


class DeviceArena(Arena):
    """Memory for one layout on ``device``; a CPU device is for tests of the oracle without a GPU.

    Args:
        layout: where every byte lies.
        host_slots: number of host slots.
        blocks_per_slot: blocks that one slot holds.
        device: where the engine's buffer lies.
        rank: this process among those that share the model.
        world_size: their number.

    Raises:
        MemoryError: the device has not enough memory.
        EnvironmentProblem: the host memory cannot be pinned.
    """

    def __init__(
        self,
        layout: Layout,
        host_slots: int,
        blocks_per_slot: int,
        device: torch.device,
        *,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.layout = layout
        self.host_slots = host_slots
        self.blocks_per_slot = blocks_per_slot
        self.rank, self.world_size = rank, world_size
        on_gpu = device.type != "cpu"
        self.base = _front(layout)
        memory = allocate(allocation_bytes(layout), device)
        self.device, self._tensor = memory, memory.tensor
        self.slot_bytes = page_ceil(layout.host_slot_bytes() * blocks_per_slot)
        self.slot_stride = self.slot_bytes + GUARD
        self.host_base, size, windows = host_windows(self.slot_bytes, self.slot_stride, host_slots)
        mapping = Mapping(size, windows)
        if on_gpu:
            register(mapping)
        self.host_memory = mapping
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def storage(self) -> torch.Tensor:
        """The whole allocation, guards included, uint8 [size], on the device."""
        return self._tensor

    def host_on_device(self) -> bool:
        """Does the GPU reach the host slots under their own addresses? Memory that a library lends may be pageable."""
        # of the slots themselves: torch asks about the start of a storage, and the mapping's first pages have no access
        first = torch.from_numpy(self.host_memory.array[self.host_base : self.host_base + self.slot_bytes])
        return self.stream is not None and first.is_pinned()

    def current(self) -> AbstractContextManager[None]:
        """Make the arena's stream the current one."""
        return contextlib.nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def synchronize(self) -> None:
        """Wait until the arena's stream has done all that was enqueued."""
        if self.stream is not None:
            self.stream.synchronize()

    def spin(self, milliseconds: int) -> None:
        """Keep the current stream busy for about ``milliseconds``."""
        if self.stream is not None:
            _spin_cycles(milliseconds * _cycles_per_ms())


@functools.cache
def _cycles_per_ms() -> int:
    """Measure how many of the spin kernel's cycles take a millisecond."""
    cycles = 10_000_000
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    _spin_cycles(cycles)  # compiles and warms up
    start.record()
    _spin_cycles(cycles)
    end.record()
    end.synchronize()
    return max(1, int(cycles / start.elapsed_time(end)))


def _spin_cycles(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def _front(layout: Layout) -> int:
    return _FAR_GUARD if layout.size_bytes >= _INT32 else _GUARD


def allocation_bytes(layout: Layout) -> int:
    """Return how much device memory an arena for ``layout`` takes."""
    return page_ceil(_front(layout) + layout.size_bytes) + _GUARD


def free_bytes(device: str) -> int:
    """Return the bytes that an arena may take on ``device``: what is free, a twentieth left for libraries."""
    if device != "cuda":
        return 1 << 62
    free, _ = torch.cuda.mem_get_info()
    return free - free // 20


def device_named(name: str) -> torch.device:
    """Return the device that ``--device`` names, with its index."""
    return torch.device(name, torch.cuda.current_device()) if name == "cuda" else torch.device(name)
