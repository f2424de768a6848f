"""A small arena of torch tensors and an independent gather, for tests of single kernels.

The gather walks the fields of :class:`Layout` with the formula of :mod:`kvverify.layout.placement`; it shares no code with
torch's striding.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kvverify.kernels.contract import CopyKernel
from kvverify.layout.placement import Layer, Layout, Role

_MAP_NORESERVE = 0x4000  # Linux; the mmap module has no name for it
GUARD = 4096  # bytes before and after the engine's buffer, and around the host tier


@dataclass
class FakeArena:
    """``memory`` is guard, engine buffer, guard; ``host`` lies inside ``host_memory`` in the same way."""

    layout: Layout
    memory: torch.Tensor
    layers: list[torch.Tensor]
    group_layers: list[list[torch.Tensor]]
    host_memory: torch.Tensor
    host: torch.Tensor
    stream: Any = None
    rank: int = 0
    world_size: int = 1
    host_slots: int = field(default=0)


def make_arena(layout: Layout, host_slots: int = 6, blocks_per_slot: int = 1, seed: int = 0) -> FakeArena:
    """Random bytes everywhere, guards too."""
    random = torch.Generator().manual_seed(seed)
    memory = torch.randint(0, 256, (layout.size_bytes + 2 * GUARD,), dtype=torch.uint8, generator=random)
    row = -(-layout.host_slot_bytes() * blocks_per_slot // 4096) * 4096
    host_memory = torch.randint(0, 256, (host_slots * row + 2 * GUARD,), dtype=torch.uint8, generator=random)
    layers = [view_of(memory, layer, layout.num_blocks) for layer in layout.layers]
    groups = [[layers[i] for i in layout.group_layers(g.index)] for g in layout.groups]
    host = host_memory[GUARD : GUARD + host_slots * row].view(host_slots, row)
    return FakeArena(layout, memory, layers, groups, host_memory, host, host_slots=host_slots)


def view_of(memory: torch.Tensor, layer: Layer, num_blocks: int) -> torch.Tensor:
    """The view an engine would register."""
    size = layer.element_bytes
    typed = memory[: len(memory) // size * size].view(getattr(torch, layer.element))
    shape = (num_blocks * layer.rows_per_block, *layer.shape)
    strides = (layer.row_stride // size, *(s // size for s in layer.strides))
    return typed.as_strided(shape, strides, (GUARD + layer.offset) // size)


def positions(layer: Layer, blocks: Sequence[int], padding: bool = False) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Positions in ``memory`` of every content byte, or every padding byte, of ``blocks``, in a fixed order."""
    rows = np.array([b * layer.rows_per_block + r for b in blocks for r in range(layer.rows_per_block)])
    cells = (layer.offset + rows * layer.row_stride)[:, None, None, None]
    parts = [np.empty(0, np.int64)]
    for f in layer.fields:
        if (f.role is Role.PADDING) is padding:
            heads = np.arange(f.heads)[:, None, None] * f.head_stride
            tokens = np.arange(f.tokens)[:, None] * f.token_stride
            parts.append((cells + f.offset + heads + tokens + np.arange(f.length)).ravel())
    result: np.ndarray[Any, np.dtype[np.int64]] = GUARD + np.concatenate(parts)
    return result


def moved(arena: FakeArena, before: torch.Tensor, pairs: Sequence[tuple[int, int]], group: int = 0) -> torch.Tensor:
    """What ``memory`` must hold after the blocks of ``pairs`` (from, to) of ``group`` were copied from ``before``."""
    source = before.numpy()
    want = arena.memory.clone().numpy()
    for index in arena.layout.group_layers(group):
        layer = arena.layout.layers[index]
        want[positions(layer, [b for _, b in pairs])] = source[positions(layer, [a for a, _ in pairs])]
    return torch.from_numpy(want)


def wrong_bytes(arena: FakeArena, want: torch.Tensor) -> int:
    """Number of bytes of the whole memory that differ, padding left out."""
    differs = (arena.memory != want).numpy()
    for layer in arena.layout.layers:
        differs[positions(layer, arena.layout.blocks, padding=True)] = False
    return int(differs.sum())


def overwrite(arena: FakeArena, seed: int = 99) -> None:
    """Every byte of the device side, guards too, gets a new value that differs from the old one."""
    random = torch.Generator().manual_seed(seed)
    arena.memory += torch.randint(1, 256, arena.memory.shape, dtype=torch.uint8, generator=random)


def round_trip(
    kernel: CopyKernel,
    arena: FakeArena,
    stored: Sequence[int],
    slots: Sequence[int],
    loaded: Sequence[int],
    **group: int,
) -> int:
    """Store, overwrite everything, load elsewhere; return the number of wrong bytes in the whole memory.

    The store may change nothing on the device and only the named slots of the host; the load nothing on the host.
    """
    before, host_before = arena.memory.clone(), arena.host_memory.clone()
    kernel.store(list(stored), list(slots), **group)
    kernel.wait()
    assert torch.equal(arena.memory, before), "the store changed the device side"
    untouched = arena.host_memory.clone()
    rows = untouched[GUARD : GUARD + arena.host.numel()].view(arena.host.shape)
    old_rows = host_before[GUARD : GUARD + arena.host.numel()].view(arena.host.shape)
    rows[list(slots)] = old_rows[list(slots)]
    assert torch.equal(untouched, host_before), "the store changed other host bytes"
    overwrite(arena)
    want = moved(arena, before, list(zip(stored, loaded, strict=True)), group.get("group", 0))
    host_stored = arena.host_memory.clone()
    kernel.load(list(slots), list(loaded), **group)
    kernel.wait()
    assert torch.equal(arena.host_memory, host_stored), "the load changed host bytes"
    return wrong_bytes(arena, want)


def make_sparse_arena(layout: Layout, host_slots: int = 4, blocks_per_slot: int = 1) -> FakeArena:
    """An arena over a mapping without memory behind it; only what somebody touches becomes resident."""
    mapping = mmap.mmap(-1, layout.size_bytes + 2 * GUARD, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    memory = torch.frombuffer(mapping, dtype=torch.uint8)
    layers = [view_of(memory, layer, layout.num_blocks) for layer in layout.layers]
    row = -(-layout.host_slot_bytes() * blocks_per_slot // 4096) * 4096
    host = torch.zeros((host_slots, row), dtype=torch.uint8)
    return FakeArena(layout, memory, layers, [layers], host.view(-1), host, host_slots=host_slots)


def resident_bytes() -> int:
    """Memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def sparse_round_trip(kernel: CopyKernel, arena: FakeArena, stored: Sequence[int], loaded: Sequence[int]) -> int:
    """Round trip of a few blocks of a huge buffer; return the wrong bytes among the loaded blocks.

    The process may grow by 64 MiB at most: no operation runs over the whole view.
    """
    per_slot = getattr(kernel, "blocks_per_slot", 1)
    slots = list(range(len(stored) // per_slot))
    memory = arena.memory.numpy()
    expected = []
    for layer in arena.layout.layers:
        places = positions(layer, stored)
        expected.append(np.random.default_rng(layer.index).integers(0, 256, places.size, dtype=np.uint8))
        memory[places] = expected[-1]
    before = resident_bytes()
    kernel.prepare(arena)
    kernel.store(list(stored), slots)
    kernel.wait()
    kernel.load(slots, list(loaded))
    kernel.wait()
    assert resident_bytes() - before < 64 << 20
    wrong = [memory[positions(x, loaded)] != e for x, e in zip(arena.layout.layers, expected, strict=True)]
    return int(np.concatenate(wrong).sum())
