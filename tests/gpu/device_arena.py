"""An arena of torch tensors on one GPU with a pinned host tier, and one round trip through a kernel, checked byte by byte.

It shares nothing with the arena of kvverify; what a load must bring is computed from the runs of :mod:`kvverify.arena.geometry`.
On the device ``cpu`` everything runs without a GPU, so that the check itself is tested where there is none.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kvverify.arena.geometry import Run, block_start, content_runs, locate, padding_runs
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.registry import check_kernel, supports_reason
from kvverify.layout.placement import Layer, Layout

GUARD = 4096  # bytes before and after the engine's buffer, before the first host row and after each


@dataclass
class DeviceArena:
    """``memory`` is guard, engine buffer, guard; ``host_memory`` guard, row, guard, row, ..., guard. Both uint8 [bytes]."""

    layout: Layout
    memory: torch.Tensor
    layers: list[torch.Tensor]
    group_layers: list[list[torch.Tensor]]
    host_memory: torch.Tensor
    host: torch.Tensor
    stream: Any
    rank: int = 0
    world_size: int = 1

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """``stream`` is current inside, as during every call of a kernel."""
        return torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext()

    def rows(self, host_memory: torch.Tensor) -> torch.Tensor:
        """The rows of the host tier in ``host_memory`` or a copy of it, uint8 [host slots, slot bytes]."""
        offset = host_memory.storage_offset() + GUARD
        return host_memory.as_strided(self.host.shape, self.host.stride(), offset)


def make_device_arena(
    layout: Layout, host_slots: int = 6, blocks_per_slot: int = 1, *, device: str = "cuda", seed: int = 0
) -> DeviceArena:
    """Random bytes everywhere, guards too; the stream is never the default one, None on the CPU."""
    stream: Any = torch.cuda.Stream() if device == "cuda" else None  # type: ignore[no-untyped-call]
    generator = torch.Generator(device).manual_seed(seed)
    memory = torch.empty(layout.size_bytes + 2 * GUARD, dtype=torch.uint8, device=device)
    memory.random_(0, 256, generator=generator)
    slot_bytes = -(-layout.host_slot_bytes() * blocks_per_slot // 4096) * 4096
    host_memory = _aligned(GUARD + host_slots * (slot_bytes + GUARD), pinned=device == "cuda")
    host_memory.random_(0, 256, generator=torch.Generator().manual_seed(seed))
    host = host_memory.as_strided(
        (host_slots, slot_bytes), (slot_bytes + GUARD, 1), host_memory.storage_offset() + GUARD
    )
    layers = [_view(memory, layer, layout.num_blocks) for layer in layout.layers]
    groups = [[layers[i] for i in layout.group_layers(g.index)] for g in layout.groups]
    if stream is not None:
        torch.cuda.synchronize()  # the bytes above were written on the default stream
    return DeviceArena(layout, memory, layers, groups, host_memory, host, stream)


def _aligned(size: int, *, pinned: bool) -> torch.Tensor:
    memory = torch.empty(size + 4096, dtype=torch.uint8, pin_memory=pinned)
    start = -memory.data_ptr() % 4096
    return memory[start : start + size]


def _view(memory: torch.Tensor, layer: Layer, num_blocks: int) -> torch.Tensor:
    size = layer.element_bytes
    typed = memory[: len(memory) // size * size].view(getattr(torch, layer.element))
    shape = (num_blocks * layer.rows_per_block, *layer.shape)
    strides = (layer.row_stride // size, *(s // size for s in layer.strides))
    return typed.as_strided(shape, strides, (GUARD + layer.offset) // size)


def content_positions(layout: Layout, group: int, blocks: Sequence[int]) -> npt.NDArray[np.int64]:
    """Positions in ``memory`` of the content bytes of ``blocks``: block after block in a layer, layer after layer."""
    return _positions(layout, group, blocks, content_runs)


def padding_positions(layout: Layout, group: int, blocks: Sequence[int]) -> npt.NDArray[np.int64]:
    """Positions in ``memory`` of the padding of ``blocks``, which a copy may carry along or leave."""
    return _positions(layout, group, blocks, padding_runs)


def _positions(layout: Layout, group: int, blocks: Sequence[int], runs_of: Any) -> npt.NDArray[np.int64]:
    found = [np.empty(0, np.int64)]
    for number in layout.group_layers(group):
        layer = layout.layers[number]
        runs: tuple[Run, ...] = runs_of(layer)
        if runs:
            inside = np.concatenate([np.arange(start, start + length) for start, length in runs])
            starts = np.array([block_start(layer, block) for block in blocks], np.int64)
            found.append((GUARD + starts[:, None] + inside).ravel())
    return np.concatenate(found)


def round_trip(
    kernel: CopyKernel,
    layout: Layout,
    *,
    device: str = "cuda",
    host_slots: int = 6,
    slots_per_call: int = 4,
    seed: int = 0,
) -> None:
    """Take a fresh kernel through one store and one load of each layer group, between random blocks and slots.

    No synchronisation is added that the kernel does not declare: the bytes to store are produced, and the bytes to check
    are read, on ``arena.stream``, right around the calls.

    Raises:
        AssertionError: a byte of the device or the host side is not what it must be; names the first.
    """
    check_kernel(kernel, kernel.name)
    assert supports_reason(kernel, layout) is None, supports_reason(kernel, layout)
    arena = make_device_arena(layout, host_slots, getattr(kernel, "blocks_per_slot", 1), device=device, seed=seed)
    with arena.current():
        own_host = kernel.prepare(arena)
        try:
            for group in layout.groups:
                _round_trip_of_group(kernel, arena, group.index, slots_per_call, seed, host_is_ours=own_host is None)
            provenance = getattr(kernel, "provenance", None)
            assert provenance is None or provenance()["library"]
        finally:
            kernel.close()


def _round_trip_of_group(
    kernel: CopyKernel, arena: DeviceArena, group: int, slots_per_call: int, seed: int, *, host_is_ours: bool
) -> None:
    per_slot = getattr(kernel, "blocks_per_slot", 1)
    draw = random.Random(seed + group)
    blocks = list(arena.layout.blocks)
    count = min(slots_per_call, arena.host.shape[0], len(blocks) // per_slot)
    assert count, f"{arena.layout.name}: {len(blocks)} blocks do not fill a slot of {per_slot}"
    stored = draw.sample(blocks, count * per_slot)
    slots = draw.sample(range(arena.host.shape[0]), count)
    loaded = draw.sample([b for b in blocks if b not in stored], min(len(stored), len(blocks) - len(stored)))
    loaded += draw.sample(sorted(set(blocks) - set(loaded)), len(stored) - len(loaded))
    keywords = {"group": group} if len(arena.layout.groups) > 1 else {}

    before, host_before = arena.memory.clone(), arena.host_memory.clone()
    _call(kernel, "store", arena.stream, (stored, slots), keywords)
    _assert_same_device(arena, before, (), group, "the store changed the device side")
    host_stored = arena.host_memory.clone()
    if host_is_ours:
        untouched = host_stored.clone()
        arena.rows(untouched)[slots] = arena.rows(host_before)[slots]
        _assert_same_host(arena, untouched, host_before, "the store changed host bytes outside its slots")

    arena.memory.bitwise_xor_(torch.randint(1, 256, arena.memory.shape, dtype=torch.uint8, device=arena.memory.device))
    want = arena.memory.clone()
    want[_index(arena, group, loaded)] = before[_index(arena, group, stored)]
    _call(kernel, "load", arena.stream, (slots, loaded), keywords)
    _assert_same_host(arena, arena.host_memory, host_stored, "the load changed host bytes")
    _assert_same_device(arena, want, loaded, group, f"blocks {stored} loaded into {loaded}")


def _index(arena: DeviceArena, group: int, blocks: Sequence[int]) -> torch.Tensor:
    return torch.from_numpy(content_positions(arena.layout, group, blocks)).to(arena.memory.device)


def _call(
    kernel: CopyKernel, name: str, stream: Any, pairs: tuple[Sequence[int], Sequence[int]], keywords: dict[str, int]
) -> None:
    """Call the kernel with lists that are emptied right afterwards, and wait."""
    lent = list(pairs[0]), list(pairs[1])
    if name in getattr(kernel, "caller_syncs", ()) and stream is not None:
        stream.synchronize()
    getattr(kernel, name)(*lent, **keywords)
    for given in lent:
        given.clear()
    kernel.wait()


def _assert_same_device(arena: DeviceArena, want: torch.Tensor, loaded: Sequence[int], group: int, what: str) -> None:
    """Compare the whole memory, guards too; only the padding of ``loaded`` blocks may be anything."""
    wrong = arena.memory != want
    wrong[torch.from_numpy(padding_positions(arena.layout, group, loaded)).to(wrong.device)] = False
    assert wrong.numel() == arena.layout.size_bytes + 2 * GUARD
    if not bool(wrong.any()):
        return
    first = int(wrong.nonzero()[0])
    owner = locate(arena.layout, first - GUARD, dict.fromkeys(loaded, group))
    raise AssertionError(
        f"{arena.layout.name}: {what}: {int(wrong.sum())} wrong bytes, the first at {first - GUARD} of the buffer "
        f"({owner or 'nobody owns it'}): {int(arena.memory[first])}, expected {int(want[first])}"
    )


def _assert_same_host(arena: DeviceArena, found: torch.Tensor, want: torch.Tensor, what: str) -> None:
    wrong = found != want
    if not bool(wrong.any()):
        return
    first = int(wrong.nonzero()[0]) - GUARD
    slot, byte = divmod(first, arena.host.stride(0))
    raise AssertionError(
        f"{arena.layout.name}: {what}: {int(wrong.sum())} wrong bytes, the first at byte {byte} of slot {slot} "
        f"(a slot has {arena.host.shape[1]} bytes, then a guard)"
    )
