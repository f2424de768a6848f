"""Real memory with guards: one anonymous mapping in which some windows are accessible and everything else is not.

A touch outside the windows ends the process by a signal, which the parent reports as a crash; a touch inside the windows but
outside what a step may change is found by comparison. Sparse mappings let block ids cross 2^32 bytes while a few MiB exist.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

PAGE = mmap.PAGESIZE
_PROT_NONE = 0
Bytes = npt.NDArray[np.uint8]
Scalar = TypeVar("Scalar", np.uint8, np.uint64)
Window = tuple[int, int]  # start and stop in bytes from the start of the mapping, multiples of PAGE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


def page_floor(position: int) -> int:
    """Round down to a page border."""
    return position // PAGE * PAGE


def page_ceil(position: int) -> int:
    """Round up to a page border."""
    return -(-position // PAGE) * PAGE


def merge_windows(windows: Iterable[Window]) -> tuple[Window, ...]:
    """Sort page-aligned windows and join those that touch or overlap."""
    merged: list[list[int]] = []
    for start, stop in sorted(windows):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], stop)
        else:
            merged.append([start, stop])
    return tuple((start, stop) for start, stop in merged)


def same_bytes(left: Bytes, right: Bytes) -> bool:
    """Compare two contiguous uint8 arrays of equal size with memcmp: no temporary, a NaN pattern is a byte like any other."""
    if left.nbytes != right.nbytes:
        raise ValueError(f"sizes differ: {left.nbytes} and {right.nbytes}")
    return bool(_libc.memcmp(left.ctypes.data, right.ctypes.data, left.nbytes) == 0)


def scatter(memory: Bytes, starts: npt.NDArray[np.int64], data: Bytes) -> None:
    """Write the rows of ``data``, uint8 [n, length], to ``memory`` from the positions ``starts`` on, in one operation."""
    sliding(memory, data.shape[1])[starts] = data


def sliding(array: npt.NDArray[Scalar], count: int) -> npt.NDArray[Scalar]:
    """Return all runs of ``count`` elements of a contiguous array as rows of a view: row i begins at element i."""
    size = array.itemsize
    # np.ndarray itself: sliding_window_view takes 60 us, and this runs dozens of times a sequence
    return np.ndarray((len(array) - count + 1, count), array.dtype, array, 0, (size, size))


class Memory(Protocol):
    """Bytes at positions from 0 to ``size``, of which those inside ``windows`` can be touched."""

    @property
    def size(self) -> int:
        """Bytes in all."""

    @property
    def windows(self) -> tuple[Window, ...]:
        """Where the bytes that can be touched lie."""

    @property
    def accessible_bytes(self) -> int:
        """Bytes inside the windows."""

    def read(self, start: int, stop: int) -> Bytes:
        """Return a copy of the bytes [start, stop), which lie in one window."""


@dataclass(slots=True)
class Mapping:
    """``size`` bytes of address space of which only ``windows`` can be touched; ``array`` spans all of it.

    Raises:
        MemoryError: the system refuses the address space.
    """

    size: int
    windows: tuple[Window, ...]
    inaccessible_bytes: int = field(init=False, default=0)  # counted where protection is set, not derived from windows
    array: Bytes = field(init=False, repr=False)
    _map: mmap.mmap = field(init=False, repr=False)

    def __post_init__(self) -> None:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        try:
            self._map = mmap.mmap(-1, self.size, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE)
        except OSError as error:
            raise MemoryError(f"cannot reserve {self.size:,} bytes of address space: {error}") from error
        self.array = np.frombuffer(self._map, dtype=np.uint8)
        edge = 0
        for start, stop in (*self.windows, (self.size, self.size)):
            self._protect(edge, start)
            edge = stop

    @property
    def address(self) -> int:
        """Machine address of the first byte."""
        return int(self.array.ctypes.data)

    @property
    def accessible_bytes(self) -> int:
        """Bytes inside the windows."""
        return sum(stop - start for start, stop in self.windows)

    def read(self, start: int, stop: int) -> Bytes:
        """Return a copy of the bytes [start, stop)."""
        return self.array[start:stop].copy()

    def contains(self, start: int, stop: int) -> bool:
        """Is [start, stop) inside one window?"""
        return any(a <= start and stop <= b for a, b in self.windows)

    def _protect(self, start: int, stop: int) -> None:
        if stop <= start:
            return
        if _libc.mprotect(self.address + start, stop - start, _PROT_NONE):
            raise MemoryError(f"mprotect failed with errno {ctypes.get_errno()}")
        self.inaccessible_bytes += stop - start


@dataclass(frozen=True, slots=True)
class BorrowedMemory:
    """Memory that belongs to a library: all of it can be touched, or only ``parts`` where other processes own the rest."""

    array: Bytes
    parts: tuple[Window, ...] = ()

    @property
    def size(self) -> int:
        """Bytes in all."""
        return len(self.array)

    @property
    def accessible_bytes(self) -> int:
        """Bytes inside the windows."""
        return sum(stop - start for start, stop in self.windows)

    @property
    def inaccessible_bytes(self) -> int:
        """Bytes between the parts."""
        return self.size - self.accessible_bytes

    @property
    def windows(self) -> tuple[Window, ...]:
        """The parts, or one window over everything."""
        return self.parts or ((0, len(self.array)),)

    def read(self, start: int, stop: int) -> Bytes:
        """Return a copy of the bytes [start, stop)."""
        return self.array[start:stop].copy()
