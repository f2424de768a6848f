"""The host side of an arena whose device side is a GPU's: known by digests, a number for each page, never by a second copy.

Windows are cut into cells: pages counted from the first byte of each slot and of each stretch between slots, so that a cell never
belongs to two slots. A digest is a sum of bijections of a cell's words, hence any change inside one word changes it for certain.
Where the GPU reaches the memory it works in place, over the bus; the processor does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import torch

from kvverify.arena.arena import Arena
from kvverify.arena.compare import Mismatch
from kvverify.arena.geometry import Positions
from kvverify.arena.host_digest import cell_digests, write_payload
from kvverify.arena.memory import PAGE
from kvverify.arena.payload import fill
from kvverify.arena.payload_launch import triton_kernels

_REWRITTEN = 256 << 20  # a larger tier is written once, and keeps what it holds from sequence to sequence
_KEPT = 256  # cells whose bytes are looked at for a diagnosis
_WORDS = PAGE // 8

Cells = npt.NDArray[np.int64]  # their numbers
Digests = npt.NDArray[np.int64]


class HostTier:
    """Digests of all cells of the host side that can be touched, and what those cells hold as far as that is known.

    Args:
        arena: whose host side it is.
        device: a GPU that reaches the memory under its own addresses, or the CPU.
    """

    def __init__(self, arena: Arena, device: torch.device) -> None:
        self._arena = arena
        self._memory = arena.host_memory.array
        slots = arena.host_base + np.arange(arena.host_slots, dtype=np.int64) * arena.slot_stride
        self._starts, self._lengths = _cells(arena.host_memory.windows, slots, arena.slot_bytes)
        self._first_of_slot = np.searchsorted(self._starts, slots)
        # of the payload that a cell holds; 0 where a kernel wrote it
        self._keys = np.zeros(len(self._starts), np.uint64)
        self._kernels = triton_kernels(device)
        self._by_gpu: Cells = np.empty(0, np.int64)
        if self._kernels is not None:
            # from the first cell to the last: the margins around them are not registered, and Triton asks the driver
            self._base, stop = int(self._starts[0]), int(self._starts[-1] + self._lengths[-1])
            words = self._memory[self._base : stop][: (stop - self._base) // 8 * 8]
            aligned = (self._starts - self._base) % 8 == 0
            if words.ctypes.data % 8 == 0 and self._base % 8 == 0:
                self._by_gpu = np.flatnonzero((self._lengths == PAGE) & aligned)
            self._words = torch.from_numpy(words).view(torch.int64)
            self._word_starts = torch.from_numpy((self._starts[self._by_gpu] - self._base) // 8).to(device)
        self._digests: Digests = np.zeros(len(self._starts), np.int64)
        self._written = False

    @property
    def nbytes(self) -> int:
        """Bytes that the digests cover."""
        return int(self._lengths.sum())

    def reset(self, key: int) -> None:
        """Write every byte anew; a large tier only the first time."""
        if self._written and self.nbytes > _REWRITTEN:
            return
        self._keys[:] = key
        rest = np.ones(len(self._starts), bool)
        rest[self._by_gpu] = False
        self._digests[self._by_gpu] = self._write_on_gpu(key)
        others = np.flatnonzero(rest)
        self._digests[others] = write_payload(self._memory, self._starts[others], self._lengths[others], key)
        self._written = True

    def overwrite(self, slot: int, key: int) -> None:
        """Write a slot anew, at once and not in the order of the stream, as a tier does that thinks it is done.

        The digests are those of what was written, not of what lies there a moment later.
        """
        cells = self._cells_of([slot])
        self._keys[cells] = key
        self._digests[cells] = write_payload(self._memory, self._starts[cells], self._lengths[cells], key)

    def check(self, stored: Iterable[int]) -> Mismatch | None:
        """Compare all cells with their digests, those of the ``stored`` slots excepted, which are taken as they are."""
        now = self._now()
        taken = self._cells_of(list(stored))
        self._digests[taken], self._keys[taken] = now[taken], 0
        changed = np.flatnonzero(now != self._digests)
        return self._mismatch(changed) if len(changed) else None

    def _mismatch(self, changed: Cells) -> Mismatch:
        positions, expected, found, exact = [], [], [], True
        for index in changed[:_KEPT].tolist():
            start, length = int(self._starts[index]), int(self._lengths[index])
            cell = self._memory[start : start + length].copy()
            known = int(self._keys[index])
            wanted = np.zeros_like(cell)
            if known:
                fill(wanted, known, start)
            wrong = np.flatnonzero(cell != wanted) if known else np.arange(length)
            exact = exact and bool(known)
            positions.append(start + wrong)
            expected.append(wanted[wrong])
            found.append(cell[wrong])
        at = np.concatenate(positions)
        more = int(self._lengths[changed[_KEPT:]].sum())
        return Mismatch(
            "host", at, np.concatenate(expected), np.concatenate(found), len(at) + more, exact=exact and not more
        )

    def _now(self) -> Digests:
        """Digest everything: the GPU in the order of the current stream, the processor when that is done with all before."""
        self._arena.synchronize()
        digests = np.empty(len(self._starts), np.int64)
        sums = self._digest_on_gpu()
        others = np.ones(len(self._starts), bool)
        others[self._by_gpu] = False
        digests[others] = cell_digests(self._memory, self._starts[others], self._lengths[others])
        digests[self._by_gpu] = sums.cpu().numpy()
        return digests

    def _digest_on_gpu(self) -> torch.Tensor:
        """Digest the cells that the GPU can; it may still be at work."""
        if self._kernels is None or not len(self._by_gpu):
            return torch.empty(0, dtype=torch.int64)
        sums = torch.empty_like(self._word_starts)
        self._kernels.digest[(len(sums),)](self._words, self._word_starts, _WORDS, sums, SIZE=_WORDS, num_warps=4)
        return sums

    def _write_on_gpu(self, key: int) -> Digests:
        """Write the payload to the cells that the GPU can reach; return their digests."""
        if self._kernels is None or not len(self._by_gpu):
            return np.empty(0, np.int64)
        sums = torch.empty_like(self._word_starts)
        keys = torch.from_numpy(np.asarray([key], np.uint64).astype(np.int64)).to(sums.device)
        first = torch.tensor([self._base // 8], device=sums.device)
        self._kernels.write[(len(sums),)](self._words, self._word_starts, keys, first, sums, SIZE=_WORDS, num_warps=4)
        written: Digests = sums.cpu().numpy()
        return written

    def _cells_of(self, slots: list[int]) -> Cells:
        """Numbers of the cells of ``slots``, of which each has as many."""
        if not slots:
            return np.empty(0, np.int64)
        each = np.arange(-(-self._arena.slot_bytes // PAGE))
        cells: Cells = (self._first_of_slot[np.asarray(slots)][:, None] + each).reshape(-1)
        return cells


def _cells(windows: Iterable[tuple[int, int]], slots: Positions, slot_bytes: int) -> tuple[Positions, Positions]:
    """Return start and length of each cell: windows cut at the borders of slots, and from those on every 4,096 bytes."""
    borders = np.unique(np.concatenate([slots, slots + slot_bytes]))
    starts, stops = [], []
    for start, stop in windows:
        inner = borders[np.searchsorted(borders, start, "right") : np.searchsorted(borders, stop)]
        edges = np.concatenate([[start], inner, [stop]]).astype(np.int64)
        starts.append(edges[:-1])
        stops.append(edges[1:])
    first, last = np.concatenate(starts), np.concatenate(stops)
    counts = -(-(last - first) // PAGE)
    nth = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    cells = np.repeat(first, counts) + nth * PAGE
    return cells, np.minimum(np.repeat(last, counts) - cells, PAGE)
