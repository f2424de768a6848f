"""What all adapters over LMCache's chunks have in common: stores, loads and partial loads are one copy in either direction."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvverify.kernels.lmcache_library import Library


class ChunkKernel(ABC):
    """A kernel whose host slots hold a chunk of ``blocks_per_slot`` blocks of one layer group."""

    name: str
    groups = True
    blocks_per_slot = 2

    def __init__(self, lib: Library) -> None:
        self.lib = lib

    @abstractmethod
    def transfer(self, ids: Sequence[int], slots: Sequence[int], group: int, skip_blocks: int, way: Any) -> None:
        """Copy between blocks ``ids`` and ``slots``, but for the first ``skip_blocks`` blocks; ``way`` is a TransferDirection."""

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks of blocks to host slots."""
        self.transfer(block_ids, host_slots, group, 0, self.lib.native.TransferDirection.D2H)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy full chunks from host slots to blocks."""
        self.transfer(block_ids, host_slots, group, 0, self.lib.native.TransferDirection.H2D)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy what follows sub-block ``first``.

        LMCache is given ids for the skipped blocks too, as it is when the engine's prefix cache holds them; here they repeat
        the first destination.
        """
        ids = [block_ids[0]] * first + list(block_ids)
        self.transfer(ids, [slot], group, first, self.lib.native.TransferDirection.H2D)
