"""One run of everything that a planted fault can disturb, on a CPU or a GPU: what it leaves is compared with a clean run's.

The bytes are told by digests, so that buffers of several GiB cost no second copy. Nothing here knows what is right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from kvverify.arena.device_arena import DeviceArena
from kvverify.faults.fault import Fault
from kvverify.kernels.contract import CopyKernel
from kvverify.layout.placement import Layout
from tests.faults.hunting import pool, traits_of

_SLOTS = 17  # of one call; K12 wants so many
_FRAGILE = {  # signalling NaN, minus zero
    "bfloat16": torch.tensor(0x7FA5, dtype=torch.int16),
    "float16": torch.tensor(0x7D55, dtype=torch.int16),
    "float32": torch.tensor(-(1 << 31), dtype=torch.int32),
}
_CHUNK = 1 << 17  # words of one digest


def layout_for(fault: Fault, kernel: CopyKernel, device: str) -> Layout | None:
    """Return the smallest layout of the campaigns that shows ``fault`` in ``kernel`` (with the fault planted)."""
    traits = traits_of(kernel, device)
    showing = (x for x in pool() if fault.shows_on(traits, x) is None and kernel.supports(x) is True)
    return min(showing, key=lambda layout: layout.size_bytes, default=None)


def effects(kernel: Any, layout: Layout, device: torch.device) -> list[Any]:
    """Drive ``kernel`` through one session and return all that it left: digests of memory, lists and views it was lent."""
    per_slot = int(getattr(kernel, "blocks_per_slot", 1))
    arena = DeviceArena(layout, _SLOTS + 1, per_slot, device)
    seen: list[Any] = []
    with arena.current():
        owned = kernel.prepare(arena)
        session = _Session(kernel, arena, arena.host if owned is None else owned)
        for group in layout.groups:
            seen += session.group(group.index)
        kernel.close()
        seen += [view.stride() for view in arena.layers]
        seen += session.memory()
    return seen


class _Session:
    def __init__(self, kernel: Any, arena: DeviceArena, host: torch.Tensor) -> None:
        self._kernel = kernel
        self._arena = arena
        self._host = host
        self._per_slot = int(getattr(kernel, "blocks_per_slot", 1))
        self._seed = 0
        self._host.random_(0, 256, generator=torch.Generator().manual_seed(1))

    def group(self, group: int) -> Iterator[Any]:
        k, blocks = self._per_slot, list(self._arena.layout.blocks)
        count = max(1, min(_SLOTS, len(blocks) // k))
        stored, slots = blocks[: count * k], list(range(count))[::-1]
        loaded = [*blocks[1:], blocks[0]][: count * k]
        named: dict[str, Any] = {"group": group} if len(self._arena.layout.groups) > 1 else {}
        self._engine_writes()
        yield from self._call("store", stored, slots, **named)
        self._engine_writes()
        half = count // 2
        if half:
            yield from self._call("load", slots[:half], loaded[: half * k], wait=False, **named)
        yield from self._call("load", slots[half:], loaded[half * k :], **named)
        self._engine_writes()
        yield from self._call("load", slots, loaded, **named)
        self._engine_writes()
        yield from self._call("load", slots[:1], blocks[-k:], **named)
        if count > 1:
            yield from self._call("load", [slots[0]] * 2, loaded[: 2 * k][::-1], **named)
        self._engine_writes()
        yield from self._call("store", stored[::-1], slots, **named)
        self._engine_writes()
        yield from self._call("load", slots, loaded, **named)
        yield from self._parts(slots[0], blocks, named)

    def _parts(self, slot: int, blocks: Sequence[int], named: dict[str, Any]) -> Iterator[Any]:
        k = self._per_slot
        if k > 1 and callable(getattr(self._kernel, "load_part", None)):
            self._kernel.load_part(slot, 1, list(blocks[: k - 1]), **named)
            self._kernel.wait()
            yield from self.memory()
            if getattr(self._kernel, "partial_slots", False):
                yield from self._call("store", blocks[1:k], [slot], **named)
                yield from self._call("load", [slot], blocks[: k - 1], **named)

    def _call(
        self, name: str, first: Sequence[int], second: Sequence[int], *, wait: bool = True, **named: Any
    ) -> Iterator[Any]:
        """Call with lists that are emptied right afterwards; yield the lists as they came back, and what memory holds."""
        lent = list(first), list(second)
        if name in getattr(self._kernel, "caller_syncs", ()) and self._arena.stream is not None:
            self._arena.stream.synchronize()
        getattr(self._kernel, name)(*lent, **named)
        yield from map(tuple, lent)
        for given in lent:
            given.clear()
        if wait:
            self._kernel.wait()
            yield from self.memory()

    def memory(self) -> Iterator[list[int]]:
        """Digests of the whole allocation and of the host slots."""
        yield _digest(self._arena.storage())
        yield _digest(self._host.contiguous().reshape(-1))

    def _engine_writes(self) -> None:
        """New random bytes everywhere; in each layer the first row holds zeros and the second what floats may lose."""
        memory, self._seed = self._arena.storage(), self._seed + 1
        words = memory.view(torch.int64)
        words.random_(generator=torch.Generator(memory.device).manual_seed(self._seed))
        layers = self._arena.layout.layers
        for layer in layers:
            start = self._arena.base + layer.offset
            memory[start : start + layer.row_stride] = 0
        for layer in layers:
            start = self._arena.base + layer.offset + layer.row_stride
            pattern = _FRAGILE.get(layer.element)
            if pattern is not None:
                memory[start : start + layer.row_stride].view(pattern.dtype).fill_(int(pattern))


def _digest(memory: torch.Tensor) -> list[int]:
    """One number for each MiB of uint8 [size]; the size is a multiple of 4,096."""
    words = memory.view(torch.int64)
    weights = torch.arange(1, 2 * _CHUNK, 2, device=memory.device)  # odd, so that no bit is lost
    whole = len(words) // _CHUNK * _CHUNK
    sums = [
        (words[:whole].view(-1, _CHUNK) * weights).sum(1),
        (words[whole:] * weights[: len(words) - whole]).sum()[None],
    ]
    return torch.cat(sums).tolist()
