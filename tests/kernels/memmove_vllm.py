"""vLLM's own Python code under the adapters on a machine without a GPU: ``ctypes.memmove`` stands for the compiled calls.

What is real: the registration of pages, the region, the worker's pointer arithmetic, the backend's thread. What is not: streams, events
and the copy itself. Run as ``python -O -m tests.kernels.memmove_vllm LAYOUT...``: the worker asserts that its tensors are on a GPU, and -O
leaves assertions out. Prints one JSON document.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import sys
from types import SimpleNamespace
from typing import Any

import torch

SOURCE_ORDERS: list[bool] = []  # is_src_access_order_any of every batch call


class Instant:
    """A stream or an event of a device that is never busy."""

    cuda_stream = 0

    def __init__(self, **_options: Any) -> None: ...

    @staticmethod
    def priority_range() -> tuple[int, int]:
        return 0, -1

    def query(self) -> bool:
        return True

    def elapsed_time(self, _other: Instant) -> float:
        return 1.0

    def nothing(self, *_: Any) -> None: ...

    record = synchronize = wait_stream = wait_event = nothing


def swap_blocks(src: torch.Tensor, dst: torch.Tensor, block_bytes: int, mapping: torch.Tensor) -> None:
    """Copy block i to block j for each row of ``mapping``, int64 [n, 2]."""
    if mapping.dtype != torch.int64 or mapping.shape[1:] != (2,):
        raise TypeError(f"mapping is {mapping.dtype} {tuple(mapping.shape)}")
    for i, j in mapping.tolist():
        ctypes.memmove(dst.data_ptr() + j * block_bytes, src.data_ptr() + i * block_bytes, block_bytes)


def swap_blocks_batch(
    src: torch.Tensor, dst: torch.Tensor, sizes: torch.Tensor, is_src_access_order_any: bool = False
) -> None:
    """Copy ``sizes[i]`` bytes from ``src[i]`` to ``dst[i]``, int64 [n] each."""
    if {t.dtype for t in (src, dst, sizes)} != {torch.int64} or not src.shape == dst.shape == sizes.shape:
        raise TypeError(f"src {src.dtype} {src.shape}, dst {dst.dtype} {dst.shape}, sizes {sizes.dtype} {sizes.shape}")
    SOURCE_ORDERS.append(is_src_access_order_any)
    for source, destination, size in zip(src.tolist(), dst.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(destination, source, size)


def driver_call(dst: int, src: int, sizes: int, count: int, *_: Any) -> int:
    """The driver's batched copy: addresses of three arrays of ``count`` 64-bit numbers."""
    arrays = [(ctypes.c_uint64 * count).from_address(a) for a in (dst, src, sizes)]
    for destination, source, size in zip(*arrays, strict=True):
        ctypes.memmove(destination, source, size)
    return 0


def install() -> None:
    """Put the substitutes where vLLM and the adapters look."""
    cuda: Any = torch.cuda
    cuda.Stream = cuda.Event = Instant
    cuda.cudart = lambda: SimpleNamespace(cudaHostUnregister=lambda _address: None)
    setattr(torch, "Event", Instant)  # noqa: B010 - typed as a class
    platform = importlib.import_module("vllm.platforms").current_platform
    for name, value in {
        "Stream": Instant,
        "stream": lambda _stream: contextlib.nullcontext(),
        "current_stream": Instant,
        "set_device": lambda _device: None,
    }.items():
        object.__setattr__(platform, name, value)
    ops: Any = importlib.import_module("vllm._custom_ops")
    ops.swap_blocks, ops.swap_blocks_batch = swap_blocks, swap_blocks_batch
    memory: Any = importlib.import_module("vllm.v1.simple_kv_offload.cuda_mem_ops")
    memory._batch_memcpy, memory.pin_tensor = (driver_call, 1), lambda _tensor: None
    worker: Any = importlib.import_module("vllm.v1.kv_offload.cpu.gpu_worker")
    worker.PIN_MEMORY = False

    from kvverify.kernels import vllm_dma, vllm_offload, vllm_swap

    adapters: tuple[Any, ...] = (vllm_dma, vllm_offload, vllm_swap)
    for module in adapters:
        module.gpu_provenance = lambda path, _modules: {"library": "vllm", "path": path}
        module.batch_call = lambda: "memmove"
    adapters[1].compiled_ops = adapters[2].compiled_ops = lambda _kernel, _names: ops
    adapters[1].check_pinned = lambda _region: None
    backend = importlib.import_module("vllm.v1.simple_kv_offload.copy_backend")
    adapters[0]._load = lambda: vllm_dma._Library(backend, memory)


def parts(kernel: Any, layout: Any) -> int:
    """Store one slot that is not full, load what follows its first block; return the number of wrong bytes."""
    from tests.gpu.device_arena import content_positions, make_device_arena, padding_positions

    arena = make_device_arena(layout, host_slots=2, blocks_per_slot=kernel.blocks_per_slot, device="cpu")
    kernel.prepare(arena)
    last = layout.num_blocks - 1
    kernel.store([0, 1], [1])
    kernel.store([last], [0])
    kernel.wait_for_copies()
    want = arena.memory.clone()
    for source, target in ((1, last - 1), (last, 0)):
        want[content_positions(layout, 0, [target])] = arena.memory[content_positions(layout, 0, [source])]
    kernel.load_part(1, 1, [last - 1])
    kernel.load([0], [0])
    kernel.wait_for_copies()
    kernel.close()
    differs = arena.memory != want
    differs[padding_positions(layout, 0, [last - 1, 0])] = False
    return int(differs.sum())


def drive(kind: Any, layouts: list[Any]) -> dict[str, Any]:
    """Take a kernel through round trips of ``layouts`` and, where it has parts, of parts of slots."""
    from tests.gpu.device_arena import round_trip

    if hasattr(kind(), "_stream"):
        kind.wait = lambda _self: None  # it synchronises a stream that is None here
    kind.wait_for_copies = kind.wait
    SOURCE_ORDERS.clear()
    served = [x for x in layouts if len(x.groups) == 1 or getattr(kind, "groups", False)]
    wrong = 0
    for layout in served:
        round_trip(kind(), layout, device="cpu")
        if hasattr(kind, "load_part") and len(layout.groups) == 1:
            wrong += parts(kind(), layout)
    return {"layouts": len(served), "wrong": wrong, "source_orders": SOURCE_ORDERS[:2]}


def main(names: list[str]) -> dict[str, dict[str, Any]]:
    """Drive all adapters; what :func:`drive` says, by kernel name."""
    install()
    from kvverify.kernels.vllm_dma import VllmDmaBackend
    from kvverify.kernels.vllm_offload import VllmOffloadWorker
    from kvverify.kernels.vllm_swap import VllmSwapBlocks, VllmSwapBlocksBatch
    from kvverify.layout.place import place
    from kvverify.layout.pool import campaign_pool

    layouts = [layout for layout in map(place, campaign_pool()) if layout.name in names]
    return {
        kind.name: drive(kind, layouts)
        for kind in (VllmSwapBlocks, VllmSwapBlocksBatch, VllmOffloadWorker, VllmDmaBackend)
    }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
