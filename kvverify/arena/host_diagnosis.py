"""Wrong host bytes: slots that changed unasked, guards, and whose bytes were found there."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from kvverify.arena.compare import Mismatch
from kvverify.arena.expectation import BEFORE, Expectation
from kvverify.arena.origin import Origin, find_origin
from kvverify.arena.places import spans

_PIECES = 16  # damaged pieces whose origin is searched
_LONGEST = 64  # bytes of one


def host_place(oracle: Expectation, mismatch: Mismatch, stored: Collection[int]) -> tuple[str, str]:
    """Return the kind of place (slot, late, guard) and words for it."""
    arena = oracle.arena
    slots, rests = np.divmod(mismatch.positions - arena.host_base, arena.slot_stride)
    inside = (slots >= 0) & (rests < arena.slot_bytes)
    if not inside.any():
        kind = "guard" if slots[0] >= 0 else "guard before"
        return kind, _guard(int(slots[0]), rests[slots == slots[0]], arena.slot_bytes, arena.slot_stride, stored)
    named = {int(s) for s in slots[inside]}
    part = f"bytes {int(rests[inside].min())}-{int(rests[inside].max())}"
    where = f"host slot {spans(named)}, {part}, changed although no step named it"
    if all(slot in oracle.slots for slot in named):
        where += " since the last check"
    if not inside.all():
        where += "; guards between the slots are damaged too"
    return "slot", where


def _guard(
    slot: int, rests: np.ndarray[tuple[int], np.dtype[np.int64]], size: int, stride: int, stored: Collection[int]
) -> str:
    if slot < 0:
        start = -slot * stride
        return (
            f"the guard before host slot 0, {start - int(rests[-1])} to {start - int(rests[0])} bytes before its start"
        )
    past = f"{int(rests[0]) - size + 1} to {int(rests[-1]) - size + 1} bytes behind its last byte"
    why = f" (slot {slot} was stored to)" if slot in stored else ""
    return f"the guard behind host slot {slot}, {past}{why}"


def host_what(oracle: Expectation, mismatch: Mismatch) -> str:
    """Say whose bytes were found there, '' where that is unknown."""
    wrong = mismatch.positions
    starts = np.concatenate([[0], np.nonzero(np.diff(wrong) > 4)[0] + 1])
    ends = np.append(starts[1:], len(wrong)) - 1
    chosen = np.unique(np.linspace(0, len(starts) - 1, min(len(starts), _PIECES)).astype(np.int64))
    found, zeros = [], 0
    for piece in chosen:
        first, last = int(wrong[starts[piece]]), int(wrong[ends[piece]])
        data = oracle.arena.host_memory.read(first, min(last + 1, first + _LONGEST))
        zeros += len(data) > 1 and not data.any()
        origin = find_origin(oracle, data)
        if origin is not None:
            found.append(origin)
    return _whose(oracle, found) or ("zeros were found there" if zeros else "")


def _whose(oracle: Expectation, found: list[Origin]) -> str:
    words = _place(oracle, found)
    ranks = sorted({o.rank for o in found if o.rank is not None})
    return f"{words}, as rank {spans(ranks)} has them" if words and ranks else words


def _place(oracle: Expectation, found: list[Origin]) -> str:
    layout = oracle.arena.layout
    owners = [o.owner for o in found if o.owner is not None]
    if owners:
        layers = spans(layout.layers[o.layer].index for o in owners)
        writers = " or ".join(sorted({o.writer for o in found if o.owner is not None}))
        return f"the bytes found there are those of block {spans(o.block for o in owners)}, layer {layers}, written by {writers}"
    slots = [(o.position - oracle.arena.host_base) // oracle.arena.slot_stride for o in found if o.region == "host"]
    if slots:
        old = " from before the sequence" if all(o.writer == BEFORE for o in found) else ""
        return f"the bytes found there are those of host slot {spans(slots)}{old}"
    return "the bytes found there are those of a gap or guard of the device buffer" if found else ""
