"""Copies that were issued and not waited for, and when rule 7 of the plug-in contract says that kvverify must wait."""

from __future__ import annotations

import dataclasses

from kvverify.roundtrip.program import Check, Evict, Fill, Forget, Load, LoadPart, Poll, Read, Spin, Step, Store


@dataclasses.dataclass(slots=True)
class Pending:
    """Blocks and slots that copies under way read and write."""

    read_blocks: set[int] = dataclasses.field(default_factory=set)
    written_blocks: set[int] = dataclasses.field(default_factory=set)
    read_slots: set[int] = dataclasses.field(default_factory=set)
    written_slots: set[int] = dataclasses.field(default_factory=set)

    def hinders(self, step: Step, *, ordered: bool, on_stream: bool) -> bool:
        """Must the copies be complete before ``step``?

        ``on_stream`` says that the engine's own writes are enqueued on the stream in whose order an ``ordered`` kernel works.
        """
        blocks, slots = self.read_blocks | self.written_blocks, self.read_slots | self.written_slots
        if ordered and on_stream and not isinstance(step, (Forget, Check)):
            return False
        match step:
            case Fill(touched) | Evict(touched):
                return not blocks.isdisjoint(touched)
            case Forget(touched):
                return not slots.isdisjoint(touched)
            case Read(touched):
                return not self.written_blocks.isdisjoint(touched)
            case Spin() | Poll():
                return False
            case Store(sources, targets):
                return not ordered and not (self.written_blocks.isdisjoint(sources) and slots.isdisjoint(targets))
            case Load(sources, targets):
                late = not ordered and not self.written_slots.isdisjoint(sources)
                return late or not blocks.isdisjoint(
                    targets
                )  # the hostile occupant is written by us, not by the kernel
            case LoadPart(source, _, targets):
                return (not ordered and source in self.written_slots) or not blocks.isdisjoint(targets)
            case _:
                return True
