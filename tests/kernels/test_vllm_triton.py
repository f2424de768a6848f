from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from kvverify.kernels.registry import resolve, supports_reason
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.kernels.fake_arena import make_arena, make_sparse_arena, round_trip, sparse_round_trip
from tests.kernels.recipes import RECIPES

REFUSED = {
    "bf16 LHBNC": "not one contiguous run",
    "bf16 BHLNC": "not one contiguous run",
    "kv_block": "not one contiguous run",
    "kv_block LBHNC": "not one contiguous run",
    "cell padding": "page % 8",
    "one head, one token": "page % 8",
}


@pytest.fixture(scope="module")
def environment() -> None:
    os.environ.update(resolve("vllm-triton").environment)


@pytest.fixture
def kernel(environment: None, vllm: ModuleType) -> Any:
    return resolve("vllm-triton").create()


@pytest.mark.parametrize("name", [n for n in RECIPES if n not in REFUSED])
def test_served_layouts_round_trip(kernel: Any, name: str) -> None:
    layout = place(RECIPES[name])
    assert supports_reason(kernel, layout) is None
    for group in layout.groups:
        arena = make_arena(layout)
        kernel.prepare(arena)
        assert round_trip(kernel, arena, [3, 0, 6], [4, 1, 0], [7, 2, 5], group=group.index) == 0
    kernel.close()


@pytest.mark.parametrize("name", REFUSED)
def test_what_vllm_would_not_give_to_the_kernel_is_refused_with_its_rule(kernel: Any, name: str) -> None:
    reason = supports_reason(kernel, place(RECIPES[name]))
    assert reason is not None
    assert REFUSED[name] in reason
    assert "_select_swap_blocks_fn" in reason


@pytest.mark.parametrize(("heads", "served"), [(6, True), (7, False)])
def test_pages_from_28_kib_on_go_to_dma(kernel: Any, heads: int, served: bool) -> None:
    layout = place(Recipe((LayerRecipe("bf16", heads, 64),)))
    reason = supports_reason(kernel, layout)
    assert (reason is None) is served
    assert served or "page of 28672 bytes (bf16): vLLM copies pages from 28672 bytes on by DMA" in str(reason)


@pytest.mark.parametrize("blocks", [5, 8])
def test_more_descriptors_than_programs(kernel: Any, blocks: int) -> None:
    layout = place(Recipe((LayerRecipe("fp8_e4m3", 1, 8, count=3),), num_blocks=16))
    arena = make_arena(layout, host_slots=8)
    kernel.prepare(arena)
    assert (
        round_trip(kernel, arena, list(range(blocks)), list(range(blocks))[::-1], list(range(15, 15 - blocks, -1))) == 0
    )


def test_pages_that_are_no_multiple_of_a_chunk(kernel: Any) -> None:
    layout = place(Recipe((LayerRecipe("turboquant_4bit_nc", 4, 128),)))
    assert layout.layers[0].page_bytes == 8576  # a chunk of 8192 bytes and 384 more
    arena = make_arena(layout)
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [3], [2], [7]) == 0


def test_a_buffer_of_more_than_4_gib(kernel: Any) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, count=3),), num_blocks=1 << 18))
    arena = make_sparse_arena(layout)
    last = layout.num_blocks - 1
    assert sparse_round_trip(kernel, arena, [last, 131_072], [0, 262_000]) == 0


def test_provenance_says_that_it_was_interpreted(kernel: Any) -> None:
    provenance = kernel.provenance()
    assert provenance["path"] == "_swap_blocks_kernel, Triton interpreter on the CPU"
    assert "vllm/v1/kv_offload/cpu/swap_blocks_triton.py" in provenance["files"]
    assert "triton/runtime/interpreter.py" in provenance["files"]
    assert kernel.slow is True
