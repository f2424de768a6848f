"""The contiguous runs of a block, and the addresses between which a raw memcpy moves them.

Host slot: one or more blocks back to back, each ``layout.host_slot_bytes()`` long; of each block the pages of the group's layers one after
the other, each beginning at a multiple of 16 bytes; inside a page the runs of :func:`kvverify.arena.geometry.content_runs` back to
back. Padding is left where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvverify.arena.geometry import content_runs
from kvverify.layout.placement import Layout

_PAGE_ALIGNMENT = 16  # bytes, in a host slot (plug-in contract, rule 4)
Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class SlotRun:
    """``length`` bytes that lie together in every block of a layer and in every host slot; ``layer`` counts in Layout.layers."""

    layer: int
    start: int  # from the first byte of the block
    length: int
    slot_offset: int


def slot_runs(layout: Layout, group: int) -> tuple[SlotRun, ...]:
    """All runs of one block of ``group``, in the order of the host slot."""
    found = []
    offset = 0
    for number in layout.group_layers(group):
        offset = -(-offset // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT
        for start, length in content_runs(layout.layers[number]):
            found.append(SlotRun(number, start, length, offset))
            offset += length
    return tuple(found)


@dataclass(frozen=True, slots=True)
class HostRows:
    """Address of host slot 0, bytes from one slot to the next, bytes that may be used in each, blocks that each holds."""

    address: int
    stride: int
    slot_bytes: int
    blocks_per_slot: int = 1


class RunAddresses:
    """The runs of one group as vectors: position i of all arrays belongs to run i.

    Args:
        layout: where every byte lies.
        group: the layer group.
        layer_addresses: address of the first byte of block 0 of each layer of ``group``.
        host: the host tier.

    Raises:
        ValueError: a host slot is too small.
    """

    def __init__(self, layout: Layout, group: int, layer_addresses: Iterable[int], host: HostRows) -> None:
        runs = slot_runs(layout, group)
        self._part_bytes = layout.host_slot_bytes()  # of each block in a slot
        needed = max(run.slot_offset + run.length for run in runs) + self._part_bytes * (host.blocks_per_slot - 1)
        if needed > host.slot_bytes:
            many = "a block" if host.blocks_per_slot == 1 else f"{host.blocks_per_slot} blocks"
            need = "needs" if host.blocks_per_slot == 1 else "need"
            raise ValueError(f"a host slot has {host.slot_bytes} bytes, {many} of group {group} {need} {needed}")
        address_of = dict(zip(layout.group_layers(group), layer_addresses, strict=True))
        self._host = host
        self._device = _words(address_of[run.layer] + run.start for run in runs)  # in block 0
        self._block_bytes = _words(layout.layers[run.layer].block_stride for run in runs)
        self._slot_offsets = _words(run.slot_offset for run in runs)
        self._lengths = _words(run.length for run in runs)

    def pairs(self, block_ids: Sequence[int], host_slots: Sequence[int], first: int = 0) -> tuple[Words, Words, Words]:
        """Return device addresses, host addresses and bytes: uint64 [runs * blocks], blocks of one run beside each other.

        ``first`` is the place of the first block inside the first slot.
        """
        device = self._device[:, None] + self._block_bytes[:, None] * _words(block_ids)
        places = range(first, first + len(block_ids))
        slots = _words(host_slots[place // self._host.blocks_per_slot] for place in places)
        parts = _words(place % self._host.blocks_per_slot for place in places)
        rows = self._host.address + self._host.stride * slots + self._part_bytes * parts
        host = self._slot_offsets[:, None] + rows
        return device.reshape(-1), host.reshape(-1), np.repeat(self._lengths, len(block_ids))


def _words(numbers: Iterable[int]) -> Words:
    return np.array(list(numbers), np.uint64)
