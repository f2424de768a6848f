"""Kernels of several ranks, right and wrong; campaigns load them from this file by path.

Those whose name begins with Memcpy copy on a GPU with one asynchronous memcpy a run, from and to pinned memory; the others copy by
torch indexing, on any device.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from kvverify.faults.ranks import FirstSlice, NextSlice, RankZeroLoads, RankZeroStores, SharedTier
from kvverify.kernels.contract import ArenaView, CopyKernel
from kvverify.kernels.torch_reference import TorchReference


def shared_host() -> CopyKernel:
    """Right: one host tier for all ranks, of which each copies its own part."""
    return SharedTier(TorchReference())


def next_slice() -> CopyKernel:
    """Wrong: loads take the part of the next rank."""
    return NextSlice(TorchReference())


def first_slice() -> CopyKernel:
    """Wrong: all ranks use the part of rank 0."""
    return FirstSlice(TorchReference())


def rank_zero_loads() -> CopyKernel:
    """Wrong: other ranks than 0 load nothing."""
    return RankZeroLoads(TorchReference())


def rank_zero_stores() -> CopyKernel:
    """Wrong: other ranks than 0 store nothing."""
    return RankZeroStores(TorchReference())


def memcpy_shared_host() -> CopyKernel:
    """Right, as :func:`shared_host`."""
    return SharedTier(_memcpy())


def memcpy_next_slice() -> CopyKernel:
    """Wrong, as :func:`next_slice`."""
    return NextSlice(_memcpy())


def memcpy_first_slice() -> CopyKernel:
    """Wrong, as :func:`first_slice`."""
    return FirstSlice(_memcpy())


def memcpy_rank_zero_loads() -> CopyKernel:
    """Wrong, as :func:`rank_zero_loads`."""
    return RankZeroLoads(_memcpy())


def memcpy_rank_zero_stores() -> CopyKernel:
    """Wrong, as :func:`rank_zero_stores`."""
    return RankZeroStores(_memcpy())


def _memcpy() -> CopyKernel:
    from kvverify.kernels.memcpy_batch import AsyncMemcpy

    return AsyncMemcpy()


class LastRankDies(TorchReference):
    """Wrong: the last rank's process ends in a store of two blocks or more."""

    name = "last-rank-dies"

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        self._is_last = arena.rank == arena.world_size - 1

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        if self._is_last and len(block_ids) >= 2:
            self.misbehave()
        super().store(block_ids, host_slots, group=group)

    def misbehave(self) -> None:
        os._exit(3)


class LastRankHangs(LastRankDies):
    """Wrong: the last rank never comes back."""

    name = "last-rank-hangs"

    def misbehave(self) -> None:
        while True:
            time.sleep(0.05)


class LastRankRaises(LastRankDies):
    """Wrong: the last rank raises."""

    name = "last-rank-raises"

    def misbehave(self) -> None:
        raise RuntimeError("not on this rank")


class LastRankRefuses(LastRankDies):
    """Takes no layout on the last rank."""

    name = "last-rank-refuses"

    def supports(self, layout: object) -> bool | str:
        last = int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1
        return "only the first ranks serve it" if last else True
