"""Hypothesis strategies for programs: sequences that a serving engine could issue, at the sizes where copies go wrong."""

from __future__ import annotations

import functools
import hashlib
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from hypothesis import strategies as st

from kvverify.roundtrip.program import (
    Check,
    Evict,
    Fill,
    Forget,
    Ids,
    Load,
    LoadPart,
    Model,
    Program,
    Step,
    Store,
)
from kvverify.roundtrip.races import Room, phrase

MIN_STEPS = 8
_CODES = (1 << 24) - 1  # beyond 24 bits Hypothesis draws small numbers most of the time
# Hypothesis draws one integer in twenty from the constants of the modules that happen to be loaded; from here on there are none, so
# that a resumed run, which has loaded others, draws the very same programs.
_BASE = int.from_bytes(hashlib.sha512(b"kvverify").digest(), "big") << 1024
_RACING = 0.2  # of the draws of a GPU campaign are phrases that meet a busy stream: three of four programs hold one
_SLOW_SLOTS = 6  # in one call, for kernels that run in an interpreter


@dataclass(frozen=True, slots=True)
class Shape:
    """What a program may use: the block ids and groups of the layout, and what the kernel's attributes promise."""

    blocks: Ids
    groups: int = 1
    host_slots: int = 4
    blocks_per_slot: int = 1
    load_part: bool = False
    partial_slots: bool = False
    slow: bool = False
    host_checked: bool = True
    races: bool = False  # the engine's stream may be busy when a copy is asked for
    polls: bool = False  # the kernel has done()


@st.composite
def programs(draw: st.DrawFn, shape: Shape, salt: int = 0, max_steps: int = 12) -> Program:
    """Draw a program of ``MIN_STEPS`` to ``max_steps`` steps that is valid for ``shape``.

    Hypothesis draws the number of steps and one number a step, from which all of the step follows: a draw costs as much as a
    copy, and a dozen for each step halved the sequences a second. shrink.py makes failing programs small and plain.

    The payload seed is a digest of the steps and ``salt``: equal programs are equal to the bit, different ones share no bytes.
    """
    model = Model(shape.blocks, shape.host_slots, shape.blocks_per_slot)
    count = MIN_STEPS + draw(_numbers(max_steps - MIN_STEPS)) - _BASE
    steps: list[Step] = []
    for left in range(count, 0, -1):
        rng = Random(draw(_numbers(_CODES)) - _BASE)
        for step in _steps(rng, shape, model, left):
            model.apply(step)
            steps.append(step)
    digest = zlib.crc32(repr(steps).encode())
    return Program((salt << 32) | digest, tuple(steps), shape.host_slots, shape.blocks_per_slot)


def _steps(rng: Random, shape: Shape, model: Model, left: int) -> tuple[Step, ...]:
    if shape.races and left > 1 and rng.random() < _RACING and len(shape.blocks) >= shape.blocks_per_slot:
        room = Room(shape.blocks, shape.groups, shape.host_slots, shape.blocks_per_slot, shape.polls)
        return phrase(rng, room, model)
    return (_step(rng, shape, model, left),)


def _step(rng: Random, shape: Shape, model: Model, left: int) -> Step:
    if left == 1 and _loadable(shape, model):
        return _load_all(rng, shape, model)  # what was stored shows only when it is loaded
    possible: list[Callable[[Random, Shape, Model], Step]] = [_fill]
    if _storable(shape, model):
        possible += [_store, _store]
    if _loadable(shape, model):
        possible += [_load, _load, _load]
        if shape.load_part and shape.blocks_per_slot > 1:
            possible.append(_load_part)
    if model.stored:
        possible.append(_forget)
    if model.filled:
        possible.append(_evict)
    if left < MIN_STEPS:
        possible.append(_check)
    return possible[_up_to(rng, len(possible) - 1)](rng, shape, model)


def _storable(shape: Shape, model: Model) -> bool:
    return any(_filled(model, g) for g in range(shape.groups))


def _loadable(shape: Shape, model: Model) -> list[int]:
    return [slot for slot, (_, held) in model.stored.items() if held <= len(shape.blocks)]


def _filled(model: Model, group: int) -> list[int]:
    return [b for b, g in model.filled.items() if g == group]


def _fill(rng: Random, shape: Shape, model: Model) -> Step:
    group = _up_to(rng, shape.groups - 1) if shape.groups > 1 else 0
    # the first one often fills the pool, so that the stores after it have many blocks to choose from
    count = _count(rng, shape, len(shape.blocks), often_small=bool(model.filled))
    return Fill(_choose(rng, shape.blocks, count), group)


def _store(rng: Random, shape: Shape, model: Model) -> Step:
    groups = [g for g in range(shape.groups) if _filled(model, g)]
    group = groups[_up_to(rng, len(groups) - 1)] if len(groups) > 1 else groups[0]
    filled, per_slot = _filled(model, group), shape.blocks_per_slot
    most = min(_count(rng, shape, 2 * len(filled), often_small=False), shape.host_slots * per_slot)
    count = most if shape.partial_slots else max(1, most // per_slot) * per_slot
    repeated = count > len(filled) or _up_to(rng, 7) == 7
    blocks = _repeat(rng, filled, count) if repeated else _choose(rng, tuple(filled), count)
    return Store(blocks, _choose(rng, tuple(range(shape.host_slots)), -(-count // per_slot)), group)


def _load(rng: Random, shape: Shape, model: Model) -> Step:
    first = _pick(rng, _loadable(shape, model))
    group = model.stored[first][0]
    whole = [s for s, held in model.stored.items() if held == (group, shape.blocks_per_slot)]
    slots, blocks = [first], model.stored[first][1]
    room = _most(shape, len(shape.blocks))
    if whole:
        # every slot but the last must be full; sources may repeat
        wanted = _count(rng, shape, 1 + (room - blocks) // shape.blocks_per_slot) - 1
        while wanted > 0 and blocks + shape.blocks_per_slot <= room:
            slots.insert(0, _pick(rng, whole))
            blocks += shape.blocks_per_slot
            wanted -= 1
    return Load(tuple(slots), _choose(rng, shape.blocks, blocks), group)


def _load_all(rng: Random, shape: Shape, model: Model) -> Step:
    """Fill the pool with all that fits: full slots, and one that is partly filled behind them."""
    group, per_slot = model.stored[_pick(rng, _loadable(shape, model))][0], shape.blocks_per_slot
    held_of = {slot: held for slot, (owner, held) in model.stored.items() if owner == group}
    room = _most(shape, len(shape.blocks))
    slots = _choose(rng, tuple(s for s, held in held_of.items() if held == per_slot), room // per_slot)
    if not slots:
        return _load(rng, shape, model)
    blocks = per_slot * len(slots)
    if parts := [s for s, held in held_of.items() if held < per_slot and blocks + held <= room]:
        slots = (*slots, _pick(rng, parts))
        blocks += held_of[slots[-1]]
    return Load(slots, _choose(rng, shape.blocks, blocks), group)


def _load_part(rng: Random, shape: Shape, model: Model) -> Step:
    slot = _pick(rng, _loadable(shape, model))
    group, held = model.stored[slot]
    first = _up_to(rng, held - 1)
    # loads of a part run to the end of what the slot holds, as a hit that starts inside a chunk does
    return LoadPart(slot, first, _choose(rng, shape.blocks, held - first), group)


def _forget(rng: Random, shape: Shape, model: Model) -> Step:
    return Forget((_pick(rng, list(model.stored)),))


def _evict(rng: Random, shape: Shape, model: Model) -> Step:
    filled = tuple(model.filled)
    return Evict(_choose(rng, filled, 1 + _up_to(rng, min(3, len(filled)) - 1)))


def _check(rng: Random, shape: Shape, model: Model) -> Step:
    return Check()


def _count(rng: Random, shape: Shape, most: int, *, often_small: bool = True) -> int:
    """Draw a number of blocks from 1 to ``most``: small ones, and those around chunk, batch and pool borders."""
    most = max(1, _most(shape, most))
    per_slot = shape.blocks_per_slot
    borders = {
        1,
        2,
        3,
        per_slot - 1,
        per_slot,
        per_slot + 1,
        4 * per_slot,
        4 * per_slot + 1,
        15,
        16,
        17,
        most - 1,
        most,
    }
    choices = sorted(b for b in borders if 1 <= b <= most)
    if not often_small:
        choices += [b for b in (16, 17) if b <= most]  # where launches and batches of 16 end, worth another chance
    # half of what is filled and loaded is small: it costs little, and most faults show in it as well
    index = _up_to(rng, (2 if often_small else 1) * len(choices) - 1)
    return choices[index] if index < len(choices) else choices[(index - len(choices)) % min(3, len(choices))]


def _most(shape: Shape, blocks: int) -> int:
    """Return ``blocks``, or as many of them as one call of a slow kernel gets."""
    return min(blocks, _SLOW_SLOTS * shape.blocks_per_slot) if shape.slow else blocks


def _choose(rng: Random, numbers: Ids, count: int) -> Ids:
    """Choose ``count`` distinct numbers in any order."""
    return tuple(rng.sample(numbers, min(count, len(numbers))))


def _repeat(rng: Random, numbers: list[int], count: int) -> Ids:
    """Choose ``count`` numbers, some of them more than once."""
    return tuple(rng.choices(numbers, k=count))


def _pick(rng: Random, numbers: list[int]) -> int:
    return rng.choice(numbers)


def _up_to(rng: Random, most: int) -> int:
    return rng.randrange(most + 1)


@functools.lru_cache(maxsize=64)
def _numbers(most: int) -> st.SearchStrategy[int]:
    return st.integers(_BASE, _BASE + most)
