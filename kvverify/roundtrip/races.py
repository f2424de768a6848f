"""Phrases of steps that meet a busy stream: what an engine under load does, and an idle one in a test never.

Each begins with a spin, so that what the engine enqueued before the copy has not begun when the copy is asked for. A copy that does
not wait for it then takes or overwrites the wrong bytes every time, not once in a thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from kvverify.roundtrip.program import Fill, Forget, Ids, Load, Model, Poll, Read, Spin, Step, Store

_SPINS_MS = (4, 8, 16)  # above what it takes a library to hand a copy to the driver
_LONGEST_BURST = 20  # transfers in flight: more than the staging buffers of any library


@dataclass(frozen=True, slots=True)
class Room:
    """What phrases may use, as in strategies.Shape."""

    blocks: Ids
    groups: int
    host_slots: int
    blocks_per_slot: int
    polls: bool


def phrase(rng: Random, room: Room, model: Model) -> tuple[Step, ...]:
    """Return steps that are possible now and keep the stream busy while copies are asked for."""
    possible: list[Callable[[Random, Room, Model], tuple[Step, ...]]] = [_produced_late, _produced_late, _burst]
    if _whole(room, model):
        possible += [_read_late, _read_late]
    if room.polls:
        possible += [_source_reused, *([_host_reused] if _whole(room, model) else [])]
    return rng.choice(possible)(rng, room, model)


def _produced_late(rng: Random, room: Room, _model: Model) -> tuple[Step, ...]:
    """Store blocks whose contents are still being computed."""
    fill, store, load = _round(rng, room, rng.randrange(1, 1 + _slots(room)))
    return _spin(rng), fill, store, load


def _read_late(rng: Random, room: Room, model: Model) -> tuple[Step, ...]:
    """Load into blocks that are still being read."""
    slot = rng.choice(_whole(room, model))
    group = model.stored[slot][0]
    filled = [b for b in model.filled if b in room.blocks]
    chosen = rng.sample(filled, min(len(filled), room.blocks_per_slot))
    others = [b for b in room.blocks if b not in chosen]
    targets = (*chosen, *rng.sample(others, room.blocks_per_slot - len(chosen)))
    reads = (Read(tuple(chosen)),) if chosen else ()
    return _spin(rng), *reads, Load((slot,), targets, group)


def _burst(rng: Random, room: Room, _model: Model) -> tuple[Step, ...]:
    """Ask for more transfers at once than any ring of staging buffers holds, each of one slot."""
    group = rng.randrange(room.groups)
    count = min(room.host_slots, _LONGEST_BURST)
    slots = rng.sample(range(room.host_slots), count)
    sources = [_some(rng, room.blocks, room.blocks_per_slot) for _ in slots]
    filled = tuple(dict.fromkeys(b for blocks in sources for b in blocks))
    stores = [Store(blocks, (slot,), group) for blocks, slot in zip(sources, slots, strict=True)]
    loads = [Load((slot,), _some(rng, room.blocks, room.blocks_per_slot), group) for slot in rng.sample(slots, count)]
    return _spin(rng), Fill(filled, group), *stores, *loads


def _source_reused(rng: Random, room: Room, _model: Model) -> tuple[Step, ...]:
    """Give the source away as soon as the kernel says that it is done."""
    fill, store, load = _round(rng, room, rng.randrange(1, 1 + _slots(room)))
    return _spin(rng), fill, store, Poll(), Fill(fill.blocks, fill.group), load


def _host_reused(rng: Random, room: Room, model: Model) -> tuple[Step, ...]:
    """Overwrite the host slot as soon as the kernel says that it is done."""
    slot = rng.choice(_whole(room, model))
    load = Load((slot,), _some(rng, room.blocks, room.blocks_per_slot), model.stored[slot][0])
    return _spin(rng), load, Poll(), Forget((slot,))


def _round(rng: Random, room: Room, count: int) -> tuple[Fill, Store, Load]:
    group = rng.randrange(room.groups)
    slots = tuple(rng.sample(range(room.host_slots), count))
    sources, targets = (_some(rng, room.blocks, count * room.blocks_per_slot) for _ in range(2))
    return Fill(tuple(dict.fromkeys(sources)), group), Store(sources, slots, group), Load(slots, targets, group)


def _slots(room: Room) -> int:
    """Slots of which all blocks can be loaded to different places."""
    return max(1, min(room.host_slots, len(room.blocks) // room.blocks_per_slot))


def _whole(room: Room, model: Model) -> list[int]:
    return [s for s, (_, held) in model.stored.items() if held == room.blocks_per_slot]


def _some(rng: Random, blocks: Ids, count: int) -> Ids:
    return tuple(rng.sample(blocks, count))


def _spin(rng: Random) -> Spin:
    return Spin(rng.choice(_SPINS_MS))
