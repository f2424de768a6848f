"""Compare all accessible bytes of one memory with what they must be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kvverify.arena.geometry import Positions
from kvverify.arena.memory import BorrowedMemory, Bytes, Mapping, same_bytes

_KEPT = 1 << 20  # wrong bytes kept for the diagnosis
_PIECE = 1 << 20  # bytes looked at together


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Wrong bytes of one memory: positions in the mapping, ascending, with what was expected and found there."""

    region: str  # "device" or "host"
    positions: Positions  # int64 [n]
    expected: Bytes
    found: Bytes
    total: int  # number of wrong bytes, of which the arrays hold the first
    exact: bool = True  # False where only the pages are known in which bytes are wrong


def compare(region: str, memory: Mapping | BorrowedMemory, shadows: list[Bytes]) -> tuple[int, Mismatch | None]:
    """Return the number of compared bytes, and those that differ from ``shadows``, which hold one array a window.

    Raises:
        AssertionError: compared and inaccessible bytes together are not all of the memory.
    """
    compared = 0
    wrong: list[tuple[int, Bytes, Bytes]] = []
    for (start, stop), shadow in zip(memory.windows, shadows, strict=True):
        now = memory.array[start:stop]
        if not same_bytes(now, shadow):
            wrong.append((start, now, shadow))
        compared += now.nbytes
    inaccessible = memory.inaccessible_bytes
    if compared + inaccessible != memory.size:
        raise AssertionError(f"compared {compared} + inaccessible {inaccessible} != {memory.size} bytes")
    return compared, _collect(region, wrong) if wrong else None


def _collect(region: str, wrong: list[tuple[int, Bytes, Bytes]]) -> Mismatch:
    positions: list[Positions] = []
    expected: list[Bytes] = []
    found: list[Bytes] = []
    total = kept = 0
    for start, now, shadow in _pieces(wrong):
        where = np.nonzero(now != shadow)[0]
        total += len(where)
        where = where[: _KEPT - kept]
        kept += len(where)
        positions.append(where + start)
        expected.append(shadow[where])
        found.append(now[where])
    return Mismatch(region, np.concatenate(positions), np.concatenate(expected), np.concatenate(found), total)


def _pieces(wrong: list[tuple[int, Bytes, Bytes]]) -> Iterator[tuple[int, Bytes, Bytes]]:
    # piece by piece: which bytes differ takes a byte each, as much as the memory itself if asked at once
    for start, now, shadow in wrong:
        for first in range(0, len(now), _PIECE):
            here, there = now[first : first + _PIECE], shadow[first : first + _PIECE]
            if not same_bytes(here, there):
                yield start + first, here, there
