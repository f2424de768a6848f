"""How fast payload kernels check and fill device memory, relative to a device copy of the same bytes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator
from unittest import mock

import numpy as np
import torch

from bench.run import Measure
from kvverify.arena import payload_launch, tiles
from kvverify.arena.device_arena import DeviceArena
from kvverify.arena.extents import extents_of
from kvverify.arena.payload import derive_key
from kvverify.arena.payload_launch import Launch, Payloads, Records, upload
from kvverify.layout.models import load_model
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.rules import recipe_for

GIB = 1 << 30
KINDS = {"mixed": "turboquant_4bit_nc", "bf16": "auto"}
_SWEPT_TILES, _SWEPT_WARPS = (2048, 4096, 8192, 16384, 32768), (2, 4, 8)


def layout_of(kind: str, size: int, *, block_major: bool = False, small: bool = False) -> Layout:
    """Return MiniMax-M2.5's layout at TP 2 with as many blocks as ``size`` bytes hold.

    Args:
        kind: ``mixed``, with bf16 border layers around 4-bit ones, or all ``bf16``.
        size: bytes.
        block_major: all layers of a block beside each other, as unified allocations have it.
        small: one layer of each format.
    """
    recipe = recipe_for(load_model("minimax-m2.5"), KINDS[kind], tp=2, num_blocks=2)
    layers = tuple(dataclasses.replace(x, count=1) for x in recipe.layers[:2]) if small else recipe.layers
    order = "BLNHC" if block_major else recipe.order
    two = dataclasses.replace(recipe, layers=layers, order=order, name=f"minimax-m2.5 {kind}")
    return place(dataclasses.replace(two, num_blocks=max(2, 2 * size // place(two).size_bytes)))


class Work:
    """An arena whose blocks all hold contents that were first written for other blocks, as after loads."""

    def __init__(self, layout: Layout, device: torch.device, *, compiled: bool | None = None) -> None:
        self.arena = DeviceArena(layout, 1, 1, device)
        extents = extents_of(layout, self.arena.base, self.arena.device.size)
        kinds = tiles.kinds_of(extents)
        self.payloads = Payloads(self.arena.storage(), compiled=compiled)
        self.launches = [Launch(t, device) for t in tiles.tiles_of(extents, kinds)]
        blocks = layout.num_blocks
        self.payloads.set_base_key(derive_key(1, 0))
        keys = np.asarray([derive_key(1, 1 + b % 64) for b in range(blocks)], np.uint64).astype(np.int64)
        table = upload(np.tile([keys, np.roll(np.arange(blocks), 1)], (1, len(kinds))), device)
        self.records = [Records(x.tiles.blocks, None, table[0], table[1], blocks) for x in self.launches]

    @property
    def nbytes(self) -> int:
        """Bytes that are filled and checked."""
        return sum(launch.tiles.nbytes for launch in self.launches)

    def fill(self) -> None:
        """Write everything."""
        for launch, records in zip(self.launches, self.records, strict=True):
            self.payloads.fill(launch, records)

    def check(self) -> list[torch.Tensor]:
        """Compare everything; counts of wrong units."""
        return [self.payloads.check(x, r) for x, r in zip(self.launches, self.records, strict=True)]

    def wrong(self) -> int:
        """Return how many units are wrong."""
        return sum(int(counts.sum()) for counts in self.check())

    def prove(self) -> None:
        """Fill, and see that nothing is wrong but a byte that is flipped."""
        self.fill()
        memory, at = self.arena.storage(), self.nbytes // 3
        clean = self.wrong()
        memory[at] ^= 1
        flipped = self.wrong()
        memory[at] ^= 1
        if (clean, flipped) != (0, 1):
            raise RuntimeError(
                f"a check that is rated must see one flipped byte and nothing else; saw {clean}, {flipped}"
            )


def seconds_of(work: Callable[[], object], device: torch.device) -> float:
    """Return what ``work`` takes on the current stream, by events; on the CPU by the clock."""
    if device.type == "cpu":
        start = time.perf_counter()
        work()
        return time.perf_counter() - start
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    first.record()
    work()
    last.record()
    last.synchronize()
    return float(first.elapsed_time(last)) / 1000


def medians(works: dict[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, float]:
    """Return the median seconds of each work, taken in turns so that clocks and heat are the same for all."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 3):
        for name, work in works.items():
            taken = seconds_of(work, device)
            if turn >= 3:  # the first ones compile and warm up
                found[name].append(taken)
    return {name: statistics.median(values) for name, values in found.items()}


def rates(layout: Layout, device: torch.device, rounds: int) -> Iterator[Measure]:
    """Measure check and fill of one layout against a copy of the same allocation."""
    work = Work(layout, device)
    work.prove()
    other = torch.empty_like(work.arena.storage())
    works = {"copy": lambda: other.copy_(work.arena.storage()), "check": work.check, "fill": work.fill}
    taken = medians(works, device, rounds)
    label = f"{layout.name.split()[-1]}, {layout.size_bytes / GIB:.3g} GiB"
    rate = {name: (2 if name == "copy" else 1) * work.nbytes / s for name, s in taken.items()}
    yield Measure(f"copy, {label}", rate["copy"] / 1e9, "GB/s", note="read + written")
    for name in ("check", "fill"):
        yield Measure(f"{name}, {label}", rate[name] / 1e9, "GB/s", note=work.payloads.how)
        yield Measure(f"{name} / copy, {label}", rate[name] / rate["copy"], "x", bar=0.8)


def sweep(layout: Layout, device: torch.device, rounds: int) -> Iterator[Measure]:
    """Measure check and fill by the size of the largest tile and its number of warps; no bars."""
    for tile in _SWEPT_TILES:
        for warps in _SWEPT_WARPS:
            sizes = (*(t for t in (256, 1024, 4096, 8192) if t < tile), tile)
            with (
                mock.patch.object(tiles, "_TILE_BYTES", sizes),
                mock.patch.dict(payload_launch._WARPS, {tile: warps}),
            ):
                work = Work(layout, device)
                work.prove()
                taken = medians({"check": work.check, "fill": work.fill}, device, rounds)
            label = f"{layout.size_bytes / GIB:.3g} GiB, tile {tile}, {warps} warps"
            for name, seconds in taken.items():
                yield Measure(f"{name}, {label}", work.nbytes / seconds / 1e9, "GB/s", note=work.payloads.how)
            del work
