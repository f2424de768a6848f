"""The raw memcpy kernels on a GPU: bytes, order behind the stream, completion, errors."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.memcpy_batch import AsyncMemcpy, BatchMemcpy
from kvverify.kernels.memcpy_driver import async_call, batch_call
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.gpu.device_arena import make_device_arena, round_trip
from tests.kernels.recipes import RECIPES

KERNELS = pytest.mark.parametrize("factory", [BatchMemcpy, AsyncMemcpy])
Factory = Callable[[], CopyKernel]
MakeKernel = Callable[[Factory], CopyKernel]
SPIN_CYCLES = 200_000_000  # about 0.1 s


@KERNELS
@pytest.mark.parametrize("name", RECIPES)
def test_every_layout_round_trips(make_kernel: MakeKernel, factory: Factory, name: str) -> None:
    round_trip(make_kernel(factory), place(RECIPES[name]))


@KERNELS
def test_dense_layouts_of_campaigns_round_trip(make_kernel: MakeKernel, factory: Factory) -> None:
    for number, recipe in enumerate(campaign_pool()):
        if recipe.usable_blocks is None:
            round_trip(make_kernel(factory), place(recipe), seed=number)


@KERNELS
@pytest.mark.parametrize("name", RECIPES)
def test_four_blocks_a_slot_round_trip(make_kernel: MakeKernel, factory: type, name: str) -> None:
    round_trip(make_kernel(lambda: factory(4)), place(RECIPES[name]))


@KERNELS
def test_more_than_8192_copies_in_a_call(make_kernel: MakeKernel, factory: Factory) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 8, 64, count=40),), "LHBNC", num_blocks=70, block_tokens=1))
    round_trip(make_kernel(factory), layout, host_slots=40, slots_per_call=32)


@KERNELS
def test_copies_wait_for_the_producer_and_done_tells_the_truth(make_kernel: MakeKernel, factory: Factory) -> None:
    arena = make_device_arena(place(RECIPES["mixed BLNHC"]))
    kernel = make_kernel(factory)
    with arena.current():
        kernel.prepare(arena)
        arena.memory.fill_(1)
        t.cuda.synchronize()
        t.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]
        arena.memory.fill_(7)
        kernel.store([0, 1], [2, 3])
        arena.memory.fill_(9)  # the source is reused behind the store, without waiting
        kernel.load([2, 3], [4, 5])
        assert not kernel.done()  # type: ignore[attr-defined]
        kernel.wait()
        assert kernel.done()  # type: ignore[attr-defined]
        kernel.store([4, 5], [0, 1])
        kernel.wait()
        length = arena.layout.layers[0].page_bytes
        assert (arena.host[:4, :length] == 7).all()
        kernel.close()


@KERNELS
def test_the_path_that_ran_is_told_with_the_digest_of_its_library(make_kernel: MakeKernel, factory: Factory) -> None:
    told = make_kernel(factory).provenance()  # type: ignore[attr-defined]
    assert "MemcpyBatchAsync" in told["path"] or "MemcpyAsync" in told["path"]
    assert any(name.startswith(("libcuda", "libamdhip64")) for name in told["files"])


def test_the_driver_says_no_with_a_name(make_kernel: MakeKernel) -> None:
    make_kernel(AsyncMemcpy)
    call, _ = async_call()
    arena = make_device_arena(place(RECIPES["bf16 LBNHC"]))
    to, source, size = (np.array([n], np.uint64) for n in (arena.host.data_ptr(), arena.memory.data_ptr(), 1 << 40))
    with pytest.raises(RuntimeError, match=r"MemcpyAsync with 1 copies: \w+ \(\d+\), copy 0 of 1099511627776 bytes"):
        call(to, source, size, arena.stream.cuda_stream)
    arena.memory.fill_(1)  # torch finds no error left behind


def test_a_batch_on_the_null_stream_is_refused(make_kernel: MakeKernel) -> None:
    if t.version.hip:
        pytest.skip("only CUDA documents that a batch must not go to the null stream")
    make_kernel(BatchMemcpy)
    call, _ = batch_call()
    arena = make_device_arena(place(RECIPES["bf16 LBNHC"]))
    to, source, size = (np.array([n], np.uint64) for n in (arena.host.data_ptr(), arena.memory.data_ptr(), 64))
    with pytest.raises(RuntimeError, match=r"cuMemcpyBatchAsync\w* with 1 copies: CUDA_ERROR_\w+ \(\d+\)"):
        call(to, source, size, 0)
