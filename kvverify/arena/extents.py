"""The whole allocation cut into extents: runs of bytes that repeat once a block and share one history.

A block's bytes are written by the layer groups that own them, so two bytes that the same groups write hold contents of the same
origin at any time. Expectations can then be kept as one record for each (kind of extent, block) in place of a copy of the memory.

    every byte of the allocation lies in exactly one repetition of one extent
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from kvverify.arena.geometry import content_runs, padding_runs
from kvverify.layout.placement import Layout

Groups = frozenset[int]
NOBODY: Groups = frozenset()


@dataclass(frozen=True, slots=True)
class Extent:
    """``count`` runs of ``length`` bytes, the i-th from position ``start + i * stride`` of the allocation on.

    ``content`` are the groups whose contents lie there, ``padding`` those for which it is padding; neither: a gap or a guard,
    or a stretch between the blocks. The i-th run belongs to block i where ``blockwise`` is set; other extents have one run.
    """

    start: int
    stride: int
    length: int
    count: int
    content: Groups = NOBODY
    padding: Groups = NOBODY
    blockwise: bool = True

    @property
    def stop(self) -> int:
        """Position behind the last run."""
        return self.start + (self.count - 1) * self.stride + self.length


@dataclass(frozen=True, slots=True)
class _Run:
    start: int
    stop: int
    group: int
    padding: bool


def extents_of(layout: Layout, base: int, size: int) -> tuple[Extent, ...]:
    """Return the extents of an allocation of ``size`` bytes with the engine's buffer at position ``base``.

    Raises:
        ValueError: blocks of different strides are interleaved, which no engine does.
    """
    windows = _windows(layout, base)
    covered = sorted((window[0].start, max(e.stop for e in window)) for window in windows)
    for (_, stop), (start, _) in pairwise(covered):
        if start < stop:
            raise ValueError(f"{layout.name}: blocks of different strides are interleaved around byte {start - base}")
    edges = [(0, 0), *covered, (size, size)]
    gaps = [
        Extent(stop, 0, start - stop, 1, blockwise=False) for (_, stop), (start, _) in pairwise(edges) if start > stop
    ]
    return (*(extent for window in windows for extent in window), *gaps)


def _windows(layout: Layout, base: int) -> list[list[Extent]]:
    """Put runs that repeat with the same stride and lie within one stride of each other into one window each."""
    by_stride: dict[int, list[_Run]] = {}
    for layer in layout.layers:
        for runs, padding in ((content_runs(layer), False), (padding_runs(layer), True)):
            for start, length in runs:
                first = base + layer.offset + start
                by_stride.setdefault(layer.block_stride, []).append(_Run(first, first + length, layer.group, padding))
    windows = []
    for stride, found in by_stride.items():
        window: list[_Run] = []
        for run in sorted(found, key=lambda r: r.start):
            if window and run.stop > window[0].start + stride:
                windows.append(_cut(window, stride, layout.num_blocks))
                window = []
            window.append(run)
        windows.append(_cut(window, stride, layout.num_blocks))
    return windows


def _cut(window: list[_Run], stride: int, blocks: int) -> list[Extent]:
    """Cut one window at every border, put equal neighbours together, and fill what is left up to the next block."""
    first = window[0].start
    borders = sorted({border for run in window for border in (run.start, run.stop)})
    pieces: list[Extent] = []
    for start, stop in pairwise(borders):
        content = frozenset(r.group for r in window if not r.padding and r.start <= start and stop <= r.stop)
        padding = frozenset(r.group for r in window if r.padding and r.start <= start and stop <= r.stop)
        last = pieces[-1] if pieces else None
        if last is not None and (last.content, last.padding) == (content, padding):
            pieces[-1] = Extent(last.start, stride, stop - last.start, blocks, content, padding)
        else:
            pieces.append(Extent(start, stride, stop - start, blocks, content, padding))
    rest = first + stride - borders[-1]
    if rest and blocks > 1:  # what follows the last block is no block's
        pieces.append(Extent(borders[-1], stride, rest, blocks - 1))
    return pieces
