"""What an oracle knows of the memory under test: contents by provenance, whatever way the bytes are compared.

Contents are known by which key wrote them at which block's addresses, never by a copy taken from the memory under test: what a
load must bring is computed again from the payload function.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kvverify.arena.arena import Arena
from kvverify.arena.compare import Mismatch
from kvverify.arena.contents import contents
from kvverify.arena.geometry import Positions, block_start, content_runs, scale_positions
from kvverify.arena.memory import Bytes
from kvverify.arena.payload import derive_key
from kvverify.layout.placement import Layer

BEFORE = "the reset before the sequence"  # the writer of every byte that no step wrote
_DEVICE, _HOST, _MASK, _RANK = 1, 2, 3, 4  # names of keys


@dataclass(frozen=True, slots=True)
class Content:
    """What a block holds: the payload of ``key`` at the addresses of ``block``, as layers of ``group``."""

    key: int
    block: int
    group: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What one sub-block of a host slot holds.

    ``paddings`` are what the source's padding bytes may have been when it was stored: as known, or as a load brought them that
    nobody has looked at yet. The oracle says what they are by: bytes by layer position, or their origin by kind of history.
    """

    content: Content
    paddings: tuple[dict[int, Any], ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """A block that a load wrote since the last check: what it must hold, and what its occupant differed by from that."""

    content: Content
    mask: int


@dataclass(slots=True)
class Expectation(ABC):
    """Expectation over one arena. Calls mirror what happens to the memory; :meth:`check` compares all of it."""

    arena: Arena
    seed: int = 0
    epoch: int = 0
    contents: dict[int, Content] = field(default_factory=dict)
    slots: dict[int, list[Stored]] = field(default_factory=dict)
    landings: dict[int, Landing] = field(default_factory=dict)
    carried: dict[int, list[dict[int, Any]]] = field(default_factory=dict)  # block -> paddings loads may have brought
    dirty_slots: set[int] = field(default_factory=set)
    keys: dict[int, str] = field(default_factory=dict)  # payload key -> who wrote it, for the diagnosis
    key_groups: dict[int, int] = field(default_factory=dict)
    masks: list[int] = field(default_factory=list)  # of all occupants of the sequence
    host_keys: dict[int, str] = field(default_factory=dict)
    compared_bytes: int = 0
    base_seed: int = 0  # of all ranks

    def reset(self, seed: int) -> None:
        """Begin a sequence: new keys, every accessible byte of device and host written anew.

        Ranks that are given one seed write under keys of their own, so that bytes of another rank are wrong bytes.
        """
        self.base_seed, self.seed, self.epoch = seed, rank_seed(seed, self.arena.rank), 0
        self.contents.clear()
        self.slots.clear()
        self.landings.clear()
        self.carried.clear()
        self.dirty_slots.clear()
        self.keys.clear()
        self.key_groups.clear()
        self.masks.clear()
        self.host_keys.clear()
        device_key, host_key = derive_key(self.seed, _DEVICE, 0), derive_key(self.seed, _HOST, 0)
        self.keys[device_key] = BEFORE
        self.host_keys[host_key] = BEFORE
        self._write_all(device_key, host_key)

    def fill(self, blocks: Sequence[int], group: int, writer: str) -> None:
        """Let the engine compute new contents of ``group`` into ``blocks``; copies from or to them are complete."""
        self._settle_padding(blocks)  # before another group's contents cover a part of it
        key = self._next_key(writer)
        self.key_groups[key] = group
        self._write_contents(key, blocks, group)
        self.contents.update({block: Content(key, block, group) for block in blocks})
        for block in self.landings.keys() & set(blocks):
            del self.landings[block]

    def expect_store(self, blocks: Sequence[int], slots: Sequence[int], blocks_per_slot: int) -> None:
        """Note what ``slots`` must hold when the store of ``blocks`` is done; no other byte may change."""
        for j, slot in enumerate(slots):
            part = blocks[j * blocks_per_slot : (j + 1) * blocks_per_slot]
            self.slots[slot] = [Stored(self.contents[b], self._paddings_of(b)) for b in part]
            self.dirty_slots.add(slot)

    def expect_load(self, sources: Sequence[Stored], blocks: Sequence[int]) -> None:
        """Put a hostile occupant into ``blocks``, then expect the contents of ``sources`` there, by position.

        Earlier copies from or to ``blocks`` are complete.
        """
        self._settle_padding(blocks)
        self.epoch += 1
        mask = 1 + derive_key(self.seed, _MASK, self.epoch) % 255
        self.masks.append(mask)
        self._write_occupant([s.content for s in sources], blocks, mask)
        for source, block in zip(sources, blocks, strict=True):
            self.contents[block] = source.content
            self.landings[block] = Landing(source.content, mask)
            if any(source.paddings):
                self.carried.setdefault(block, []).extend(source.paddings)

    def forget(self, slots: Sequence[int]) -> None:
        """Overwrite host ``slots``, as a tier does that gave them to somebody else."""
        key = self._next_key("forget, which overwrote the slot", host=True)
        for slot in slots:
            self.slots.pop(slot, None)
            self.dirty_slots.discard(slot)
            self._write_slot(slot, key)

    @abstractmethod
    def check(self, *, host: bool = True) -> Mismatch | None:
        """Compare every accessible byte of device and host with what it must be; None when all are right.

        ``host`` False leaves the host side out, which is gone where a library owns it and was closed.

        Bytes of slots that a store was asked to write are taken as they are, since their order is the kernel's; that they
        are right shows when they are loaded.
        """

    def foreign_keys(self, rank: int) -> tuple[dict[int, int], dict[int, int]]:
        """Return the device and the host keys under which ``rank`` writes when it executes the same steps.

        Each with the key under which this rank wrote at the same step.
        """
        theirs = rank_seed(self.base_seed, rank)
        device, host = (
            {
                derive_key(theirs, name, epoch): own
                for epoch in range(self.epoch + 1)
                if (own := derive_key(self.seed, name, epoch)) in known
            }
            for name, known in ((_DEVICE, self.keys), (_HOST, self.host_keys))
        )
        return device, host

    def watch(self, blocks: Sequence[int], reader: str) -> None:  # noqa: B027 - nothing to do on the CPU
        """Let the engine read ``blocks`` in the order of its stream; on the CPU a reader is done when it was called."""

    def misread(self) -> str | None:
        """Return which reader saw bytes that were not there when it was enqueued; None for none."""
        return None

    @abstractmethod
    def expected_bytes(self, start: int, length: int) -> Bytes:
        """What device bytes from the position ``start`` of the mapping on must be; they lie in one window."""

    def occupant_bytes(self, layer: Layer, block: int) -> list[tuple[int, Bytes]]:
        """For a block under load: mapping position and bytes of the hostile occupant, per content run of ``layer``."""
        landing = self.landings.get(block)
        if landing is None or landing.content.group != layer.group:
            return []
        found = []
        for (start, length), scales in zip(content_runs(layer), scale_positions(layer), strict=True):
            origin = self._address(layer, landing.content.block) + start
            incoming = contents(np.uint64(landing.content.key), [origin], length)
            found.append((self._address(layer, block) + start, occupant_of(incoming, landing.mask, scales)[0]))
        return found

    @abstractmethod
    def _write_all(self, device_key: int, host_key: int) -> None:
        """Write all memory anew."""

    @abstractmethod
    def _write_contents(self, key: int, blocks: Sequence[int], group: int) -> None:
        """Write contents of ``group`` under ``key``, and expect them."""

    @abstractmethod
    def _write_occupant(self, incoming: Sequence[Content], blocks: Sequence[int], mask: int) -> None:
        """Write what differs from ``incoming`` in every byte, and expect ``incoming``."""

    @abstractmethod
    def _write_slot(self, slot: int, key: int) -> None:
        """Overwrite a host slot."""

    @abstractmethod
    def _paddings_of(self, block: int) -> tuple[dict[int, Any], ...]:
        """What the padding of ``block`` may be."""

    @abstractmethod
    def _settle_padding(self, blocks: Sequence[int]) -> None:
        """Decide what the padding of ``blocks`` is where loads may have brought some along."""

    def _done(self) -> None:
        self.landings.clear()
        self.carried.clear()
        self.dirty_slots.clear()

    def _next_key(self, writer: str, *, host: bool = False) -> int:
        self.epoch += 1
        key = derive_key(self.seed, _HOST if host else _DEVICE, self.epoch)
        (self.host_keys if host else self.keys)[key] = writer
        return key

    def _address(self, layer: Layer, block: int) -> int:
        return self.arena.base + block_start(layer, block)


def rank_seed(seed: int, rank: int) -> int:
    """Return the seed of one rank's payloads; rank 0 has that of a process on its own."""
    return seed if rank == 0 else derive_key(seed, _RANK, rank)


def occupant_of(incoming: Bytes, mask: int, scales: Positions) -> Bytes:
    """Return bytes [n, length] that differ from ``incoming`` in every single one, with extreme bit patterns in ``scales``.

    0x7F and 0xFF bytes make NaN, infinity or the largest value in fp8, UE8M0, fp16, bf16 and fp32 scales of either byte order.
    """
    occupant: Bytes = incoming ^ np.uint8(mask)
    if len(scales):
        extreme = np.where(scales % 2 == 0, np.uint8(0xFF), np.uint8(0x7F))
        theirs = incoming[:, scales]
        occupant[:, scales] = np.where(theirs == extreme, theirs ^ np.uint8(0x80), extreme)
    return occupant
