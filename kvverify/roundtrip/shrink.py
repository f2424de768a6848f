"""Make a failing program shorter and plainer than Hypothesis left it: it keeps eight steps, a person wants three."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

from kvverify.roundtrip.program import Ids, Load, LoadPart, Program, Step, Store, is_valid

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
        for candidate in _smaller(program):
            if left <= 0:
                break
            if not is_valid(candidate, blocks):
                continue
            left -= 1
            if still_fails(candidate):
                program, improved = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    steps = program.steps
    for size in (len(steps) // 2, len(steps) // 4, 1):
        for first in range(len(steps) - size, -1, -1) if size else ():
            yield dataclasses.replace(program, steps=steps[:first] + steps[first + size :])
    for number, step in enumerate(steps):
        for shorter in _shorter(step, program.blocks_per_slot):
            yield dataclasses.replace(program, steps=(*steps[:number], shorter, *steps[number + 1 :]))


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
        case _ if hasattr(step, "blocks") and len(step.blocks) > 1:
            for kept in (step.blocks[: len(step.blocks) // 2], step.blocks[len(step.blocks) // 2 :]):
                yield dataclasses.replace(step, blocks=kept)
