"""The oracle: what every byte of device and host must be, and whether it is.

It keeps a shadow of all accessible memory. Contents are known by provenance (which key wrote them, at which block's addresses),
never by a copy taken from the memory under test: what a load must bring is computed again from the payload function.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvverify.arena.arena import Arena
from kvverify.arena.compare import Mismatch, compare
from kvverify.arena.contents import contents
from kvverify.arena.geometry import (
    Positions,
    Spans,
    block_start,
    content_runs,
    group_spans,
    padding_runs,
    scale_positions,
)
from kvverify.arena.memory import BorrowedMemory, Bytes, Mapping, scatter
from kvverify.arena.payload import derive_key, fill
from kvverify.layout.placement import Layer

__all__ = ["BEFORE", "Content", "Landing", "Mismatch", "Oracle", "Stored", "occupant_of"]

BEFORE = "the reset before the sequence"  # the writer of every byte that no step wrote
_DEVICE, _HOST, _MASK = 1, 2, 3  # names of keys


@dataclass(frozen=True, slots=True)
class Content:
    """What a block holds: the payload of ``key`` at the addresses of ``block``, as layers of ``group``."""

    key: int
    block: int
    group: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What one sub-block of a host slot holds.

    ``paddings`` are what the source's padding bytes, by layer position, may have been when it was stored: as known, or as a
    load brought them that nobody has looked at yet.
    """

    content: Content
    paddings: tuple[dict[int, Bytes], ...]


@dataclass(frozen=True, slots=True)
class Landing:
    """A block that a load wrote since the last check: what it must hold, and what its occupant differed by from that."""

    content: Content
    mask: int


@dataclass(slots=True)
class Oracle:
    """Expectation over one arena. Calls mirror what happens to the memory; :meth:`check` compares all of it."""

    arena: Arena
    seed: int = 0
    epoch: int = 0
    contents: dict[int, Content] = field(default_factory=dict)
    slots: dict[int, list[Stored]] = field(default_factory=dict)
    landings: dict[int, Landing] = field(default_factory=dict)
    carried: dict[int, list[dict[int, Bytes]]] = field(default_factory=dict)  # block -> paddings loads may have brought
    dirty_slots: set[int] = field(default_factory=set)
    keys: dict[int, str] = field(default_factory=dict)  # payload key -> who wrote it, for the diagnosis
    key_groups: dict[int, int] = field(default_factory=dict)
    masks: list[int] = field(default_factory=list)  # of all occupants of the sequence
    host_keys: dict[int, str] = field(default_factory=dict)
    compared_bytes: int = 0
    _device_shadow: list[Bytes] = field(default_factory=list)
    _host_shadow: list[Bytes] = field(default_factory=list)
    _spans: list[tuple[Spans, ...]] = field(default_factory=list)
    _padded: list[list[int]] = field(default_factory=list)  # by group: positions of the layers that have padding

    def __post_init__(self) -> None:
        self._device_shadow = [np.empty(stop - start, np.uint8) for start, stop in self.arena.device.windows]
        self._host_shadow = [np.empty(stop - start, np.uint8) for start, stop in self.arena.host_memory.windows]
        layout = self.arena.layout
        self._spans = [group_spans(layout, g.index) for g in layout.groups]
        self._padded = [
            [i for i in layout.group_layers(g.index) if padding_runs(layout.layers[i])] for g in layout.groups
        ]

    def reset(self, seed: int) -> None:
        """Begin a sequence: new keys, every accessible byte of device and host written anew."""
        self.seed, self.epoch = seed, 0
        self.contents.clear()
        self.slots.clear()
        self.landings.clear()
        self.carried.clear()
        self.dirty_slots.clear()
        self.keys.clear()
        self.key_groups.clear()
        self.masks.clear()
        self.host_keys.clear()
        device_key, host_key = derive_key(seed, _DEVICE, 0), derive_key(seed, _HOST, 0)
        self.keys[device_key] = BEFORE
        self.host_keys[host_key] = BEFORE
        _write_all(self.arena.device, self._device_shadow, device_key)
        _write_all(self.arena.host_memory, self._host_shadow, host_key)

    def fill(self, blocks: Sequence[int], group: int, writer: str) -> None:
        """Let the engine compute new contents of ``group`` into ``blocks``; copies from or to them are complete."""
        self._settle_padding(blocks)  # before another group's contents cover a part of it
        key = self._next_key(writer)
        self.key_groups[key] = group
        targets = np.asarray(blocks, np.int64)
        for spans in self._spans[group]:
            starts = spans.starts(targets) + self.arena.base
            data = contents(np.uint64(key), starts, spans.length)
            self._write_device(starts, data)
            self._write_shadow(starts, data)
        for block in blocks:
            self.contents[block] = Content(key, block, group)
            self.landings.pop(block, None)

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
        group = sources[0].content.group
        targets = np.asarray(blocks, np.int64)
        origins = np.asarray([s.content.block for s in sources], np.int64)
        keys = np.asarray([s.content.key for s in sources], np.uint64)
        for spans in self._spans[group]:
            starts = spans.starts(targets) + self.arena.base
            sources_at = spans.starts(origins) + self.arena.base
            incoming = contents(np.tile(keys, len(spans.offsets)), sources_at, spans.length)
            self._write_device(starts, occupant_of(incoming, mask, spans.scales))
            self._write_shadow(starts, incoming)
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
            data = self.arena.slot(slot)
            start = self.arena.host_base + slot * self.arena.slot_stride
            fill(data, key, start)
            shadow, offset = self._shadow_at(start, host=True)
            shadow[offset : offset + len(data)] = data

    def check(self) -> Mismatch | None:
        """Compare every accessible byte of device and host with what it must be; None when all are right.

        Bytes of slots that a store was asked to write are taken as they are, since their order is the kernel's; that they
        are right shows when they are loaded.
        """
        self._adopt_dirty_slots()
        found = self._compare("host", self.arena.host_memory, self._host_shadow)
        if found is not None:
            return found
        found = self._compare("device", self.arena.device, self._device_shadow)
        if found is not None and self._adopt_carried_padding(list(self.carried)):
            found = self._compare("device", self.arena.device, self._device_shadow)
        if found is None:
            self.landings.clear()
            self.carried.clear()
            self.dirty_slots.clear()
        return found

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

    def expected_bytes(self, start: int, length: int) -> Bytes:
        """What device bytes from the mapping position ``start`` on must be; they lie in one window."""
        window, offset = self._shadow_at(start)
        return window[offset : offset + length].copy()

    def _next_key(self, writer: str, *, host: bool = False) -> int:
        self.epoch += 1
        key = derive_key(self.seed, _HOST if host else _DEVICE, self.epoch)
        (self.host_keys if host else self.keys)[key] = writer
        return key

    def _address(self, layer: Layer, block: int) -> int:
        return self.arena.base + block_start(layer, block)

    def _write_device(self, starts: Positions, data: Bytes) -> None:
        scatter(self.arena.device.array, starts, data)

    def _write_shadow(self, starts: Positions, data: Bytes) -> None:
        if len(self._device_shadow) == 1:
            scatter(self._device_shadow[0], starts - self.arena.device.windows[0][0], data)
            return
        for start, row in zip(starts.tolist(), data, strict=True):
            window, offset = self._shadow_at(start)
            window[offset : offset + len(row)] = row

    def _shadow_at(self, position: int, *, host: bool = False) -> tuple[Bytes, int]:
        memory = self.arena.host_memory if host else self.arena.device
        for (start, stop), shadow in zip(
            memory.windows, self._host_shadow if host else self._device_shadow, strict=True
        ):
            if start <= position < stop:
                return shadow, position - start
        raise IndexError(f"position {position} is not accessible")

    def _paddings_of(self, block: int) -> tuple[dict[int, Bytes], ...]:
        layout, found = self.arena.layout, {}
        for number in self._padded[self.contents[block].group]:
            layer = layout.layers[number]
            parts = [
                self.expected_bytes(self._address(layer, block) + start, length)
                for start, length in padding_runs(layer)
            ]
            found[number] = np.concatenate(parts)
        return (found, *self.carried.get(block, ())) if found else ()

    def _adopt_dirty_slots(self) -> None:
        for slot in self.dirty_slots:
            shadow, offset = self._shadow_at(self.arena.host_base + slot * self.arena.slot_stride, host=True)
            shadow[offset : offset + self.arena.slot_bytes] = self.arena.slot(slot)

    def _settle_padding(self, blocks: Sequence[int]) -> None:
        self._adopt_carried_padding([b for b in blocks if b in self.carried])
        for block in blocks:
            self.carried.pop(block, None)

    def _adopt_carried_padding(self, blocks: Sequence[int]) -> bool:
        """Accept padding of a loaded block that became a source's: a copy may carry it along or leave it.

        Each byte on its own: a copy of whole cells takes the padding inside them and leaves that behind the page.
        """
        changed = False
        for block in blocks:
            for number, carried in ((n, c) for padding in self.carried[block] for n, c in padding.items()):
                layer = self.arena.layout.layers[number]
                spans = [(self._address(layer, block) + start, length) for start, length in padding_runs(layer)]
                now = np.concatenate([self.arena.device.array[a : a + n] for a, n in spans])
                known = np.concatenate([self.expected_bytes(a, n) for a, n in spans])
                if np.array_equal(now, known) or not ((now == known) | (now == carried)).all():
                    continue
                for address, length in spans:
                    window, offset = self._shadow_at(address)
                    window[offset : offset + length] = self.arena.device.array[address : address + length]
                changed = True
        return changed

    def _compare(self, region: str, memory: Mapping | BorrowedMemory, shadows: list[Bytes]) -> Mismatch | None:
        compared, found = compare(region, memory, shadows)
        self.compared_bytes += compared
        return found


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


def _write_all(mapping: Mapping | BorrowedMemory, shadows: list[Bytes], key: int) -> None:
    for (start, stop), shadow in zip(mapping.windows, shadows, strict=True):
        fill(shadow, key, start)
        mapping.array[start:stop] = shadow
