"""Digests of host memory by the processor, equal to those of :func:`kvverify.arena.payload_triton.digest`.

    digest = sum over words i of mix(word ^ (i + 1) * GOLDEN), modulo 2^64; the last word of a cell is filled up with zeros

numpy lets other threads run during each of its operations, so threads share the work; chunks stay in the second-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from kvverify.arena.geometry import Positions
from kvverify.arena.memory import PAGE, Bytes, sliding
from kvverify.arena.payload import FACTOR, GOLDEN, fill, rows

_CHUNK = 128  # cells a round: 512 KiB of words, as much of scratch
_AT_ONCE = 64 * _CHUNK  # cells one thread takes
_SALT = np.arange(1, PAGE // 8 + 1, dtype=np.uint64) * np.uint64(GOLDEN)

Digests = npt.NDArray[np.int64]


def cell_digests(memory: Bytes, starts: Positions, lengths: Positions) -> Digests:
    """Return the digest of each cell, ``lengths`` bytes (at most 4,096) from ``starts`` of ``memory`` on: int64 [n]."""
    digests = np.empty(len(starts), np.int64)

    def part(cells: Positions, length: int) -> None:
        digests[cells] = _of_rows(sliding(memory, length)[starts[cells]])

    _in_threads(part, lengths)
    return digests


def write_payload(memory: Bytes, starts: Positions, lengths: Positions, key: int) -> Digests:
    """Write the payload of ``key`` to each cell, by its position in ``memory``; return the digests of what was written."""
    digests = np.empty(len(starts), np.int64)

    def part(cells: Positions, length: int) -> None:
        data = _payload(starts[cells], length, key)
        sliding(memory, length)[starts[cells]] = data
        digests[cells] = _of_rows(data)

    _in_threads(part, lengths)
    return digests


def _payload(starts: Positions, length: int, key: int) -> Bytes:
    """The payload of ``length`` bytes from each position on: uint8 [n, length]."""
    if int(starts[-1]) - int(starts[0]) != (len(starts) - 1) * length:
        return rows([key], starts, length)
    data = np.empty((len(starts), length), np.uint8)
    fill(data.reshape(-1), key, int(starts[0]))
    return data


def _of_rows(data: Bytes) -> Digests:
    """Digests of rows, uint8 [n, length]."""
    count, length = data.shape
    if length % 8 or not data.flags.c_contiguous:
        padded = np.zeros((count, -(-length // 8) * 8), np.uint8)
        padded[:, :length] = data
        data = padded
    words = data.view(np.uint64)
    mixed = words ^ _SALT[: words.shape[1]]
    mixed ^= mixed >> np.uint64(32)
    mixed *= np.uint64(FACTOR)
    mixed ^= mixed >> np.uint64(29)
    digests: Digests = mixed.sum(1, dtype=np.uint64).view(np.int64)
    return digests


def _in_threads(part: Callable[[Positions, int], None], lengths: Positions) -> None:
    """Call ``part`` with some cells of equal length at a time, in threads where there are many."""

    def work(some: tuple[Positions, int]) -> None:
        cells, length = some
        for first in range(0, len(cells), _CHUNK):
            part(cells[first : first + _CHUNK], length)

    pieces = list(_pieces(lengths))
    if len(pieces) == 1:
        work(pieces[0])
        return
    with ThreadPoolExecutor() as pool:
        list(pool.map(work, pieces))


def _pieces(lengths: Positions) -> Iterator[tuple[Positions, int]]:
    for length in np.unique(lengths).tolist():
        same = np.flatnonzero(lengths == length)
        for first in range(0, len(same), _AT_ONCE):
            yield same[first : first + _AT_ONCE], length
