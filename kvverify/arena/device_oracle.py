"""The oracle of a GPU: expectations as records by kind of history and block; kernels write and check, nothing is moved to the host.

Everything that the engine does is enqueued on the current stream and not waited for, as an engine does it: a copy that does not
order itself behind that stream meets unfinished work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch

from kvverify.arena.compare import Mismatch
from kvverify.arena.contents import contents
from kvverify.arena.device_arena import DeviceArena
from kvverify.arena.expectation import Content, Expectation
from kvverify.arena.extents import Extent, Groups, extents_of
from kvverify.arena.geometry import Positions
from kvverify.arena.host_tier import HostTier
from kvverify.arena.memory import Bytes
from kvverify.arena.payload import fill, signed
from kvverify.arena.payload_launch import Launch, Payloads, Records, upload
from kvverify.arena.tiles import kinds_of, patterns_of, tiles_of

_TILES_KEPT = 128  # wrong tiles that are read back for the diagnosis, 1 MiB at most

Table = npt.NDArray[np.int64]


@dataclass(slots=True)
class DeviceOracle(Expectation):
    """Expectation over an arena in device memory."""

    arena: DeviceArena
    compiled: bool | None = None  # Triton; None decides by what is there
    _extents: tuple[Extent, ...] = ()
    _kinds: list[Groups] = field(default_factory=list)
    _payloads: Payloads = field(init=False)
    _host: HostTier = field(init=False)
    _all: list[Launch] = field(default_factory=list)
    _content: list[list[Launch]] = field(default_factory=list)  # by group
    _padding: list[list[Launch]] = field(default_factory=list)  # by group
    _kinds_of: list[list[int]] = field(default_factory=list)  # by group: kinds of history its contents decide
    _padding_kinds: list[list[int]] = field(default_factory=list)
    _keys: Table = field(init=False)  # [kinds, blocks], uint64 bit patterns
    _sources: Table = field(init=False)
    _base_key: int = 0
    _watched: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        arena, layout, device = self.arena, self.arena.layout, self.arena.storage().device
        self._payloads = Payloads(arena.storage(), compiled=self.compiled)
        self._extents = extents_of(layout, arena.base, arena.device.size)
        self._kinds = kinds = kinds_of(self._extents)
        self._all = [Launch(tiles, device) for tiles in tiles_of(self._extents, kinds)]
        covered = sum(launch.tiles.nbytes for launch in self._all)
        if covered != arena.device.size:
            raise AssertionError(f"the tiles cover {covered} of {arena.device.size} bytes")
        for group in layout.groups:
            g = group.index
            tiles = tiles_of([e for e in self._extents if g in e.content], kinds)
            patterns = patterns_of(layout, arena.base, g, tiles)
            self._content.append([Launch(t, device, p) for t, p in zip(tiles, patterns, strict=True)])
            padding = [e for e in self._extents if g in e.padding]
            self._padding.append([Launch(t, device) for t in tiles_of(padding, kinds, unit=1)])
            self._kinds_of.append([k for k, groups in enumerate(kinds) if g in groups])
            self._padding_kinds.append(sorted({kinds.index(e.content) for e in padding}))
        self._keys = np.zeros((len(kinds), layout.num_blocks), np.int64)
        self._sources = np.tile(np.arange(layout.num_blocks), (len(kinds), 1))
        self._host = HostTier(arena, device if arena.host_on_device() else torch.device("cpu"))

    @property
    def how(self) -> str:
        """What runs the payload kernels: Triton or torch."""
        return self._payloads.how

    def check(self, *, host: bool = True) -> Mismatch | None:
        """Compare host pages by digest and device bytes by kernel; see :meth:`Expectation.check`.

        The device's kernels are enqueued first: digests of a large tier take long enough for copies that are late to be done.
        """
        self._settle_padding(list(self.carried))
        counts = self._counts(by_bytes=False)
        if host:
            found = self._host.check(self.dirty_slots)
            self.compared_bytes += self._host.nbytes
            if found is not None:
                return found
        self.compared_bytes += self.arena.device.size
        if sum(int(c.sum()) for c in counts):
            return self._mismatch(counts)
        self._done()
        return None

    def watch(self, blocks: Sequence[int], reader: str) -> None:
        """Let the engine read ``blocks`` in a kernel on the current stream; what it saw is judged by :meth:`misread`."""
        by_group: dict[int, list[int]] = {}
        for block in blocks:
            by_group.setdefault(self.contents[block].group, []).append(block)
        for group, some in by_group.items():
            records = self._named(_table(some, [self.contents[b] for b in some]))
            self._watched += [(reader, self._payloads.check(launch, records).sum()) for launch in self._content[group]]

    def misread(self) -> str | None:
        """Return which reader saw bytes that were not there when it was enqueued; None for none. Waits for the readers."""
        watched, self._watched = self._watched, []
        return next((reader for reader, wrong in watched if int(wrong)), None)

    def expected_bytes(self, start: int, length: int) -> Bytes:
        """See :meth:`Expectation.expected_bytes`."""
        out = np.empty(length, np.uint8)
        fill(out, self._base_key, start)
        for extent in self._extents:
            if not extent.content:
                continue
            first = max(0, -(-(start - extent.start - extent.length + 1) // extent.stride))
            last = min(extent.count - 1, (start + length - 1 - extent.start) // extent.stride)
            for block in range(first, last + 1):
                self._put(out, start, extent, block)
        return out

    def _put(self, out: Bytes, start: int, extent: Extent, block: int) -> None:
        """Write what ``extent`` must hold for ``block`` into ``out``, which begins at position ``start``."""
        kind = self._kinds.index(extent.content)
        key, source = int(np.uint64(self._keys[kind, block])), int(self._sources[kind, block])
        run = extent.start + block * extent.stride
        low, high = max(run, start), min(run + extent.length, start + len(out))
        if key != self._base_key and low < high:
            moved = (source - block) * extent.stride
            out[low - start : high - start] = contents(np.uint64(key), [low + moved], high - low)[0]

    def _write_all(self, device_key: int, host_key: int) -> None:
        self._base_key = device_key
        self._watched.clear()
        self._payloads.set_base_key(device_key)
        self._keys[:] = signed(device_key)
        self._sources[:] = np.arange(self._keys.shape[1])
        self._host.reset(host_key)
        records = self._records()
        for launch in self._all:
            self._payloads.fill(launch, _counted(records, launch))

    def _write_contents(self, key: int, blocks: Sequence[int], group: int) -> None:
        numbers = np.asarray(blocks, np.int64)
        self._write("fill", group, np.stack([numbers, np.full_like(numbers, signed(key)), numbers]))

    def _write_occupant(self, incoming: Sequence[Content], blocks: Sequence[int], mask: int) -> None:
        self._write("occupy", incoming[0].group, _table(blocks, incoming), mask)

    def _write(self, how: str, group: int, table: Table, *mask: int) -> None:
        """Write contents of ``group`` and expect them: rows of ``table`` are blocks, keys and original blocks."""
        records = self._named(table)
        for launch in self._content[group]:
            getattr(self._payloads, how)(launch, records, *mask)
        blocks, keys, sources = table
        for kind in self._kinds_of[group]:
            self._keys[kind, blocks], self._sources[kind, blocks] = keys, sources

    def _write_slot(self, slot: int, key: int) -> None:
        self._host.overwrite(slot, key)

    def _paddings_of(self, block: int) -> tuple[dict[int, tuple[int, int]], ...]:
        kinds = self._padding_kinds[self.contents[block].group]
        own = {k: (int(self._keys[k, block]), int(self._sources[k, block])) for k in kinds}
        return (own, *self.carried.get(block, ())) if own else ()

    def _settle_padding(self, blocks: Sequence[int]) -> None:
        waiting = {b: list(self.carried.pop(b)) for b in blocks if b in self.carried}
        while waiting:
            self._settle({b: candidates.pop() for b, candidates in waiting.items()})
            waiting = {b: candidates for b, candidates in waiting.items() if candidates}

    def _settle(self, carried: dict[int, dict[int, tuple[int, int]]]) -> None:
        """Undo what loads may have done to the padding of some blocks: one candidate for each."""
        blocks = np.asarray(list(carried), np.int64)
        keys, sources = self._keys[:, blocks].copy(), self._sources[:, blocks].copy()
        own = self._records_of(blocks, keys, sources)
        for j, candidate in enumerate(carried.values()):
            for kind, (key, source) in candidate.items():
                keys[kind, j], sources[kind, j] = key, source
        theirs = self._records_of(blocks, keys, sources)
        for launch in (launch for launches in self._padding for launch in launches):
            self._payloads.settle(launch, theirs, own)

    def _named(self, table: Table) -> Records:
        """Records of some blocks, the same for every kind of history; rows of ``table`` are blocks, keys and original blocks."""
        blocks, keys, sources = upload(table, self.arena.storage().device)
        return Records(table.shape[1], blocks, keys, sources)

    def _records_of(self, blocks: Positions, keys: Table, sources: Table) -> Records:
        device = self.arena.storage().device
        table = upload(np.concatenate([blocks, keys.reshape(-1), sources.reshape(-1)]), device)
        n, size = len(blocks), keys.size
        return Records(n, table[:n], table[n : n + size], table[n + size :], n)

    def _records(self) -> Records:
        """Records of all blocks."""
        device, blocks = self.arena.storage().device, self._keys.shape[1]
        table = upload(np.stack([self._keys.reshape(-1), self._sources.reshape(-1)]), device)
        return Records(blocks, None, table[0], table[1], blocks)

    def _counts(self, *, by_bytes: bool) -> list[torch.Tensor]:
        records = self._records()
        return [self._payloads.check(x, _counted(records, x), by_bytes=by_bytes) for x in self._all]

    def _mismatch(self, wrong: list[torch.Tensor]) -> Mismatch:
        """Read back the first tiles of which ``wrong`` counts units; copies still under way may have put some right by now."""
        total = sum(int(counts.sum(dtype=torch.int64)) for counts in self._counts(by_bytes=True))
        spots = sorted(spot for x, counts in zip(self._all, wrong, strict=True) for spot in _spots(x, counts))
        positions, expected, found = [], [], []
        for start, length in spots[:_TILES_KEPT]:
            now, wanted = self.arena.device.read(start, start + length), self.expected_bytes(start, length)
            differ = np.flatnonzero(now != wanted)
            positions.append(start + differ)
            expected.append(wanted[differ])
            found.append(now[differ])
        at = np.concatenate(positions)
        if not len(at):
            start, _ = spots[0]
            right = self.expected_bytes(start, 1)
            return Mismatch("device", np.asarray([start]), right, right, max(total, 1), exact=False)
        return Mismatch("device", at, np.concatenate(expected), np.concatenate(found), max(total, len(at)))


def _spots(launch: Launch, counts: torch.Tensor) -> list[tuple[int, int]]:
    """First position and length of the tiles with a count."""
    programs = torch.nonzero(counts).reshape(-1).cpu().numpy()
    tile, block = programs % len(launch.starts), programs // len(launch.starts)
    starts = launch.tiles.starts[tile] + block * launch.tiles.strides[tile]
    return list(zip(starts.tolist(), launch.tiles.lengths[tile].tolist(), strict=True))


def _counted(records: Records, launch: Launch) -> Records:
    """The same records for as many blocks as ``launch`` has tiles of."""
    return Records(launch.tiles.blocks, records.blocks, records.keys, records.sources, records.kind_step)


def _table(blocks: Sequence[int], wanted: Sequence[Content]) -> Table:
    """Blocks, keys as int64 bit patterns, and original blocks: int64 [3, blocks]."""
    keys = np.fromiter((c.key for c in wanted), np.uint64, len(wanted)).view(np.int64)
    return np.stack([np.asarray(blocks, np.int64), keys, np.fromiter((c.block for c in wanted), np.int64, len(wanted))])
