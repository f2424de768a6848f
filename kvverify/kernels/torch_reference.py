"""The reference copy kernel: plain torch indexing, one gather and one scatter a layer and call.

It is what a planted fault is shown on where no real kernel can show it, and what a new plug-in author can read first.
Bytes are moved as integers, never as floats: a NaN pattern has to arrive as it left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.provenance import file_digests, library_version

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

_PAGE_ALIGNMENT = 16  # bytes; pages of a host slot start at multiples of it (plug-in contract, rule 4)
_INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}


class TorchReference:
    """Copies blocks by ``index_select`` and ``index_put_``.

    Host slot: the pages of the group's layers back to back, each rounded up to 16 bytes, a page being
    ``[row of block, head, token, content]`` whatever the device order is; sub-block j after sub-block j-1, each
    ``layout.host_slot_bytes()`` long. The last slot of a store may be partly filled.
    """

    name = "torch"
    groups = True
    partial_slots = True

    def __init__(self, blocks_per_slot: int = 1) -> None:
        if blocks_per_slot < 1:
            raise ValueError(f"torch: blocks_per_slot is {blocks_per_slot}, expected 1 or more")
        self.blocks_per_slot = blocks_per_slot
        self._stream: Any = None
        # per group and layer: device [block, row of block, ...], host [slot, sub-block, row of block, ...], same integer type
        self._pages: list[list[tuple[torch.Tensor, torch.Tensor]]] = []

    def supports(self, layout: Layout) -> bool | str:
        """Every layout is served."""
        return True

    def prepare(self, arena: ArenaView) -> None:
        """Lay the host pages of every group over ``arena.host``.

        Raises:
            ValueError: a host slot is too small for the group's pages.
        """
        self._stream = arena.stream
        self._pages = [
            self._group_pages(arena.layout, views, arena.layout.group_layers(group.index), arena.host)
            for group, views in zip(arena.layout.groups, arena.group_layers, strict=True)
        ]

    def _group_pages(
        self, layout: Layout, views: Sequence[torch.Tensor], positions: Sequence[int], host: torch.Tensor
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        pages = []
        offset = 0
        sub_block_bytes = layout.host_slot_bytes()
        for view, position in zip(views, positions, strict=True):
            rows = layout.layers[position].rows_per_block
            device = view.unflatten(0, (view.shape[0] // rows, rows))  # type: ignore[no-untyped-call]
            page_bytes = math.prod(device.shape[1:]) * device.element_size()
            pages.append(_same_integers(device, host, offset, self.blocks_per_slot, sub_block_bytes))
            offset += -(-page_bytes // _PAGE_ALIGNMENT) * _PAGE_ALIGNMENT
        if offset > sub_block_bytes or (self.blocks_per_slot - 1) * sub_block_bytes + offset > host.shape[1]:
            raise ValueError(
                f"torch: a host slot has {host.shape[1]} bytes, {self.blocks_per_slot} blocks of {offset} bytes do not fit"
            )
        return pages

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots; slot j takes ``block_ids[j*k:(j+1)*k]``."""
        target = self._host_index(host_slots, len(block_ids))
        blocks = torch.tensor(block_ids)
        for device, host in self._pages[group]:
            host.index_put_(target, device.index_select(0, blocks.to(device.device)).to(host.device))

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired as in :meth:`store`."""
        self._load(self._host_index(host_slots, len(block_ids)), block_ids, group)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy the sub-blocks of ``slot`` from ``first`` on to ``block_ids``."""
        subs = torch.arange(first, first + len(block_ids))
        self._load((torch.full_like(subs, slot), subs), block_ids, group)

    def _load(self, source: tuple[torch.Tensor, torch.Tensor], block_ids: Sequence[int], group: int) -> None:
        blocks = torch.tensor(block_ids)
        for device, host in self._pages[group]:
            device.index_copy_(0, blocks.to(device.device), host[source].to(device.device))

    def _host_index(self, host_slots: Sequence[int], blocks: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Slot and sub-block of each of ``blocks`` blocks."""
        k = self.blocks_per_slot
        if len(host_slots) != -(-blocks // k):
            raise ValueError(
                f"torch: {blocks} blocks at {k} a slot need {-(-blocks // k)} slots, got {len(host_slots)}"
            )
        slots = [slot for slot in host_slots for _ in range(k)][:blocks]
        return torch.tensor(slots), torch.tensor([i % k for i in range(blocks)])

    def wait(self) -> None:
        """Return when the stream's copies are done; on the CPU they are when the call returns."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Forget the arena's tensors."""
        self._pages = []
        self._stream = None

    def provenance(self) -> dict[str, Any]:
        """Library, version, path and file digests."""
        return {
            "library": "torch",
            "version": library_version("torch"),
            "path": "torch indexing (index_select, index_put_, index_copy_)",
            "files": file_digests([__file__, torch.__file__]),
        }


def _same_integers(
    device: torch.Tensor, host: torch.Tensor, offset: int, blocks_per_slot: int, sub_block_bytes: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Reinterpret ``device`` and its host pages, ``offset`` bytes into each sub-block, as the widest common integer."""
    size = device.element_size()
    unit = max(
        (
            u
            for u in _INTEGERS
            if device.stride(-1) == 1
            and device.shape[-1] * size % u == 0
            and device.storage_offset() * size % u == 0
            and all(stride * size % u == 0 for stride in device.stride()[:-1])
            and (host.storage_offset() + offset) % u == 0
            and host.stride(0) % u == 0
            and sub_block_bytes % u == 0
        ),
        default=size,
    )
    cells = device.view(_INTEGERS[unit])
    inner = [1]  # dense strides of one host page, in integers
    for extent in reversed(cells.shape[2:]):
        inner.insert(0, inner[0] * extent)
    width = (host.shape[1] - offset) // unit * unit
    slots = host[:, offset : offset + width].view(_INTEGERS[unit])
    return cells, slots.as_strided(
        (host.shape[0], blocks_per_slot, *cells.shape[1:]),
        (host.stride(0) // unit, sub_block_bytes // unit, *inner),
    )
