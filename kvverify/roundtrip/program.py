"""A program: the serialisable sequence of steps that one child executes against one kernel and one layout.

``Model`` knows which steps are possible in which state. The generator asks it what can come next; the shrinker asks it whether
a shortened program still means something.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

Ids = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """Base of the steps. ``kind`` is the word in files, events and reports."""

    kind: ClassVar[str]

    def to_json(self) -> list[Any]:
        """Return ``[kind, argument, ...]`` with lists for tuples."""
        values = (getattr(self, name) for name in self.__dataclass_fields__ if name != "kind")
        return [self.kind, *(list(v) if isinstance(v, tuple) else v for v in values)]


@dataclass(frozen=True, slots=True)
class Fill(Step):
    """The engine computes new contents into ``blocks``."""

    kind: ClassVar[str] = "fill"
    blocks: Ids
    group: int = 0


@dataclass(frozen=True, slots=True)
class Store(Step):
    """Kernel call: device ``blocks`` to host ``slots``; with k blocks a slot, slot j takes blocks j*k to j*k+k."""

    kind: ClassVar[str] = "store"
    blocks: Ids
    slots: Ids
    group: int = 0


@dataclass(frozen=True, slots=True)
class Load(Step):
    """Kernel call: host ``slots`` to device ``blocks``, over a hostile occupant."""

    kind: ClassVar[str] = "load"
    slots: Ids
    blocks: Ids
    group: int = 0


@dataclass(frozen=True, slots=True)
class LoadPart(Step):
    """Kernel call: the blocks of one ``slot`` from sub-block ``first`` on, to device ``blocks``."""

    kind: ClassVar[str] = "load_part"
    slot: int
    first: int
    blocks: Ids
    group: int = 0


@dataclass(frozen=True, slots=True)
class Evict(Step):
    """The engine gives ``blocks`` to somebody else, who writes hostile contents into them."""

    kind: ClassVar[str] = "evict"
    blocks: Ids


@dataclass(frozen=True, slots=True)
class Forget(Step):
    """The host tier drops ``slots``; their bytes are overwritten, so that a later load cannot live on old ones."""

    kind: ClassVar[str] = "forget"
    slots: Ids


@dataclass(frozen=True, slots=True)
class Check(Step):
    """Wait, then compare every byte of device and host."""

    kind: ClassVar[str] = "check"


@dataclass(frozen=True, slots=True)
class Spin(Step):
    """The engine keeps ``arena.stream`` busy: what is enqueued there from now on begins ``milliseconds`` later. GPU only."""

    kind: ClassVar[str] = "spin"
    milliseconds: int


@dataclass(frozen=True, slots=True)
class Read(Step):
    """The engine reads ``blocks`` in a kernel on ``arena.stream``, as attention does, and what it saw is judged later. GPU only."""

    kind: ClassVar[str] = "read"
    blocks: Ids


@dataclass(frozen=True, slots=True)
class Poll(Step):
    """Ask the kernel's ``done()`` until it says yes; all copies count as complete then, as after ``wait()``."""

    kind: ClassVar[str] = "poll"


STEPS: dict[str, type[Step]] = {
    s.kind: s for s in (Fill, Store, Load, LoadPart, Evict, Forget, Check, Spin, Read, Poll)
}
_LONGEST_SPIN_MS = 1000


def step_from_json(data: Sequence[Any]) -> Step:
    """Return the step written as ``[kind, argument, ...]``.

    Raises:
        ValueError: unknown kind or wrong number of arguments.
    """
    if not data or data[0] not in STEPS:
        raise ValueError(f"unknown step {data!r}")
    arguments = [tuple(v) if isinstance(v, list) else v for v in data[1:]]
    try:
        return STEPS[data[0]](*arguments)
    except TypeError as error:
        raise ValueError(f"step {data!r}: {error}") from error


@dataclass(frozen=True, slots=True)
class Program:
    """Steps plus the seed of all payloads. Host size and blocks a slot belong to the arena, hence to the program."""

    seed: int
    steps: tuple[Step, ...]
    host_slots: int
    blocks_per_slot: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the program as a JSON object."""
        return {
            "seed": self.seed,
            "host_slots": self.host_slots,
            "blocks_per_slot": self.blocks_per_slot,
            "steps": [step.to_json() for step in self.steps],
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Program:
        """Return the program that :meth:`to_json` wrote; ValueError where it did not."""
        try:
            steps = tuple(step_from_json(s) for s in data["steps"])
            return cls(int(data["seed"]), steps, int(data["host_slots"]), int(data["blocks_per_slot"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"program: {error!r}") from error


@dataclass(slots=True)
class Model:
    """Which block holds something, for which group, and which slot holds how many blocks of which group."""

    blocks: Ids
    host_slots: int
    blocks_per_slot: int = 1
    filled: dict[int, int] = field(default_factory=dict)  # block -> group it belongs to
    stored: dict[int, tuple[int, int]] = field(default_factory=dict)  # slot -> (group, number of blocks)

    def allows(self, step: Step) -> bool:
        """Is ``step`` meaningful now and within the plug-in contract?"""
        match step:
            case Fill(blocks) | Evict(blocks):
                return self._distinct_blocks(blocks)
            case Store(blocks, slots, group):
                return (
                    self._distinct_slots(slots)
                    and len(slots) == -(-len(blocks) // self.blocks_per_slot)
                    and bool(blocks)
                    and all(self.filled.get(b) == group for b in blocks)
                )
            case Load(slots, blocks, group):
                held = [self.stored.get(s, (-1, 0)) for s in slots]
                return (
                    bool(slots)
                    and self._distinct_blocks(blocks)
                    and all(g == group for g, _ in held)
                    and all(n == self.blocks_per_slot for _, n in held[:-1])
                    and sum(n for _, n in held) == len(blocks)
                )
            case LoadPart(slot, first, blocks, group):
                held_group, count = self.stored.get(slot, (-1, 0))
                return (
                    held_group == group
                    and first >= 0
                    and first + len(blocks) <= count
                    and self._distinct_blocks(blocks)
                )
            case Forget(slots):
                return self._distinct_slots(slots)
            case Read(blocks):
                return self._distinct_blocks(blocks) and all(b in self.filled for b in blocks)
            case Spin(milliseconds):
                return 0 < milliseconds <= _LONGEST_SPIN_MS
            case _:
                return True

    def apply(self, step: Step) -> None:
        """Record what an allowed ``step`` changes."""
        match step:
            case Fill(blocks, group):
                self.filled.update(dict.fromkeys(blocks, group))
            case Evict(blocks):
                for block in blocks:
                    self.filled.pop(block, None)
            case Store(blocks, slots, group):
                for j, slot in enumerate(slots):
                    part = blocks[j * self.blocks_per_slot : (j + 1) * self.blocks_per_slot]
                    self.stored[slot] = (group, len(part))
            case Load(_, blocks, group) | LoadPart(_, _, blocks, group):
                self.filled.update(dict.fromkeys(blocks, group))
            case Forget(slots):
                for slot in slots:
                    self.stored.pop(slot, None)
            case _:
                pass

    def _distinct_blocks(self, blocks: Ids) -> bool:
        return bool(blocks) and len(set(blocks)) == len(blocks) and set(blocks) <= set(self.blocks)

    def _distinct_slots(self, slots: Ids) -> bool:
        return bool(slots) and len(set(slots)) == len(slots) and all(0 <= s < self.host_slots for s in slots)


def is_valid(program: Program, blocks: Ids) -> bool:
    """Does every step of ``program`` make sense in the state the earlier steps leave?"""
    model = Model(blocks, program.host_slots, program.blocks_per_slot)
    for step in program.steps:
        if not model.allows(step):
            return False
        model.apply(step)
    return True
