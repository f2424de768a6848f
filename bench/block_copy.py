"""A copy kernel as fast as the bus: layouts whose blocks lie in one piece are moved in few large asynchronous copies.

It is no adapter over anybody's library. It makes the raw copies of a campaign as cheap as they can be, which is the hardest case for
a bar that relates verification to them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch

from kvverify.arena.device_arena import DeviceArena
from kvverify.arena.geometry import content_runs, join_runs

if TYPE_CHECKING:
    from kvverify.layout.placement import Layout


class BlockCopy:
    """``blocks_per_slot`` blocks of one slot that follow each other on the device are one copy; any others are one each.

    ``spans`` are pairs of CUDA events around the copies of each call: what the stream spent on them, whatever it had to do before.
    """

    name = "bench-block-copy"
    ordered = True

    def __init__(self, blocks_per_slot: int) -> None:
        self.blocks_per_slot = blocks_per_slot
        self.spans: list[tuple[Any, Any]] = []
        self._stream: Any = None

    def supports(self, layout: Layout) -> bool | str:
        """Return True where every block is one run of content."""
        runs = [(x.offset + start, length) for x in layout.layers for start, length in content_runs(x)]
        strides = {layer.block_stride for layer in layout.layers}
        dense = len(strides) == 1 and join_runs(runs) == ((layout.layers[0].offset, *strides),)
        return dense or "only layouts whose blocks lie in one piece, one behind the other"

    def prepare(self, arena: Any) -> None:
        """Take the buffer as rows of blocks: uint8 [blocks, block bytes]."""
        assert isinstance(arena, DeviceArena)
        layout = arena.layout
        self._block_bytes = layout.layers[0].block_stride
        first = arena.base + layout.layers[0].offset
        self._blocks = arena.storage()[first : first + layout.num_blocks * self._block_bytes]
        self._host, self._stream = arena.host, arena.stream

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int]) -> None:
        """Copy device blocks to host slots."""
        self._run([(host, device) for device, host in self._pairs(block_ids, host_slots)])

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Copy host slots to device blocks."""
        self._run(self._pairs(block_ids, host_slots))

    def _run(
        self, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]] | Iterator[tuple[torch.Tensor, torch.Tensor]]
    ) -> None:
        before = self._mark()
        for destination, source in pairs:
            destination.copy_(source, non_blocking=True)
        self.spans.append((before, self._mark()))

    def _pairs(
        self, block_ids: Sequence[int], host_slots: Sequence[int]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Device and host bytes of each copy."""
        size, many = self._block_bytes, self.blocks_per_slot
        for j, slot in enumerate(host_slots):
            blocks, row = block_ids[j * many : (j + 1) * many], self._host[slot]
            if blocks[-1] - blocks[0] == len(blocks) - 1 and list(blocks) == list(range(blocks[0], blocks[-1] + 1)):
                yield self._blocks[blocks[0] * size : (blocks[-1] + 1) * size], row[: len(blocks) * size]
                continue
            for i, block in enumerate(blocks):
                yield self._blocks[block * size : (block + 1) * size], row[i * size : (i + 1) * size]

    def _mark(self) -> Any:
        if self._stream is None:
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return event

    def seconds(self) -> float:
        """Return what the stream spent on all copies so far, waiting for them; 0 on the CPU."""
        self.wait()
        return float(sum(a.elapsed_time(b) for a, b in self.spans if a is not None)) / 1000

    def wait(self) -> None:
        """Return when all copies are complete."""
        if self._stream is not None:
            self._stream.synchronize()

    def close(self) -> None:
        """Forget the arena."""
        self._stream = None
