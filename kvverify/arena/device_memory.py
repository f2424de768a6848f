"""Memory that a GPU works on: one allocation on the device, and host pages registered with its driver."""

from __future__ import annotations

import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch

from kvverify.arena.memory import PAGE, Bytes, Mapping, Window
from kvverify.errors import EnvironmentProblem

_TOUCHED = 256 << 20  # bytes one thread touches at a time


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device allocation, uint8 [size]: all of it can be touched and is compared."""

    tensor: torch.Tensor

    @property
    def size(self) -> int:
        """Bytes in all."""
        return self.tensor.numel()

    @property
    def windows(self) -> tuple[Window, ...]:
        """One window over everything."""
        return ((0, self.size),)

    @property
    def accessible_bytes(self) -> int:
        """Bytes that can be touched: all."""
        return self.size

    def read(self, start: int, stop: int) -> Bytes:
        """Return a copy of the bytes [start, stop); waits for the current stream."""
        return self.tensor[start:stop].cpu().numpy()


def allocate(size: int, device: torch.device) -> DeviceMemory:
    """Return ``size`` bytes on ``device``.

    Raises:
        MemoryError: the device has not so much free.
    """
    try:
        return DeviceMemory(torch.empty(size, dtype=torch.uint8, device=device))
    except torch.OutOfMemoryError as error:
        raise MemoryError(f"cannot allocate {size:,} bytes on {device}: {str(error).splitlines()[0]}") from error


def touch(mapping: Mapping) -> None:
    """Let the system find memory for the accessible windows, in threads: pinning would do so in one, and tiers are large."""

    def part(span: Window) -> None:
        mapping.array[span[0] : span[1] : PAGE] = 0

    pieces = [
        (first, min(stop, first + _TOUCHED))
        for start, stop in mapping.windows
        for first in range(start, stop, _TOUCHED)
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(part, pieces))


def register(mapping: Mapping) -> None:
    """Pin the accessible windows of host memory, so that the GPU reads and writes them in place; undone when it is dropped.

    Raises:
        EnvironmentProblem: the driver refuses.
    """
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]  # HIP's on ROCm, under the same names
    touch(mapping)
    for start, stop in mapping.windows:
        address = mapping.address + start
        code = int(runtime.cudaHostRegister(address, stop - start, 0))
        if code:
            raise EnvironmentProblem(
                f"cannot pin {stop - start:,} bytes of host memory: error {code} of the GPU's runtime; "
                "`ulimit -l` and free memory limit how much can be pinned"
            )
        # an array tells of its end before its memory is unmapped, a mapping after that
        weakref.finalize(mapping.array, _unregister, address).atexit = False


def _unregister(address: int) -> None:
    code = int(torch.cuda.cudart().cudaHostUnregister(address))  # type: ignore[no-untyped-call]
    if code:
        print(
            f"host memory at {address:#x} stays pinned: error {code} of the GPU's runtime", file=sys.stderr, flush=True
        )
