"""Where wrong bytes came from: payload words are turned back into the address that named them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kvverify.arena.geometry import Owner, locate
from kvverify.arena.memory import BorrowedMemory, Bytes, Mapping
from kvverify.arena.oracle import Oracle
from kvverify.arena.payload import fill, word_index

_SEARCH_LIMIT = 64 << 20  # bytes of payload regenerated to find a run that holds no whole word


@dataclass(frozen=True, slots=True)
class Origin:
    """The place whose payload was found. ``owner`` is None for host bytes, guards and gaps."""

    region: str
    position: int  # in the mapping of the region
    key: int
    writer: str
    owner: Owner | None
    text: str


def find_origin(oracle: Oracle, data: Bytes) -> Origin | None:
    """Return where ``data`` (8 bytes or more) was written first, None when no payload of the sequence holds it."""
    if len(data) < 8:
        return None
    for region, memory, keys in (
        ("device", oracle.arena.device, oracle.keys),
        ("host", oracle.arena.host_memory, oracle.host_keys),
    ):
        for key, writer in keys.items():
            position = _position_by_word(memory, key, data)
            if position is None and len(data) < 15:
                position = _position_by_search(memory, key, data)
            if position is not None:
                return _describe(oracle, region, position, key, writer)
    return None


def _position_by_word(memory: Mapping | BorrowedMemory, key: int, data: Bytes) -> int | None:
    raw = data[:23].tobytes()
    for phase in range(min(8, len(raw) - 7)):
        index = word_index(int.from_bytes(raw[phase : phase + 8], "little"), key)
        start = index * 8 - phase
        if 0 <= start <= memory.size - 8 and _holds(memory, start, len(raw)):
            return start  # one whole word is proof: 2^64 words, of which a region holds a few thousand
    return None


def _holds(memory: Mapping | BorrowedMemory, start: int, length: int) -> bool:
    return any(a <= start and start + min(length, 8) <= b for a, b in memory.windows)


def _position_by_search(memory: Mapping | BorrowedMemory, key: int, data: Bytes) -> int | None:
    if memory.accessible_bytes > _SEARCH_LIMIT:
        return None
    for start, stop in memory.windows:
        payload = np.empty(stop - start, np.uint8)
        fill(payload, key, start)
        found = payload.tobytes().find(data.tobytes())
        if found >= 0:
            return start + found
    return None


def _describe(oracle: Oracle, region: str, position: int, key: int, writer: str) -> Origin:
    arena = oracle.arena
    if region == "host":
        slot, byte = divmod(position - arena.host_base, arena.slot_stride)
        return Origin(region, position, key, writer, None, f"{writer} in host slot {slot}, byte {byte}")
    owner = locate(arena.layout, position - arena.base)
    if owner is None:
        return Origin(
            region, position, key, writer, None, f"{writer} at byte {position - arena.base:,} outside every block"
        )
    layer = arena.layout.layers[owner.layer]
    text = (
        f"block {owner.block}, layer {layer.index}, token {owner.token}, head {owner.head}, "
        f"byte {owner.cell_byte} ({owner.field}), written by {writer}"
    )
    return Origin(region, position, key, writer, owner, text)
