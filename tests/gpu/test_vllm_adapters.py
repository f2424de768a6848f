"""vLLM's copy kernels on a real GPU: every byte of a round trip, the native path, and no stop of the host."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.registry import supports_reason
from kvverify.kernels.vllm_dma import VllmDmaBackend
from kvverify.kernels.vllm_offload import VllmOffloadWorker
from kvverify.kernels.vllm_swap import VllmSwapBlocks, VllmSwapBlocksBatch
from kvverify.kernels.vllm_triton import VllmTritonSwap
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe

ADAPTERS = [VllmSwapBlocks, VllmSwapBlocksBatch, VllmOffloadWorker, VllmDmaBackend, VllmTritonSwap]
POOL = [place(recipe) for recipe in campaign_pool() if recipe.usable_blocks is None]
SPIN_CYCLES = 1_000_000_000  # about half a second
Make = Callable[[Callable[[], CopyKernel]], CopyKernel]
RoundTrip = Callable[[CopyKernel, Layout], None]


@pytest.mark.parametrize("layout", POOL[::3], ids=lambda layout: layout.name)
@pytest.mark.parametrize("adapter", ADAPTERS)
def test_every_byte_arrives(make_kernel: Make, round_trip: RoundTrip, adapter: Any, layout: Layout) -> None:
    kernel = make_kernel(adapter)
    reason = supports_reason(kernel, layout)
    if reason is not None:
        pytest.skip(reason)
    if len(layout.groups) > 1 and not getattr(kernel, "groups", False):
        pytest.skip("several block tables")
    if len(layout.blocks) < getattr(kernel, "blocks_per_slot", 1):
        pytest.skip("fewer blocks than a slot holds: round_trip makes full slots only")
    round_trip(kernel, layout)


@pytest.mark.parametrize("heads", [6, 7])  # pages of 24,576 and 28,672 bytes: below and at the threshold
@pytest.mark.parametrize("layers", [1, 4])  # 8 and 32 descriptors for 8 blocks: below and above 16
def test_the_worker_takes_the_path_it_says(make_kernel: Make, round_trip: RoundTrip, heads: int, layers: int) -> None:
    kernel: Any = make_kernel(VllmOffloadWorker)
    round_trip(kernel, place(Recipe((LayerRecipe("bf16", heads, 64, count=layers),), num_blocks=24)))
    triton = heads == 6 and layers == 4
    assert kernel.provenance()["calls"] == {
        "store: swap_blocks_batch": 1,
        "load: Triton" if triton else "load: swap_blocks_batch": 1,
    }


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_provenance_names_the_native_code(make_kernel: Make, adapter: Any) -> None:
    kernel: Any = make_kernel(adapter)
    provenance = kernel.provenance()
    assert provenance["library"] == "vllm"
    assert provenance["device"]
    assert provenance["files"]
    if adapter is VllmTritonSwap:
        assert "compiled" in provenance["path"]
        assert kernel.slow is False
    else:
        assert any(name.endswith(".so") for name in provenance["files"])


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_calls_return_while_the_stream_is_busy(make_kernel: Make, torch: ModuleType, adapter: Any) -> None:
    """A call that waits for the stream would hide every race. The second call counts: the first may allocate."""
    from tests.gpu.device_arena import make_device_arena

    kernel: Any = make_kernel(adapter)
    k = getattr(kernel, "blocks_per_slot", 1)
    arena = make_device_arena(place(Recipe((LayerRecipe("bf16", 2, 64, count=4),), num_blocks=16)), 4, k)
    with arena.current():
        kernel.prepare(arena)
        for slot in (0, 1):
            if slot:
                torch.cuda._sleep(SPIN_CYCLES)
                behind = torch.cuda.Event()
                behind.record()
            kernel.store(list(range(k)), [slot])
            if slot:
                assert not behind.query(), "the store returned only when the stream had come to an end"
            kernel.wait()
        kernel.load([0], list(range(k)))
        kernel.wait()
        torch.cuda._sleep(SPIN_CYCLES)
        behind = torch.cuda.Event()
        behind.record()
        kernel.load([1], list(range(k)))
        assert not behind.query(), "the load returned only when the stream had come to an end"
        kernel.wait()
        kernel.close()


@pytest.mark.parametrize("adapter", [VllmSwapBlocks, VllmOffloadWorker])
def test_parts_of_slots(make_kernel: Make, adapter: Any) -> None:
    from tests.gpu.device_arena import content_positions, make_device_arena

    kernel: Any = make_kernel(adapter)
    layout = place(Recipe((LayerRecipe("bf16", 2, 64), LayerRecipe("turboquant_4bit_nc", 2, 128, count=2))))
    arena = make_device_arena(layout, 4, kernel.blocks_per_slot)
    with arena.current():
        kernel.prepare(arena)
        kernel.store([2, 5], [3])
        kernel.store([7], [1])
        kernel.wait()
        want = arena.memory.clone()
        for source, target in ((5, 0), (7, 6)):
            want[content_positions(layout, 0, [target])] = arena.memory[content_positions(layout, 0, [source])]
        kernel.load_part(3, 1, [0])
        kernel.load([1], [6])
        kernel.wait()
        assert int((arena.memory != want).sum()) == 0
        kernel.close()


@pytest.mark.parametrize("adapter", [VllmOffloadWorker, VllmDmaBackend])
def test_done_comes_after_the_copy(make_kernel: Make, torch: ModuleType, adapter: Any) -> None:
    """Stores of both are ordered behind the compute stream, so none can be done while that is busy."""
    from tests.gpu.device_arena import make_device_arena

    kernel: Any = make_kernel(adapter)
    k = getattr(kernel, "blocks_per_slot", 1)
    arena = make_device_arena(place(Recipe((LayerRecipe("bf16", 2, 64, count=2),))), 2, k)
    with arena.current():
        kernel.prepare(arena)
        kernel.store(list(range(k)), [0])
        kernel.wait()
        assert kernel.done()
        torch.cuda._sleep(SPIN_CYCLES)
        kernel.store(list(range(k)), [1])
        assert not kernel.done()
        kernel.wait()
        assert kernel.done()
        kernel.close()
