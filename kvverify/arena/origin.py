"""Where wrong bytes came from: payload words are turned back into the address that named them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from kvverify.arena.expectation import Expectation
from kvverify.arena.geometry import Owner, locate
from kvverify.arena.memory import Bytes, Memory
from kvverify.arena.payload import fill, word_index

MIN_RUN = 8  # bytes: shorter runs name candidates only
_SURE_RUN = 15  # bytes: hold a whole word at any phase
_LOOKED_AT = 48  # bytes in which a word is looked for
_SEARCH_LIMIT = 4 << 20  # bytes of payload regenerated to find a run that holds no whole word


@dataclass(frozen=True, slots=True)
class Origin:
    """The place whose payload was found.

    ``owner`` is None for host bytes, guards and gaps. ``occupant`` says that it is not the payload itself but what lay there
    in its place before a load. ``rank`` is set where another rank wrote it; ``key`` is then this rank's of the same step.
    """

    region: str
    position: int  # in the mapping of the region
    key: int
    writer: str
    owner: Owner | None
    occupant: bool = False
    rank: int | None = None


def find_origin(oracle: Expectation, data: Bytes, group: int = 0) -> Origin | None:
    """Return where ``data`` (8 bytes or more) was written first, None when no payload of the sequence holds it.

    ``group`` decides between overlaid layer groups where the writer wrote for all of them.
    """
    if len(data) < MIN_RUN:
        return None
    arena = oracle.arena
    for rank, device_keys, host_keys in _keys_of_ranks(oracle):
        for region, memory, keys in (("device", arena.device, device_keys), ("host", arena.host_memory, host_keys)):
            for key, own in keys.items():
                position = _position_by_word(memory, key, data)
                if position is None and len(data) < _SURE_RUN:
                    position = _position_by_search(memory, key, data)
                if position is not None:
                    return replace(_origin(oracle, region, position, own, group), rank=rank)
    for mask in oracle.masks:
        for key in oracle.keys:
            position = _position_by_word(oracle.arena.device, key, data ^ np.uint8(mask))
            if position is not None:
                return _origin(oracle, "device", position, key, group, occupant=True)
    return None


def _keys_of_ranks(oracle: Expectation) -> Iterator[tuple[int | None, dict[int, int], dict[int, int]]]:
    """Yield this rank's keys, then those of every other, each with this rank's key of the same step."""
    yield None, {key: key for key in oracle.keys}, {key: key for key in oracle.host_keys}
    for rank in range(oracle.arena.world_size):
        if rank != oracle.arena.rank:
            yield rank, *oracle.foreign_keys(rank)


def _position_by_word(memory: Memory, key: int, data: Bytes) -> int | None:
    raw = data[:_LOOKED_AT].tobytes()
    for at in range(len(raw) - 7):  # not the first phases alone: contents hold special words that have no address
        start = word_index(int.from_bytes(raw[at : at + 8], "little"), key) * 8 - at
        # one whole word is proof: 2^64 words, of which a region holds a few thousand
        if 0 <= start <= memory.size - 8 and any(a <= start and start + 8 <= b for a, b in memory.windows):
            return start
    return None


def _position_by_search(memory: Memory, key: int, data: Bytes) -> int | None:
    if memory.accessible_bytes > _SEARCH_LIMIT:
        return None
    for start, stop in memory.windows:
        payload = np.empty(stop - start, np.uint8)
        fill(payload, key, start)
        found = payload.tobytes().find(data.tobytes())
        if found >= 0:
            return start + found
    return None


def _origin(oracle: Expectation, region: str, position: int, key: int, group: int, *, occupant: bool = False) -> Origin:
    if region == "host":
        return Origin(region, position, key, oracle.host_keys[key], None)
    layout = oracle.arena.layout
    groups = dict.fromkeys(layout.blocks, oracle.key_groups.get(key, group))
    owner = locate(layout, position - oracle.arena.base, groups)
    return Origin(region, position, key, oracle.keys[key], owner, occupant)
