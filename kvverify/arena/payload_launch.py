"""Payload operations on device memory, whichever way they run: Triton's kernels where there is Triton, else torch."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from dataclasses import dataclass
from types import ModuleType

import numpy as np
import torch

from kvverify.arena import payload_torch
from kvverify.arena.contents import SPECIAL
from kvverify.arena.tiles import Pattern, Tiles

_WARPS = {256: 1, 1024: 1, 4096: 2, 8192: 2}  # by bytes of a tile; the fastest on an H200


@dataclass(frozen=True, slots=True)
class Records:
    """What the blocks of a launch must hold.

    ``blocks`` int64 [count] are their numbers, None for 0 to count - 1. ``keys`` and ``sources`` int64 hold for the j-th block and
    kind k at ``k * kind_step + j`` the key of the contents and the block they were first written for.
    """

    count: int
    blocks: torch.Tensor | None
    keys: torch.Tensor
    sources: torch.Tensor
    kind_step: int = 0


class Launch:
    """Tiles with their tables on the device, and the bytes that belong to scales where a group is meant."""

    def __init__(self, tiles: Tiles, device: torch.device, pattern: Pattern | None = None) -> None:
        self.tiles = tiles
        self.starts, self.strides, self.lengths, self.kinds = (
            torch.from_numpy(a).to(device) for a in (tiles.starts, tiles.strides, tiles.lengths, tiles.kinds)
        )
        self.extremes = self.masks = torch.empty(0, dtype=torch.uint8, device=device)
        if pattern is not None:
            self.extremes = torch.from_numpy(pattern.extremes).to(device)
            self.masks = torch.from_numpy(pattern.masks).to(device)


class Payloads:
    """The operations over one memory: uint8 tensor of whole words, whose positions are the addresses that payloads name.

    Args:
        memory: uint8 [size], size a multiple of 8.
        compiled: use Triton; None decides by what is there.
    """

    def __init__(self, memory: torch.Tensor, *, compiled: bool | None = None) -> None:
        self.memory = memory
        self._words = memory.view(torch.int64)
        self._special = torch.zeros(len(SPECIAL) + 1, dtype=torch.int64)
        self._special[: len(SPECIAL)] = torch.from_numpy(SPECIAL.astype(np.int64))
        self._special = self._special.to(memory.device)
        self._kernels = triton_kernels(memory.device) if compiled is None or compiled else None
        self.how = "Triton" if self._kernels is not None else "torch"

    def set_base_key(self, key: int) -> None:
        """Take the key of the reset: what is written under it has no special values."""
        self._special[-1:].copy_(upload(np.asarray([key], np.uint64).astype(np.int64), self.memory.device))

    def check(self, launch: Launch, records: Records, *, by_bytes: bool = False) -> torch.Tensor:
        """Return how many units (bytes if asked) of each program differ: int32 [count * tiles], tiles running faster."""
        if self._kernels is None:
            return payload_torch.check(self.memory, launch, records, self._special, by_bytes=by_bytes)
        counts = torch.empty(records.count * len(launch.starts), dtype=torch.int32, device=self.memory.device)
        self._start("check", launch, records, counts, BYTES=by_bytes)
        return counts

    def fill(self, launch: Launch, records: Records) -> None:
        """Write what must be there."""
        if self._kernels is None:
            payload_torch.fill(self.memory, launch, records, self._special)
        else:
            self._start("fill", launch, records)

    def occupy(self, launch: Launch, records: Records, flip: int) -> None:
        """Write what differs in every byte from what must come; ``flip`` is xored to data, scales become extreme."""
        if self._kernels is None:
            payload_torch.occupy(self.memory, launch, records, self._special, flip)
        else:
            self._start(
                "occupy", launch, records, self._typed(launch.extremes, launch), self._typed(launch.masks, launch), flip
            )

    def settle(self, launch: Launch, carried: Records, own: Records) -> None:
        """Put own padding back where that of the source, ``carried``, is found. ``own`` and ``carried`` have equal steps."""
        if self._kernels is None:
            payload_torch.settle(self.memory, launch, carried, own, self._special)
        else:
            self._start("settle", launch, carried, own.keys, own.sources)

    def _start(self, name: str, launch: Launch, records: Records, *more: torch.Tensor | int, **constants: bool) -> None:
        tiles, count = launch.tiles, len(launch.starts)
        if not count or not records.count:
            return
        blocks = records.blocks if records.blocks is not None else launch.starts  # not read in this case
        getattr(self._kernels, name)[(count * records.count,)](
            self._typed(self.memory, launch),
            launch.starts,
            launch.strides,
            launch.lengths,
            launch.kinds,
            count,
            blocks,
            records.keys,
            records.sources,
            records.kind_step,
            self._special,
            *more,
            UNIT=tiles.unit,
            SIZE=tiles.tile_bytes // tiles.unit,
            HAS_BLOCKS=records.blocks is not None,
            num_warps=_WARPS[tiles.tile_bytes],
            **constants,
        )

    @staticmethod
    def _typed(data: torch.Tensor, launch: Launch) -> torch.Tensor:
        return data.view(-1).view(torch.int64) if launch.tiles.unit > 1 else data.view(-1)


def upload(values: np.ndarray[tuple[int, ...], np.dtype[np.int64]], device: torch.device) -> torch.Tensor:
    """Copy to the device without waiting for what its stream is busy with."""
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    if device.type == "cpu":
        return tensor.clone()
    return tensor.pin_memory().to(device, non_blocking=True)


def triton_kernels(device: torch.device) -> ModuleType | None:
    """Return the module of the kernels where Triton can run them: compiled on a GPU, interpreted on a CPU if that was asked for."""
    if importlib.util.find_spec("triton") is None or (device.type == "cpu") is not _interpreting():
        return None
    return importlib.import_module("kvverify.arena.payload_triton")


def _interpreting() -> bool:
    """Is everything interpreted? What was imported before the variable was set stays compiled, and the two do not mix."""
    language = sys.modules.get("triton.language")
    asked = os.environ.get("TRITON_INTERPRET") == "1"
    return asked and (language is None or type(language.sum).__name__ == "InterpretedFunction")
