"""Make a failing program short and plain.

Not left to Hypothesis: a program that it draws keeps its eight steps, and what it ends with differs from process to process,
while a resumed run has to find the same failure again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from kvverify.roundtrip.program import Evict, Fill, Ids, Load, LoadPart, Program, Step, Store, is_valid

StillFails = Callable[[Program], bool]


def shrink(program: Program, blocks: Ids, still_fails: StillFails, tries: int = 200) -> Program:
    """Return the smallest program found that still fails in the same way.

    Args:
        program: a failing program.
        blocks: block ids of the layout.
        still_fails: executes a program; True when it fails as the first one did.
        tries: most executions.
    """
    left = tries
    improved = True
    while improved and left > 0:
        improved = False
        for candidate in _smaller(program, blocks):
            if left <= 0:
                break
            if not is_valid(candidate, blocks):
                continue
            left -= 1
            if still_fails(candidate):
                program, improved = candidate, True
                break
    return program


def _smaller(program: Program, blocks: Ids) -> Iterator[Program]:
    steps = program.steps
    for size in (len(steps) // 2, len(steps) // 4, 1):
        for first in range(len(steps) - size, -1, -1) if size else ():
            yield dataclasses.replace(program, steps=steps[:first] + steps[first + size :])
    yield from _merged_fills(program)
    for number, step in enumerate(steps):
        for shorter in _shorter(step, program.blocks_per_slot):
            yield dataclasses.replace(program, steps=(*steps[:number], shorter, *steps[number + 1 :]))
    yield from _renamed(program, blocks)


def _merged_fills(program: Program) -> Iterator[Program]:
    steps = program.steps
    fills = [(number, step) for number, step in enumerate(steps) if isinstance(step, Fill)]
    for (number, first), (later, second) in pairwise(fills):
        if first.group == second.group:
            blocks = tuple(dict.fromkeys((*first.blocks, *second.blocks)))
            kept = [*steps[:number], Fill(blocks, first.group), *steps[number + 1 : later], *steps[later + 1 :]]
            yield dataclasses.replace(program, steps=tuple(kept))


def _renamed(program: Program, blocks: Ids) -> Iterator[Program]:
    """Use the first slots and blocks, all at once or one by one."""
    slots = sorted({s for step in program.steps for s in _slots_of(step)})
    used = sorted({b for step in program.steps for b in getattr(step, "blocks", ())})
    for names in (dict(zip(slots, range(len(slots)), strict=True)), *_lowered(slots, range(program.host_slots))):
        if any(old != new for old, new in names.items()):
            yield dataclasses.replace(program, steps=tuple(_with(step, slots=names) for step in program.steps))
    for names in (dict(zip(used, blocks, strict=False)), *_lowered(used, blocks)):
        if any(old != new for old, new in names.items()):
            yield dataclasses.replace(program, steps=tuple(_with(step, blocks=names) for step in program.steps))


def _lowered(used: list[int], all_of_them: Iterable[int]) -> Iterator[dict[int, int]]:
    free = [n for n in all_of_them if n not in used]
    for name in used:
        if free and free[0] < name:
            yield {name: free[0]}


def _slots_of(step: Step) -> Ids:
    return (step.slot,) if isinstance(step, LoadPart) else getattr(step, "slots", ())


def _with(step: Step, slots: dict[int, int] | None = None, blocks: dict[int, int] | None = None) -> Step:
    changed: dict[str, int | Ids] = {}
    if slots is not None and isinstance(step, LoadPart):
        changed["slot"] = slots.get(step.slot, step.slot)
    elif slots is not None and hasattr(step, "slots"):
        changed["slots"] = tuple(slots.get(s, s) for s in step.slots)
    if blocks is not None and hasattr(step, "blocks"):
        changed["blocks"] = tuple(blocks.get(b, b) for b in step.blocks)
    return dataclasses.replace(step, **changed) if changed else step


def _shorter(step: Step, per_slot: int) -> Iterator[Step]:
    match step:
        case Store(blocks, slots, group) if len(slots) > 1:
            for half in (slots[: len(slots) // 2], slots[len(slots) // 2 :], slots[:-1], slots[1:]):
                first = slots.index(half[0]) * per_slot
                yield Store(blocks[first : first + len(half) * per_slot], half, group)
        case Load(slots, blocks, group) if len(slots) > 1:
            half_of = len(slots) // 2
            for keep in (slice(half_of), slice(half_of, None), slice(-1), slice(1, None)):
                kept = slots[keep]
                first = (keep.start or 0) * per_slot
                yield Load(kept, blocks[first : first + len(kept) * per_slot], group)
        case LoadPart(slot, first, blocks, group) if len(blocks) > 1:
            yield LoadPart(slot, first + 1, blocks[1:], group)
        case Fill(blocks, group) if len(blocks) > 1:
            yield from (Fill(half, group) for half in _halves(blocks))
        case Evict(blocks) if len(blocks) > 1:
            yield from (Evict(half) for half in _halves(blocks))


def _halves(blocks: Ids) -> tuple[Ids, Ids]:
    return blocks[: len(blocks) // 2], blocks[len(blocks) // 2 :]
