"""The host side of an arena whose device side is a GPU's: known by digests, a number for each page, never by a second copy.

Where the GPU reaches the memory, it computes the digests in place, over the bus; else CRC-32 does, in threads.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import torch

from kvverify.arena.arena import Arena
from kvverify.arena.compare import Mismatch
from kvverify.arena.geometry import Positions
from kvverify.arena.memory import PAGE, Bytes
from kvverify.arena.payload import fill
from kvverify.arena.payload_launch import triton_kernels

Pages = Positions
_REWRITTEN = 256 << 20  # a larger tier is written once, and keeps what it holds from sequence to sequence
_AT_ONCE = 64 << 20  # bytes one thread works on
_KEPT = 256  # pages whose bytes are looked at for a diagnosis


class HostTier:
    """Digests of all pages of the host side that can be touched, and what those pages hold as far as that is known.

    Args:
        arena: whose host side it is.
        device: a GPU that reaches the memory under its own addresses, or the CPU.
    """

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self._arena = arena
        self._memory = arena.host_memory.array
        windows = [np.arange(a // PAGE, -(-b // PAGE)) for a, b in arena.host_memory.windows]
        self._pages: Pages = np.concatenate(windows).astype(np.int64)
        # of the payload that a page holds; 0 where a kernel wrote it
        self._keys = np.zeros(len(self._pages), np.uint64)
        whole = self._memory.nbytes % PAGE == 0 and arena.host_memory.windows[0][0] % PAGE == 0
        self._kernels = triton_kernels(device) if device.type != "cpu" and whole else None
        if self._kernels is not None:
            # from the first page that can be touched on: the margin before it is not registered, and Triton asks the driver
            first = int(self._pages[0])
            self._words = torch.from_numpy(self._memory[first * PAGE :]).view(torch.int64)
            self._starts = torch.from_numpy((self._pages - first) * (PAGE // 8)).to(device)
        self._digests: npt.NDArray[np.int64] = np.zeros(len(self._pages), np.int64)
        self._written = False

    @property
    def nbytes(self) -> int:
        """Bytes that the digests cover."""
        return sum(b - a for a, b in self._arena.host_memory.windows)

    def reset(self, key: int) -> None:
        """Write every byte anew; a large tier only the first time."""
        if self._written and self.nbytes > _REWRITTEN:
            return
        for start, stop in self._arena.host_memory.windows:
            self._write(start, stop, key)
        self._keys[:] = key
        self._digests = self._now()
        self._written = True

    def overwrite(self, slot: int, key: int) -> None:
        """Write a slot anew."""
        start, stop = self._span(slot)
        self._write(start, stop, key)
        pages = self._indices(slot)
        self._keys[pages] = key
        self._digests[pages] = self._crc_or_kernel(pages)

    def check(self, stored: Iterable[int]) -> Mismatch | None:
        """Compare all pages with their digests, those of the ``stored`` slots excepted, which are taken as they are."""
        now = self._now()
        for slot in stored:
            pages = self._indices(slot)
            self._digests[pages], self._keys[pages] = now[pages], 0
        changed = np.flatnonzero(now != self._digests)
        return self._mismatch(changed) if len(changed) else None

    def _mismatch(self, changed: Pages) -> Mismatch:
        positions, expected, found, exact = [], [], [], True
        for index in changed[:_KEPT].tolist():
            start = int(self._pages[index]) * PAGE
            page = self._memory[start : start + PAGE].copy()
            known = int(self._keys[index])
            wanted = np.zeros_like(page)
            if known:
                fill(wanted, known, start)
            wrong = np.flatnonzero(page != wanted) if known else np.arange(len(page))
            exact = exact and bool(known)
            positions.append(start + wrong)
            expected.append(wanted[wrong])
            found.append(page[wrong])
        at = np.concatenate(positions)
        more = max(0, len(changed) - _KEPT) * PAGE
        return Mismatch(
            "host", at, np.concatenate(expected), np.concatenate(found), len(at) + more, exact=exact and not more
        )

    def _write(self, start: int, stop: int, key: int) -> None:
        def part(first: int) -> None:
            fill(self._memory[first : min(stop, first + _AT_ONCE)], key, first)

        with ThreadPoolExecutor() as pool:
            list(pool.map(part, range(start, stop, _AT_ONCE)))

    def _now(self) -> npt.NDArray[np.int64]:
        return self._crc_or_kernel(np.arange(len(self._pages)))

    def _crc_or_kernel(self, indices: Pages) -> npt.NDArray[np.int64]:
        if self._kernels is None:
            self._arena.synchronize()  # the processor looks now, not in the order of the stream
            return _crcs(self._memory, self._pages[indices])
        starts = (
            self._starts
            if len(indices) == len(self._pages)
            else self._starts[torch.from_numpy(indices).to(self._starts.device)]
        )
        sums = torch.empty_like(starts)
        words = PAGE // 8
        self._kernels.digest[(len(starts),)](self._words, starts, words, sums, SIZE=words, num_warps=4)
        return sums.cpu().numpy()

    def _span(self, slot: int) -> tuple[int, int]:
        start = self._arena.host_base + slot * self._arena.slot_stride
        return start, start + self._arena.slot_bytes

    def _indices(self, slot: int) -> Pages:
        """Indices of the pages of a slot; a page that two slots share belongs to both."""
        start, stop = self._span(slot)
        low, high = np.searchsorted(self._pages, [start // PAGE, -(-stop // PAGE)])
        return np.arange(low, high)


def _crcs(memory: Bytes, pages: Pages) -> npt.NDArray[np.int64]:
    def part(some: Pages) -> list[int]:
        return [zlib.crc32(memory[p * PAGE : (p + 1) * PAGE].data) for p in some.tolist()]

    if len(pages) * PAGE <= _AT_ONCE:
        return np.asarray(part(pages), np.int64)
    with ThreadPoolExecutor() as pool:
        found = pool.map(part, np.array_split(pages, -(-len(pages) * PAGE // _AT_ONCE)))
        return np.asarray([value for values in found for value in values], np.int64)
