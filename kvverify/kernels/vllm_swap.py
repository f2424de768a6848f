"""Adapters over vLLM's compiled block copies: ``swap_blocks`` and ``swap_blocks_batch`` of ``vllm/_custom_ops.py``.

Both enqueue on the current stream, so they are ordered behind the producers of their sources and the readers of their
destinations, and the caller has to wait for neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.vllm_library import batch_call, compiled_ops, gpu_provenance
from kvverify.kernels.vllm_pages import Page, PageTable, block_tensor, canonical_pages

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout


class VllmSwapBlocks:
    """``swap_blocks(src, dst, block_bytes, mapping)``: block i of a tensor lies at ``i * block_bytes``, on either side.

    A host slot holds four blocks: for each page an area of four sub-blocks, back to back, so that the area is such a tensor. One
    call for each page and slot. Padding of a block is copied with it, since the call knows no other stride than the size.
    """

    name = "vllm-swap-blocks"
    groups = True
    ordered = True  # cudaMemcpyAsync on the current stream, one after the other
    partial_slots = True
    blocks_per_slot = 4

    def __init__(self) -> None:
        self._ops = compiled_ops(self.name, ["swap_blocks"])
        self._pages: list[list[tuple[Page, torch.Tensor]]] = []  # per group: page and its uint8 [block, stride]
        self._host: torch.Tensor | None = None
        self._stream: Any = None

    def supports(self, layout: Layout) -> bool | str:
        """Every layout is served, run by run."""
        return True

    def prepare(self, arena: ArenaView) -> None:
        """View every page as the tensor of blocks that the call takes."""
        self._stream, self._host = arena.stream, arena.host
        blocks = arena.layout.num_blocks
        self._pages = [
            [(page, block_tensor(arena.layers[0], page, blocks)) for page in pages]
            for pages in canonical_pages(arena, self.blocks_per_slot)
        ]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots; slot j takes ``block_ids[4 * j : 4 * j + 4]``."""
        k = self.blocks_per_slot
        for position, slot in enumerate(host_slots):
            ids = block_ids[position * k : (position + 1) * k]
            mapping = torch.tensor([[block, sub] for sub, block in enumerate(ids)])
            for page, device in self._pages[group]:
                self._ops.swap_blocks(device, self._area(slot, page), page.stride, mapping)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired as in :meth:`store`."""
        k = self.blocks_per_slot
        for position, slot in enumerate(host_slots):
            self.load_part(slot, 0, block_ids[position * k : (position + 1) * k], group=group)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy the sub-blocks of ``slot`` from ``first`` on to ``block_ids``."""
        mapping = torch.tensor([[first + i, block] for i, block in enumerate(block_ids)])
        for page, device in self._pages[group]:
            self._ops.swap_blocks(self._area(slot, page), device, page.stride, mapping)

    def _area(self, slot: int, page: Page) -> torch.Tensor:
        """All sub-blocks of one page in a slot, uint8 [4 * room]."""
        assert self._host is not None  # set by prepare
        return self._host[slot, page.slot_offset : page.slot_offset + self.blocks_per_slot * page.room]

    def wait(self) -> None:
        """Return when the stream's copies are done."""
        self._stream.synchronize()

    def close(self) -> None:
        """Drop the arena's tensors."""
        self._pages = []
        self._host = self._stream = None

    def provenance(self) -> dict[str, Any]:
        """Version, digests of the extension, and the call that it ends in."""
        return gpu_provenance("_C_cache_ops.swap_blocks: an asynchronous copy for each block", [self._ops])


class VllmSwapBlocksBatch:
    """``swap_blocks_batch(sources, destinations, sizes, is_src_access_order_any)``: one call with a list of pointers.

    One descriptor for each canonical page and block; the source order is that of vLLM's worker: STREAM for stores, ANY for loads.
    ANY lets the driver read the host before its turn, so a load is not ordered behind a store to its slot: the caller waits in
    between, as the docstring of the call asks («only safe when no GPU stream is concurrently writing to the source»).

    Host slot: the pages one after the other, with the padding that they have on the device, as in vLLM's host tensors.
    """

    name = "vllm-swap-blocks-batch"
    groups = True

    def __init__(self) -> None:
        self._ops = compiled_ops(self.name, ["swap_blocks_batch"])
        self._tables: list[PageTable] = []  # per group
        self._stream: Any = None

    def supports(self, layout: Layout) -> bool | str:
        """Every layout is served, run by run."""
        return True

    def prepare(self, arena: ArenaView) -> None:
        """Take the addresses of all pages."""
        self._stream = arena.stream
        self._tables = [PageTable(pages, arena.host) for pages in canonical_pages(arena)]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots, paired by position."""
        table = self._tables[group]
        self._ops.swap_blocks_batch(
            table.blocks(block_ids), table.slots(host_slots), table.sizes(len(block_ids)), is_src_access_order_any=False
        )

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired by position."""
        table = self._tables[group]
        self._ops.swap_blocks_batch(
            table.slots(host_slots), table.blocks(block_ids), table.sizes(len(block_ids)), is_src_access_order_any=True
        )

    def wait(self) -> None:
        """Return when the stream's copies are done."""
        self._stream.synchronize()

    def close(self) -> None:
        """Forget the arena's addresses."""
        self._tables = []
        self._stream = None

    def provenance(self) -> dict[str, Any]:
        """Version, digests of the extension, and the call that it ends in."""
        return gpu_provenance(f"_C_cache_ops.swap_blocks_batch: {batch_call()}", [self._ops])
