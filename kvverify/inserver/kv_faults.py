"""Transport faults planted into blocks that a connector has just loaded. Needs torch alone; the vLLM side is fault_connector."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FAULTS = {
    "wrong-block": "the last block that was loaded holds the first one's bytes",
    "dropped-load": "nothing is copied, and success is reported",
    "stale-block": "the last block that was loaded holds what another request loaded before",
    "swapped-layers": "two layers exchange their bytes",
    "flipped-byte": "one byte of one layer of one block is inverted",
    "late-load": "the bytes arrive half a second after they were reported to be there",
}
_LATE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What one request loads: for each layer group the blocks that are written. Built from plain values, since it is pickled."""

    request: str
    blocks: tuple[tuple[int, ...], ...]
    asynchronous: bool


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes of blocks: for each group, for each of its layers, [blocks, ...]."""

    blocks: tuple[tuple[int, ...], ...]
    bytes_: list[list[torch.Tensor]]


class Planter:
    """Plants the fault that is switched on, into KV tensors by block.

    Args:
        groups: for each layer group its tensors with the block as first dimension (``kv_blocks.by_block``).
    """

    def __init__(self, groups: Sequence[Sequence[torch.Tensor]]) -> None:
        self._groups = groups
        self.name = ""
        self.planted = 0
        self._before: dict[str, _Copy] = {}
        self._late: list[tuple[float, _Copy]] = []
        self._now = 0.0
        self._stale: tuple[str, int, list[torch.Tensor]] | None = None

    def switch(self, name: str) -> None:
        """Plant ``name`` from now on, or nothing if it is empty. What is still to arrive late never does.

        Raises:
            ValueError: there is no such fault.
        """
        if name and name not in FAULTS:
            raise ValueError(f"no fault {name!r}; valid: {', '.join(FAULTS)}")
        self.name, self.planted, self._stale = name, 0, None
        self._before.clear()
        self._late.clear()

    def before(self, load: Load) -> None:
        """Note what the blocks of ``load`` hold before it."""
        if self.name in ("dropped-load", "late-load"):
            self._before[load.request] = self._copy(load.blocks)

    def after(self, load: Load, now: float | None = None) -> None:
        """Plant the fault into the blocks of ``load``, all of which have arrived."""
        plant = {
            "wrong-block": self._wrong_block,
            "dropped-load": self._dropped,
            "stale-block": self._stale_block,
            "swapped-layers": self._swapped_layers,
            "flipped-byte": self._flipped_byte,
            "late-load": self._late_load,
        }.get(self.name)
        self._now = time.monotonic() if now is None else now
        if plant is not None and plant(load):
            self.planted += 1

    def catch_up(self, now: float | None = None) -> None:
        """Let arrive what is late, if its time has come."""
        now = time.monotonic() if now is None else now
        for _, copy in [late for late in self._late if late[0] <= now]:
            self._put(copy)
        self._late = [late for late in self._late if late[0] > now]

    def _copy(self, blocks: tuple[tuple[int, ...], ...]) -> _Copy:
        kept = [[view[list(ids)].clone() for view in views] for views, ids in zip(self._groups, blocks, strict=True)]
        return _Copy(blocks, kept)

    def _put(self, copy: _Copy) -> None:
        for views, ids, kept in zip(self._groups, copy.blocks, copy.bytes_, strict=True):
            for view, content in zip(views, kept, strict=True):
                view[list(ids)] = content

    def _wrong_block(self, load: Load) -> bool:
        for views, ids in zip(self._groups, load.blocks, strict=True):
            if len(ids) > 1:
                for view in views:
                    view[ids[-1]] = view[ids[0]].clone()
                return True
        return False

    def _dropped(self, load: Load) -> bool:
        before = self._before.pop(load.request, None)
        if before is not None:
            self._put(before)
        return before is not None

    def _stale_block(self, load: Load) -> bool:
        group = next((g for g, ids in enumerate(load.blocks) if ids), None)
        if group is None:
            return False
        views, block = self._groups[group], load.blocks[group][-1]
        fresh = (load.request, group, [view[block].clone() for view in views])
        stale, self._stale = self._stale, fresh
        if stale is None or stale[0] == load.request or stale[1] != group:
            return False
        for view, content in zip(views, stale[2], strict=True):
            view[block] = content
        return True

    def _swapped_layers(self, load: Load) -> bool:
        for views, ids in zip(self._groups, load.blocks, strict=True):
            for first, second in itertools.pairwise(views):
                if ids and first.shape == second.shape and first.dtype == second.dtype:
                    kept = first[list(ids)].clone()
                    first[list(ids)] = second[list(ids)].clone()
                    second[list(ids)] = kept
                    return True
        return False

    def _flipped_byte(self, load: Load) -> bool:
        for views, ids in zip(self._groups, load.blocks, strict=True):
            if ids:
                view = views[len(views) // 2]
                place = (ids[-1], *[0] * (view.dim() - 1))
                size = view.element_size()
                # sign and exponent of a float lie in its highest byte
                view[place] ^= 0xFF if size == 1 else -(1 << (8 * size - 8))
                return True
        return False

    def _late_load(self, load: Load) -> bool:
        before = self._before.pop(load.request, None)
        if before is not None:
            self._late.append((self._now + _LATE_SECONDS, self._copy(load.blocks)))
            self._put(before)
        return before is not None
