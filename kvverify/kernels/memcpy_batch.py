"""The simplest honest GPU kernels: raw asynchronous memcpy of every contiguous run of a block, on ``arena.stream``.

Any layout is served; where heads lie outside of blocks there are many short runs. Copies wait for what the stream was given
before and hold up what it is given afterwards, so nobody has to synchronise, and effects come in the order of the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels import memcpy_driver, memcpy_runs
from kvverify.kernels.memcpy_driver import CopyCall, async_call, batch_call
from kvverify.kernels.memcpy_runs import HostRows, RunAddresses, Words
from kvverify.kernels.provenance import file_digests

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout


class _RunCopy:
    """Everything but the call that copies."""

    name: str
    groups = True
    ordered = True  # a stream runs batches and copies in the order in which they were enqueued
    partial_slots = True

    def __init__(self, call: CopyCall, library_file: Path, blocks_per_slot: int) -> None:
        self.blocks_per_slot = blocks_per_slot
        self._call = call
        self._library_file = library_file
        self._runs: list[RunAddresses] = []  # of each group
        self._stream: Any = None
        self._copied: Any = None  # event after the last copy

    def supports(self, layout: Layout) -> bool | str:
        """Every layout is served."""
        return True

    def prepare(self, arena: ArenaView) -> None:
        """Take the addresses of the layers and of the host rows.

        Raises:
            EnvironmentProblem: the arena is not on a GPU.
            ValueError: a host slot is too small for a block.
        """
        if arena.stream is None:
            raise EnvironmentProblem(
                f"{self.name} copies on a GPU's stream, and this arena is on the CPU: --device cuda"
            )
        self._stream = arena.stream
        self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
        host = HostRows(arena.host.data_ptr(), arena.host.stride(0), arena.host.shape[1], self.blocks_per_slot)
        self._runs = [
            RunAddresses(arena.layout, group.index, [view.data_ptr() for view in views], host)
            for group, views in zip(arena.layout.groups, arena.group_layers, strict=True)
        ]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Copy device blocks to host slots, paired by position."""
        device, host, sizes = self._runs[group].pairs(block_ids, host_slots)
        self._copy(host, device, sizes)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy host slots to device blocks, paired by position."""
        device, host, sizes = self._runs[group].pairs(block_ids, host_slots)
        self._copy(device, host, sizes)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Copy some of a slot's blocks, from the one at ``first`` on, to device blocks."""
        device, host, sizes = self._runs[group].pairs(block_ids, [slot], first)
        self._copy(device, host, sizes)

    def _copy(self, destinations: Words, sources: Words, sizes: Words) -> None:
        self._call(destinations, sources, sizes, self._stream.cuda_stream)
        self._copied.record(self._stream)

    def done(self) -> bool:
        """Are all copies issued so far complete?"""
        return bool(self._copied.query())

    def wait(self) -> None:
        """Return when all copies issued so far are complete; what the stream was given after them is not waited for."""
        self._copied.synchronize()

    def close(self) -> None:
        """Forget the arena's addresses."""
        self._runs = []
        self._stream = self._copied = None

    def provenance(self) -> dict[str, Any]:
        """The entry point, the version of the library that holds it, and digests of it and of this adapter."""
        return {
            "library": self._call.library,
            "version": self._call.version,
            "path": f"{self._call.name} through ctypes",
            "device": torch.cuda.get_device_name(),
            "files": file_digests(
                [__file__, memcpy_driver.__file__, memcpy_runs.__file__, str(self._library_file.resolve())]
            ),
        }


class BatchMemcpy(_RunCopy):
    """One batched asynchronous memcpy a call: the CUDA driver's, or HIP's in pieces of 8,192 copies.

    Raises:
        EnvironmentProblem: no GPU, or a driver older than CUDA 12.8 or ROCm 7.1.
    """

    name = "memcpy-batch"

    def __init__(self, blocks_per_slot: int = 1) -> None:
        super().__init__(*batch_call(), blocks_per_slot)


class AsyncMemcpy(_RunCopy):
    """One asynchronous memcpy for every run.

    Raises:
        EnvironmentProblem: no GPU, or torch's runtime library cannot be found in this process.
    """

    name = "memcpy-async"

    def __init__(self, blocks_per_slot: int = 1) -> None:
        super().__init__(*async_call(), blocks_per_slot)
