"""Adapter over vLLM's native offload worker, ``CPUOffloadingWorker``, with the host memory of production, ``SharedOffloadRegion``.

Both are called by position: versions 0.26 and 0.32 take the same arguments in the same order under different names
(``num_cpu_blocks`` and ``num_cpu_chunks``, ``kv_bytes_per_block`` and ``kv_bytes_per_chunk``).
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvverify.kernels.vllm_library import batch_call, compiled_ops, gpu_provenance, import_vllm, require_names
from kvverify.kernels.vllm_pages import Page, block_tensor, canonical_pages, canonical_runs
from kvverify.kernels.vllm_region import check_pinned, make_region, rows_of

if TYPE_CHECKING:
    from kvverify.kernels.contract import ArenaView
    from kvverify.layout.placement import Layout

_WORD_BYTES = 8  # the Triton kernel reads words
_RULE = "_select_swap_blocks_fn in vllm/v1/kv_offload/cpu/gpu_worker.py"


@dataclass(frozen=True, slots=True)
class _Library:
    """vLLM's modules, by the last part of their names."""

    ops: Any  # vllm._custom_ops
    base: Any
    common: Any
    gpu_worker: Any
    swap_blocks_triton: Any


@functools.cache
def _load() -> _Library:
    ops = compiled_ops(VllmOffloadWorker.name, ["swap_blocks_batch"])
    package = "vllm.v1.kv_offload"
    library = _Library(
        ops,
        import_vllm(f"{package}.base"),
        import_vllm(f"{package}.cpu.common"),
        import_vllm(f"{package}.cpu.gpu_worker"),
        import_vllm(f"{package}.cpu.swap_blocks_triton"),
    )
    names = ("CanonicalKVCacheRef", "CanonicalKVCaches", "CanonicalKVCacheTensor", "GPULoadStoreSpec")
    require_names(library.base, names)
    require_names(library.common, ["CPULoadStoreSpec"])
    require_names(library.gpu_worker, ["CPUOffloadingWorker"])
    require_names(library.swap_blocks_triton, ["MIN_N", "THRESHOLD_BYTES"])
    return library


class VllmOffloadWorker:
    """``submit_store`` and ``submit_load`` of one worker (rank 0 of 1), a chunk of two blocks a host slot.

    The worker copies on streams of its own, one at a time in each direction. Its contract with the compute stream, as its code
    has it: a store waits for the stream that is current when it is submitted (both versions). A load does so in 0.32, whose
    comment says why: writes to the destination blocks may be pending, and nothing else orders them against the copy. In 0.26 a load
    waits for nothing, no docstring hands that to the caller, and vLLM's own caller (``start_kv_transfers``) does not wait either.
    So no ``caller_syncs``: a load of 0.26 that overtakes a reader or writer of its destinations breaks what 0.32 states.
    The two directions are not ordered against each other, nor is the compute stream behind them: the caller asks ``get_finished`` or
    calls ``wait``, which synchronises the host with the transfer's event.

    Stores go through ``swap_blocks_batch``. Loads too, or through the Triton kernel where vLLM selects it: all pages smaller
    than 28 KiB and multiples of 8 bytes, and 16 descriptors or more. Host slot: vLLM's own row, for each page a padded sub-block of
    the first block and one of the second; the row is rounded up to 4,096 bytes.
    """

    name = "vllm-offload"
    groups = True
    partial_slots = True
    blocks_per_slot = 2

    def __init__(self) -> None:
        self._library = _load()
        self._worker: Any = None
        self._region: Any = None
        self._pages_of: list[int] = []  # canonical pages of each group
        self._jobs = itertools.count(1)
        self._pending: set[int] = set()
        self._ran: Counter[str] = Counter()

    def supports(self, layout: Layout) -> bool | str:
        """True, except where the Triton kernel would be selected for addresses that no GPU can read as words."""
        runs = [(offset + run.start, run) for group in canonical_runs(layout) for offset, run in group]
        kernel = self._library.swap_blocks_triton
        if not selects_triton([run.size for _, run in runs], kernel.THRESHOLD_BYTES):
            return True
        for start, run in runs:
            if start % _WORD_BYTES or run.stride % _WORD_BYTES:
                return (
                    f"a page begins at {start}, block stride {run.stride}: vLLM selects its Triton kernel by page sizes alone, and "
                    f"means it for 8-byte-aligned payloads ({_RULE})"
                )
        return True

    def prepare(self, arena: ArenaView) -> torch.Tensor:
        """Make the shared region and a worker over it; return the region, uint8 [slots, row bytes].

        Raises:
            EnvironmentProblem: the region cannot be made or pinned here.
        """
        pages = canonical_pages(arena)
        tensors = list(dict.fromkeys((page.address, page.stride) for group in pages for page in group))
        region = self._region = make_region(
            arena.host.shape[0], self.blocks_per_slot * sum(size for _, size in tensors)
        )
        caches = self._caches(arena, pages, tensors)
        self._worker = self._library.gpu_worker.CPUOffloadingWorker(
            caches, self.blocks_per_slot, arena.host.shape[0], region
        )
        check_pinned(region)
        self._pages_of = [len(group) for group in pages]
        if self._triton_loads():
            self._compile(arena.stream)
        return rows_of(region)

    def _triton_loads(self) -> bool:
        """Did the worker select the Triton kernel for loads? It then holds it with the chunk size filled in."""
        return isinstance(self._worker._load_handler._swap_blocks_batch, functools.partial)

    def _compile(self, stream: Any) -> None:
        """Launch with sizes of 0, which copies nothing: loading code later may wait for a busy device, and hide a race."""
        for count in (self._library.swap_blocks_triton.MIN_N, self._library.swap_blocks_triton.MIN_N + 1):
            nothing = torch.zeros(count, dtype=torch.int64)
            self._worker._load_handler._swap_blocks_batch(nothing, nothing, nothing)
        stream.synchronize()

    def _caches(self, arena: ArenaView, pages: list[list[Page]], tensors: list[tuple[int, int]]) -> Any:
        """What vLLM's connector registers: int8 [block, padded page], and for each group which tensors its blocks use."""
        base = self._library.base
        views = {
            (page.address, page.stride): block_tensor(arena.layers[0], page, arena.layout.num_blocks).view(torch.int8)
            for group in pages
            for page in group
        }
        return base.CanonicalKVCaches(
            [base.CanonicalKVCacheTensor(views[key], key[1]) for key in tensors],
            [
                [base.CanonicalKVCacheRef(tensors.index((page.address, page.stride)), page.size) for page in group]
                for group in pages
            ],
        )

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        """Submit one store; slot j takes ``block_ids[2 * j : 2 * j + 2]``."""
        job = self._next_job()
        device = self._device_blocks(block_ids, group, 0)
        self._worker.submit_store(job, device, self._library.common.CPULoadStoreSpec(list(host_slots)))
        self._ran["store: swap_blocks_batch"] += 1

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        """Submit one load, paired as in :meth:`store`."""
        self._submit_load(host_slots, block_ids, group, 0)

    def load_part(self, slot: int, first: int, block_ids: Sequence[int], *, group: int = 0) -> None:
        """Submit a load that begins inside a chunk, as after a hit in the engine's prefix cache: block ``first`` of a request."""
        self._submit_load([slot], block_ids, group, first)

    def _submit_load(self, host_slots: Sequence[int], block_ids: Sequence[int], group: int, first: int) -> None:
        job = self._next_job()
        device = self._device_blocks(block_ids, group, first)
        self._worker.submit_load(job, self._library.common.CPULoadStoreSpec(list(host_slots)), device)
        many = len(block_ids) * self._pages_of[group] >= self._library.swap_blocks_triton.MIN_N
        self._ran["load: Triton" if many and self._triton_loads() else "load: swap_blocks_batch"] += 1

    def _next_job(self) -> int:
        job = next(self._jobs)
        self._pending.add(job)
        return job

    def _device_blocks(self, block_ids: Sequence[int], group: int, first: int) -> Any:
        """Describe ``block_ids`` of one group as vLLM does; the first of them is block ``first`` of its request."""
        counts = [len(block_ids) if g == group else 0 for g in range(len(self._pages_of))]
        indices = [first if g == group else 0 for g in range(len(self._pages_of))]
        return self._library.base.GPULoadStoreSpec(list(block_ids), counts, indices)

    def done(self) -> bool:
        """Ask the worker which transfers have finished; True when all have."""
        for result in self._worker.get_finished():
            if not result.success:
                raise RuntimeError(f"vllm-offload: the worker reports job {result.job_id} as failed")
            self._pending.discard(result.job_id)
        return not self._pending

    def wait(self) -> None:
        """Wait for all pending transfers as vLLM does before it lets blocks go: by job, in the worker."""
        self._worker.wait(set(self._pending))
        self.done()

    def close(self) -> None:
        """Shut the worker down, which finishes its transfers and gives the region back."""
        if self._worker is not None:
            # its rows are still looked at: the mapping ends with the last of them, and cannot be closed before
            self._region.mmap_obj = None
            self._worker.shutdown()
        self._worker = self._region = None

    def provenance(self) -> dict[str, Any]:
        """Version, digests, what copies in each direction, and how many calls went which way so far."""
        kernel = self._library.swap_blocks_triton
        loads = (
            f"the Triton kernel (pages < {kernel.THRESHOLD_BYTES} bytes, multiples of 8; {kernel.MIN_N} descriptors or more), else "
            f"swap_blocks_batch"
        )
        files = [self._library.ops, self._library.gpu_worker, kernel]
        found = gpu_provenance(f"stores by swap_blocks_batch ({batch_call()}), loads by {loads}", files)
        return {**found, "calls": dict(self._ran)}


def selects_triton(page_bytes: Sequence[int], threshold: int) -> bool:
    """Return whether vLLM loads such pages with its Triton kernel, given enough of them: all below ``threshold``, all words."""
    return max(page_bytes) < threshold and not any(size % _WORD_BYTES for size in page_bytes)
