"""Hypothesis strategies for programs: sequences that a serving engine could issue, at the sizes where copies go wrong."""

from __future__ import annotations

import functools
import hashlib
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

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

MIN_STEPS = 8
_SPREAD = (1 << 521) - 1  # a Mersenne prime above every pool size, hence coprime to every product of sizes
# Hypothesis draws one integer in twenty from the constants of the modules that happen to be loaded; from here on there are none, so
# that a resumed run, which has loaded others, draws the very same programs.
_BASE = int.from_bytes(hashlib.sha512(b"kvverify").digest(), "big") << 1024
_SLOW_BLOCKS = 6  # blocks in one call for kernels that run in an interpreter


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


@st.composite
def programs(draw: st.DrawFn, shape: Shape, salt: int = 0, max_steps: int = 14) -> Program:
    """Draw a program of ``MIN_STEPS`` to ``max_steps`` steps that is valid for ``shape``.

    The payload seed is a digest of the steps and ``salt``: equal programs are equal to the bit, different ones share no bytes.
    """
    model = Model(shape.blocks, shape.host_slots, shape.blocks_per_slot)
    count = MIN_STEPS + _up_to(draw, max_steps - MIN_STEPS)
    steps: list[Step] = []
    for left in range(count, 0, -1):
        step = _step(draw, shape, model, left)
        model.apply(step)
        steps.append(step)
    digest = zlib.crc32(repr(steps).encode())
    return Program((salt << 32) | digest, tuple(steps), shape.host_slots, shape.blocks_per_slot)


def _step(draw: st.DrawFn, shape: Shape, model: Model, left: int) -> Step:
    if left == 1 and _loadable(shape, model):
        return _load_all(draw, shape, model)  # what was stored shows only when it is loaded
    possible: list[Callable[[st.DrawFn, Shape, Model], Step]] = [_fill]
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
    # the later alternatives are the interesting ones, the first the simplest: Hypothesis shrinks towards index 0
    return possible[_up_to(draw, len(possible) - 1)](draw, shape, model)


def _storable(shape: Shape, model: Model) -> bool:
    return any(_filled(model, g) for g in range(shape.groups))


def _loadable(shape: Shape, model: Model) -> list[int]:
    return [slot for slot, (_, held) in model.stored.items() if held <= len(shape.blocks)]


def _filled(model: Model, group: int) -> list[int]:
    return [b for b, g in model.filled.items() if g == group]


def _fill(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    group = _up_to(draw, shape.groups - 1) if shape.groups > 1 else 0
    # the first one often fills the pool, so that the stores after it have many blocks to choose from
    count = _count(draw, shape, len(shape.blocks), often_small=bool(model.filled))
    return Fill(_choose(draw, shape.blocks, count), group)


def _store(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    groups = [g for g in range(shape.groups) if _filled(model, g)]
    group = groups[_up_to(draw, len(groups) - 1)] if len(groups) > 1 else groups[0]
    filled, per_slot = _filled(model, group), shape.blocks_per_slot
    most = min(_count(draw, shape, 2 * len(filled), often_small=False), shape.host_slots * per_slot)
    count = most if shape.partial_slots else max(1, most // per_slot) * per_slot
    repeated = count > len(filled) or _up_to(draw, 7) == 7
    blocks = _repeat(draw, filled, count) if repeated else _choose(draw, tuple(filled), count)
    return Store(blocks, _choose(draw, tuple(range(shape.host_slots)), -(-count // per_slot)), group)


def _load(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    first = _pick(draw, _loadable(shape, model))
    group = model.stored[first][0]
    whole = [s for s, held in model.stored.items() if held == (group, shape.blocks_per_slot)]
    slots, blocks = [first], model.stored[first][1]
    room = min(len(shape.blocks), _SLOW_BLOCKS if shape.slow else len(shape.blocks))
    if whole:
        # every slot but the last must be full; sources may repeat
        wanted = _count(draw, shape, 1 + (room - blocks) // shape.blocks_per_slot) - 1
        while wanted > 0 and blocks + shape.blocks_per_slot <= room:
            slots.insert(0, _pick(draw, whole))
            blocks += shape.blocks_per_slot
            wanted -= 1
    return Load(tuple(slots), _choose(draw, shape.blocks, blocks), group)


def _load_all(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    group = model.stored[_pick(draw, _loadable(shape, model))][0]
    whole = tuple(s for s, held in model.stored.items() if held == (group, shape.blocks_per_slot))
    room = min(len(shape.blocks), _SLOW_BLOCKS) if shape.slow else len(shape.blocks)
    slots = _choose(draw, whole, max(1, room // shape.blocks_per_slot))
    if len(slots) * shape.blocks_per_slot > len(shape.blocks) or not slots:
        return _load(draw, shape, model)
    return Load(slots, _choose(draw, shape.blocks, len(slots) * shape.blocks_per_slot), group)


def _load_part(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    slot = _pick(draw, _loadable(shape, model))
    group, held = model.stored[slot]
    first = _up_to(draw, held - 1)
    # loads of a part run to the end of what the slot holds, as a hit that starts inside a chunk does
    return LoadPart(slot, first, _choose(draw, shape.blocks, held - first), group)


def _forget(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    return Forget((_pick(draw, list(model.stored)),))


def _evict(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    filled = tuple(model.filled)
    return Evict(_choose(draw, filled, 1 + _up_to(draw, min(3, len(filled)) - 1)))


def _check(draw: st.DrawFn, shape: Shape, model: Model) -> Step:
    return Check()


def _count(draw: st.DrawFn, shape: Shape, most: int, *, often_small: bool = True) -> int:
    """Draw a number of blocks from 1 to ``most``: small ones, and those around chunk, batch and pool borders."""
    most = max(1, min(most, _SLOW_BLOCKS * shape.blocks_per_slot) if shape.slow else most)
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
    # half of what is filled and loaded is small: it costs little, and most faults show in it as well
    index = _up_to(draw, (2 if often_small else 1) * len(choices) - 1)
    return choices[index] if index < len(choices) else choices[(index - len(choices)) % min(3, len(choices))]


def _choose(draw: st.DrawFn, numbers: Ids, count: int) -> Ids:
    """Draw ``count`` distinct numbers in any order, from a single integer: 0 means the first ones in their order."""
    pool, count = list(numbers), min(count, len(numbers))
    code = _code(draw, math.perm(len(pool), count))
    for i in range(count):
        code, j = divmod(code, len(pool) - i)
        pool[i], pool[i + j] = pool[i + j], pool[i]
    return tuple(pool[:count])


def _up_to(draw: st.DrawFn, most: int) -> int:
    """Draw a number from 0 to ``most``; Hypothesis shrinks and mutates it as one."""
    return draw(_from_base(most)) - _BASE


@functools.lru_cache(maxsize=4096)
def _from_base(most: int) -> st.SearchStrategy[int]:
    # made once per size: making a strategy costs as much as drawing from it
    return st.integers(_BASE, _BASE + most)


def _repeat(draw: st.DrawFn, numbers: list[int], count: int) -> Ids:
    """Draw ``count`` numbers, some of them more than once."""
    code, found = _code(draw, len(numbers) ** count), []
    for _ in range(count):
        code, j = divmod(code, len(numbers))
        found.append(numbers[j])
    return tuple(found)


def _code(draw: st.DrawFn, count: int) -> int:
    # Hypothesis prefers small integers, in which only the first digits would vary: a factor spreads them, 0 stays 0
    return _up_to(draw, count - 1) * _SPREAD % count if count > 1 else 0


def _pick(draw: st.DrawFn, numbers: list[int]) -> int:
    return numbers[_up_to(draw, len(numbers) - 1)] if len(numbers) > 1 else numbers[0]
