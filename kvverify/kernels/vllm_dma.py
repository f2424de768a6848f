"""Adapter over ``DmaCopyBackend``, the copy backend of vLLM's SimpleCPUOffloadConnector, with its background thread."""

from __future__ import annotations

import functools
import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.vllm_library import batch_call, gpu_provenance, import_vllm, require_gpu, require_names
from kvverify.kernels.vllm_pages import block_tensor, canonical_pages

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

_POLL_S = 50e-6  # the copies wait for the thread that launches them: microseconds
_PACKAGE = "vllm.v1.simple_kv_offload"


@dataclass(frozen=True, slots=True)
class _Library:
    copy_backend: Any
    cuda_mem_ops: Any


@functools.cache
def _load() -> _Library:
    """Import the backend and look its driver call up.

    Raises:
        EnvironmentProblem: vLLM, a GPU, cuda-bindings or the driver's batch call is missing.
    """
    require_gpu(VllmDmaBackend.name)
    library = _Library(import_vllm(f"{_PACKAGE}.copy_backend"), import_vllm(f"{_PACKAGE}.cuda_mem_ops"))
    require_names(library.copy_backend, ["DmaCopyBackend"])
    require_names(library.cuda_mem_ops, ["pin_tensor", "_resolve_batch_memcpy"])
    torch.cuda.init()  # type: ignore[no-untyped-call]  # the driver is asked for the call
    try:
        library.cuda_mem_ops._resolve_batch_memcpy()
    except ImportError as error:
        raise EnvironmentProblem(f"vllm-dma: {error}; install cuda-bindings of the driver's CUDA version") from error
    except RuntimeError as error:
        raise EnvironmentProblem(f"vllm-dma: {error}; it needs a driver for CUDA 12.8, or ROCm 7.1") from error
    return library


@dataclass(slots=True)
class _Direction:
    """Copies of one direction: how many were issued, and the events that the thread recorded behind those it launched."""

    issued: int = 0
    events: list[tuple[int, Any]] = field(default_factory=list)


_free_tiers: dict[int, torch.Tensor] = {}  # pinned host memory by size, int8 [size], that no instance uses


class VllmDmaBackend:
    """``launch_copy`` of one backend, called as ``SimpleCPUOffloadWorker`` calls it.

    A thread takes copies from a queue and launches each with one driver call on one of two streams of low priority. Its contract
    with the compute stream, as its code has it: ``launch_copy`` orders a copy behind ``wait_event`` where it gets one, and the only
    caller, vLLM's worker, gives a store an event recorded on the compute stream and gives a load none. The docstring of that
    worker says that loads read stable host memory and launch immediately; it says nothing about readers and writers of the
    destination blocks, and nobody waits for them. So no ``caller_syncs``: a load that overtakes them is a defect of the connector
    (vllm-project/vllm#47282), not of a caller of it.

    Every copy moves the blocks of all regions, hence one layer group only. The host tier is vLLM's own arrangement, for each region
    a dense tensor [slot, block bytes], which is no row for each slot: the host side is not checked.
    """

    name = "vllm-dma"
    owns_host = True

    def __init__(self) -> None:
        self._library = _load()
        self._backend: Any = None
        self._streams: list[Any] = []
        self._stores = _Direction()
        self._loads = _Direction()
        self._compute_done: Any = None
        self._host: torch.Tensor | None = None

    def supports(self, layout: Layout) -> bool | str:
        """Every layout is served: a region for each run of a layer, or one for a packed block."""
        return True

    def prepare(self, arena: ArenaView) -> None:
        """Allocate and pin the host tier, and start the backend on two streams, as vLLM's worker does."""
        layout, slots = arena.layout, arena.host.shape[0]
        (pages,) = canonical_pages(arena)
        device = {
            f"region {i}": block_tensor(arena.layers[0], page, layout.num_blocks).view(torch.int8)
            for i, page in enumerate(pages)
        }
        host = self._pinned_tier(slots, [page.stride for page in pages])
        lowest, _ = torch.cuda.Stream.priority_range()  # type: ignore[call-arg]  # static, the stub has it otherwise
        self._streams = [torch.cuda.Stream(priority=lowest) for _ in range(2)]  # type: ignore[no-untyped-call]
        self._compute_done = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._backend = self._library.copy_backend.DmaCopyBackend()
        self._backend.init(device, dict(zip(device, host, strict=True)), arena.layers[0].device, *self._streams)

    def _pinned_tier(self, slots: int, block_bytes: Sequence[int]) -> list[torch.Tensor]:
        """Return int8 [slot, block bytes] of each region, in one allocation that vLLM's own function pins.

        It is one, and ours: memory pages can be pinned once only, and small tensors of torch share them. It stays pinned for the
        next instance, as a server's does until it ends: unmapping pinned memory makes its addresses unusable for the driver.
        """
        sizes = [-(-slots * size // mmap.PAGESIZE) * mmap.PAGESIZE for size in block_bytes]
        self._host = _free_tiers.pop(sum(sizes), None)
        if self._host is None:
            self._host = torch.frombuffer(mmap.mmap(-1, sum(sizes)), dtype=torch.int8)
            self._library.cuda_mem_ops.pin_tensor(self._host)
        parts = torch.split(self._host, sizes)
        return [part[: slots * size].view(slots, size) for part, size in zip(parts, block_bytes, strict=True)]

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int]) -> None:
        """Queue a store behind what is on the current stream now; one event serves all stores, as in vLLM's worker."""
        self._compute_done.record()
        self._launch(self._stores, list(block_ids), list(host_slots), is_store=True, wait_event=self._compute_done)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int]) -> None:
        """Queue a load, without an event, as vLLM's worker does."""
        self._launch(self._loads, list(host_slots), list(block_ids), is_store=False)

    def _launch(self, direction: _Direction, sources: list[int], targets: list[int], **how: Any) -> None:
        self._backend.launch_copy(sources, targets, event_idx=direction.issued, events_list=direction.events, **how)
        direction.issued += 1

    def done(self) -> bool:
        """Has the thread launched every copy, and has the GPU done them all?"""
        return all(
            len(way.events) == way.issued and all(event.query() for _, event in way.events)
            for way in (self._stores, self._loads)
        )

    def wait(self) -> None:
        """Wait until the thread has launched every copy, then for the events behind them.

        Raises:
            RuntimeError: the thread ended before it had; what ended it is on stderr.
        """
        for way in (self._stores, self._loads):
            while len(way.events) < way.issued:
                if not self._backend._thread.is_alive():
                    raise RuntimeError(
                        f"vllm-dma: the copy thread ended with {way.issued - len(way.events)} copies left"
                    )
                time.sleep(_POLL_S)
            for _, event in way.events:
                event.synchronize()
            way.events.clear()
            way.issued = 0

    def close(self) -> None:
        """End the thread, finish the copies and leave the host tier to the next instance."""
        if self._backend is not None:
            self._backend.shutdown()
            for stream in self._streams:
                stream.synchronize()
        if self._host is not None:
            _free_tiers[self._host.numel()] = self._host
        self._backend = self._host = self._compute_done = None
        self._streams = []

    def provenance(self) -> dict[str, Any]:
        """Version, digests of the backend's modules, and the driver call that its thread makes."""
        modules = [self._library.copy_backend, self._library.cuda_mem_ops]
        return gpu_provenance(f"DmaCopyBackend: {batch_call()} from a background thread", modules)
