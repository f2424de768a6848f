"""Wrong bytes cut into stretches, each inside one (head, token) cell, and what each of them holds instead."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from kvverify.arena.compare import Mismatch
from kvverify.arena.expectation import Expectation
from kvverify.arena.geometry import Owner, Positions, Run, join_runs, locate, position_of
from kvverify.arena.memory import Bytes
from kvverify.arena.origin import MIN_RUN, Origin, find_origin
from kvverify.layout.placement import Field, Layer

_STRETCHES = 96  # of so many the origin is searched, half of them spread over the bytes and half over the pieces
_LUCKY = 4  # wrong bytes this far apart belong together: those between are right by chance
_LONGEST = 256  # bytes of a stretch that lies outside every cell


@dataclass(frozen=True, slots=True)
class Stretch:
    """Wrong bytes in a row that belong to one cell, or to none."""

    start: int  # position in the mapping
    wrong: Positions  # positions of the wrong bytes, relative to ``start``
    data: Bytes  # found, from the first to the last wrong byte
    owner: Owner | None
    verdict: str  # stale, zero, constant, moved, occupant, short, unknown
    origin: Origin | None

    @property
    def stop(self) -> int:
        """Position behind the last wrong byte."""
        return self.start + len(self.data)


def stretches_of(oracle: Expectation, mismatch: Mismatch, groups: dict[int, int]) -> list[Stretch]:
    """Return stretches of the wrong device bytes, at most about 100 and spread over all of them, in order.

    ``groups`` maps blocks to the layer group that they belong to.
    """
    wrong = mismatch.positions
    pieces = np.concatenate([[0], np.nonzero(np.diff(wrong) > _LUCKY)[0] + 1])
    half = _STRETCHES // 2
    chosen = {*pieces[_spread(len(pieces), half)].tolist(), *_spread(len(wrong), half).tolist()}
    found: dict[int, Stretch] = {}
    for index in sorted(chosen):
        position = int(wrong[index])
        owner = locate(oracle.arena.layout, position - oracle.arena.base, groups)
        first, last = _bounds(oracle, wrong, index, owner)
        if int(wrong[first]) not in found:
            found[int(wrong[first])] = _stretch(oracle, wrong[first : last + 1], groups)
    return list(found.values())


def _spread(count: int, most: int) -> Positions:
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _bounds(oracle: Expectation, wrong: Positions, index: int, owner: Owner | None) -> tuple[int, int]:
    """Return the indices into ``wrong`` of the first and the last byte of the stretch that holds ``index``."""
    position = int(wrong[index])
    low, high = position - _LONGEST // 2, position + _LONGEST // 2
    if owner is not None:
        start, length = cell_run(oracle.arena.layout.layers[owner.layer], owner)
        low = position_of(oracle.arena.layout, owner) + oracle.arena.base - start
        high = low + length
    first, last = int(np.searchsorted(wrong, low)), int(np.searchsorted(wrong, high)) - 1
    gaps = np.nonzero(np.diff(wrong[first : last + 1]) > _LUCKY)[0] + first
    before, after = gaps[gaps < index], gaps[gaps >= index]
    return (int(before[-1]) + 1 if len(before) else first), (int(after[0]) if len(after) else last)


def cell_run(layer: Layer, owner: Owner) -> Run:
    """Return how far before ``owner``'s byte its stretch may begin, and the length from there to the end of the cell.

    It begins with the field where that is long enough to name its origin, so that K and V are looked at apart; else with the
    contiguous part of the cell.
    """
    here = next(f for f in layer.fields if f.name == owner.field)
    token = owner.token % here.tokens
    field_start = here.offset + owner.head * here.head_stride + token * here.token_stride
    at = field_start + owner.byte
    cells = [_run_of(f, owner.head, token) for f in layer.fields if owner.head < f.heads and token < f.tokens]
    start, length = next(r for r in join_runs([r for r in cells if r[1]]) if r[0] <= at < sum(r))
    if here.length >= MIN_RUN:
        start, length = field_start, start + length - field_start
    return at - start, length


def _run_of(field: Field, head: int, token: int) -> Run:
    return field.offset + head * field.head_stride + token * field.token_stride, field.length


def _stretch(oracle: Expectation, wrong: Positions, groups: Mapping[int, int]) -> Stretch:
    start, stop = int(wrong[0]), int(wrong[-1]) + 1
    data = oracle.arena.device.read(start, stop)
    owner = locate(oracle.arena.layout, start - oracle.arena.base, dict(groups))
    verdict, origin = _judge(oracle, owner, start, data)
    return Stretch(start, wrong - start, data, owner, verdict, origin)


def _judge(oracle: Expectation, owner: Owner | None, start: int, data: Bytes) -> tuple[str, Origin | None]:
    if owner is not None and _is_stale(oracle, owner, start, data):
        return "stale", None
    if len(data) > 1 and not data.any():
        return "zero", None
    if len(data) > 3 and (data == data[0]).all():
        return "constant", None
    if len(data) < MIN_RUN:
        return "short", None
    group = 0 if owner is None else oracle.arena.layout.layers[owner.layer].group
    origin = find_origin(oracle, data, group)
    if origin is None:
        return "unknown", None
    return ("occupant" if origin.occupant else "moved"), origin


def _is_stale(oracle: Expectation, owner: Owner, start: int, data: Bytes) -> bool:
    layer = oracle.arena.layout.layers[owner.layer]
    return any(
        position <= start < position + len(occupant)
        and np.array_equal(occupant[start - position : start - position + len(data)], data)
        for position, occupant in oracle.occupant_bytes(layer, owner.block)
    )


def owners_of(stretches: Iterable[Stretch]) -> list[Owner]:
    """Return the owners of the stretches that have one."""
    return [s.owner for s in stretches if s.owner is not None]
