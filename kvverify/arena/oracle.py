"""The oracle of the CPU: keeps a shadow of all accessible memory and compares the memory with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvverify.arena.compare import Mismatch, compare
from kvverify.arena.contents import contents
from kvverify.arena.expectation import BEFORE, Content, Expectation, Landing, Stored, occupant_of
from kvverify.arena.geometry import Positions, Spans, group_spans, padding_runs
from kvverify.arena.memory import BorrowedMemory, Bytes, Mapping, scatter
from kvverify.arena.payload import fill

__all__ = ["BEFORE", "Content", "Landing", "Mismatch", "Oracle", "Stored", "occupant_of"]


@dataclass(slots=True)
class Oracle(Expectation):
    """Expectation as bytes, one array for each window of device and host."""

    _device_shadow: list[Bytes] = field(default_factory=list)
    _host_shadow: list[Bytes] = field(default_factory=list)
    _spans: list[tuple[Spans, ...]] = field(default_factory=list)
    _padded: list[list[int]] = field(default_factory=list)  # by group: positions of the layers that have padding

    def __post_init__(self) -> None:
        self._device_shadow = [np.empty(stop - start, np.uint8) for start, stop in self.arena.mapping.windows]
        self._host_shadow = [np.empty(stop - start, np.uint8) for start, stop in self.arena.host_memory.windows]
        layout = self.arena.layout
        self._spans = [group_spans(layout, g.index) for g in layout.groups]
        self._padded = [
            [i for i in layout.group_layers(g.index) if padding_runs(layout.layers[i])] for g in layout.groups
        ]

    def check(self, *, host: bool = True) -> Mismatch | None:
        """Compare window by window; see :meth:`Expectation.check`."""
        if host:
            self._adopt_dirty_slots()
        found = self._compare("host", self.arena.host_memory, self._host_shadow) if host else None
        if found is not None:
            return found
        found = self._compare("device", self.arena.mapping, self._device_shadow)
        if found is not None and self._adopt_carried_padding(list(self.carried)):
            found = self._compare("device", self.arena.mapping, self._device_shadow)
        if found is None:
            self._done()
        return found

    def expected_bytes(self, start: int, length: int) -> Bytes:
        """See :meth:`Expectation.expected_bytes`."""
        window, offset = self._shadow_at(start)
        return window[offset : offset + length].copy()

    def _write_all(self, device_key: int, host_key: int) -> None:
        _write_all(self.arena.mapping, self._device_shadow, device_key)
        _write_all(self.arena.host_memory, self._host_shadow, host_key)

    def _write_contents(self, key: int, blocks: Sequence[int], group: int) -> None:
        targets = np.asarray(blocks, np.int64)
        for spans in self._spans[group]:
            starts = spans.starts(targets) + self.arena.base
            data = contents(np.uint64(key), starts, spans.length)
            self._write_device(starts, data)
            self._write_shadow(starts, data)

    def _write_occupant(self, incoming: Sequence[Content], blocks: Sequence[int], mask: int) -> None:
        targets = np.asarray(blocks, np.int64)
        origins = np.asarray([c.block for c in incoming], np.int64)
        keys = np.asarray([c.key for c in incoming], np.uint64)
        for spans in self._spans[incoming[0].group]:
            starts = spans.starts(targets) + self.arena.base
            sources_at = spans.starts(origins) + self.arena.base
            data = contents(np.tile(keys, len(spans.offsets)), sources_at, spans.length)
            self._write_device(starts, occupant_of(data, mask, spans.scales))
            self._write_shadow(starts, data)

    def _write_slot(self, slot: int, key: int) -> None:
        data = self.arena.slot(slot)
        start = self.arena.host_base + slot * self.arena.slot_stride
        fill(data, key, start)
        shadow, offset = self._shadow_at(start, host=True)
        shadow[offset : offset + len(data)] = data

    def _write_device(self, starts: Positions, data: Bytes) -> None:
        scatter(self.arena.mapping.array, starts, data)

    def _write_shadow(self, starts: Positions, data: Bytes) -> None:
        if len(self._device_shadow) == 1:
            scatter(self._device_shadow[0], starts - self.arena.mapping.windows[0][0], data)
            return
        for start, row in zip(starts.tolist(), data, strict=True):
            window, offset = self._shadow_at(start)
            window[offset : offset + len(row)] = row

    def _shadow_at(self, position: int, *, host: bool = False) -> tuple[Bytes, int]:
        memory = self.arena.host_memory if host else self.arena.mapping
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
                now = np.concatenate([self.arena.mapping.array[a : a + n] for a, n in spans])
                known = np.concatenate([self.expected_bytes(a, n) for a, n in spans])
                if np.array_equal(now, known) or not ((now == known) | (now == carried)).all():
                    continue
                for address, length in spans:
                    window, offset = self._shadow_at(address)
                    window[offset : offset + length] = self.arena.mapping.array[address : address + length]
                changed = True
        return changed

    def _compare(self, region: str, memory: Mapping | BorrowedMemory, shadows: list[Bytes]) -> Mismatch | None:
        compared, found = compare(region, memory, shadows)
        self.compared_bytes += compared
        return found


def _write_all(mapping: Mapping | BorrowedMemory, shadows: list[Bytes], key: int) -> None:
    for (start, stop), shadow in zip(mapping.windows, shadows, strict=True):
        fill(shadow, key, start)
        mapping.array[start:stop] = shadow
