"""The addressing of the op adapters, through LMCache's own ops: on a GPU compiled, here its torch fallback."""

from __future__ import annotations

import dataclasses
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from kvverify.kernels import lmcache_cuda, lmcache_library, lmcache_slots
from kvverify.kernels.lmcache_groups import register
from kvverify.kernels.registry import check_kernel
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.kernels.fake_arena import make_arena, moved, overwrite, round_trip, wrong_bytes
from tests.kernels.recipes import TWO_GROUPS

SPLIT = (LayerRecipe("bf16", 2, 64, 2, split="kv_block"), LayerRecipe("fp8_e4m3", 3, 66, 2, split="block_kv"))
LAYOUTS = {
    "two kernel groups": Recipe(SPLIT, storage_offset=256),
    "two layer groups": Recipe((SPLIT[0], dataclasses.replace(SPLIT[0], group=1)), groups=TWO_GROUPS),
    "one token a block": Recipe(SPLIT, block_tokens=1),
}


@pytest.fixture(params=["lmcache-slots", "lmcache-block"])
def kernel(request: pytest.FixtureRequest, lmcache: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The CUDA adapter over LMCache's torch fallback, which copies the same way, but for fused and HND slots."""
    if lmcache.torch_device_type != "cpu":
        pytest.skip("LMCache chose a GPU")
    for module in (lmcache_slots, lmcache_cuda):
        monkeypatch.setattr(module, "load", lmcache_library.load)
    return lmcache_slots.LMCacheSlotOp() if request.param == "lmcache-slots" else lmcache_cuda.LMCacheCudaBlockOp()


@pytest.mark.parametrize("name", LAYOUTS)
def test_round_trip(kernel: Any, name: str) -> None:
    layout = place(LAYOUTS[name])
    check_kernel(kernel, kernel.name)
    assert kernel.supports(layout) is True
    for group in layout.groups:
        arena = make_arena(layout, blocks_per_slot=2)
        kernel.prepare(arena)
        assert round_trip(kernel, arena, [3, 0, 6, 1], [4, 1], [7, 2, 5, 4], group=group.index) == 0
        assert kernel.done()
        kernel.close()


def test_more_objects_than_a_call_takes(kernel: Any) -> None:
    layout = place(dataclasses.replace(LAYOUTS["two kernel groups"], num_blocks=24))
    arena = make_arena(layout, host_slots=12, blocks_per_slot=2)
    kernel.prepare(arena)
    stored = [(7 * i + 3) % 24 for i in range(18)]
    loaded = [(5 * i + 1) % 24 for i in range(18)]
    assert round_trip(kernel, arena, stored, [11, 2, 5, 7, 0, 9, 4, 1, 8], loaded) == 0


def test_a_part_leaves_the_skipped_blocks_alone(kernel: Any) -> None:
    arena = make_arena(place(LAYOUTS["two kernel groups"]), blocks_per_slot=2)
    kernel.prepare(arena)
    before = arena.memory.clone()
    kernel.store([3, 0, 6, 1], [4, 1])
    overwrite(arena)
    want = moved(arena, before, [(0, 7), (6, 5), (1, 2)])
    kernel.load_part(4, 1, [7])
    kernel.load_part(1, 0, [5, 2])
    kernel.wait()
    assert wrong_bytes(arena, want) == 0


def test_slots_refuse_gaps_that_the_op_of_0_5_3_cannot_be_told(
    lmcache: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lmcache.torch_device_type != "cpu":
        pytest.skip("LMCache chose a GPU")
    library = lmcache_library.load()
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, 2),), "BLNHC"))
    monkeypatch.setattr(lmcache_slots, "load", lambda: library)
    assert lmcache_slots.LMCacheSlotOp().supports(layout) is True
    monkeypatch.setattr(lmcache_slots, "load", lambda: dataclasses.replace(library, slot_op_takes_block_stride=False))
    assert "has no argument for it" in str(lmcache_slots.LMCacheSlotOp().supports(layout))


@pytest.mark.parametrize(("kv_format", "head_size"), [("bf16", 64), ("turboquant_4bit_nc", 67)])
def test_head_size_is_that_of_k(lmcache: ModuleType, kv_format: str, head_size: int) -> None:
    if lmcache.torch_device_type != "cpu":
        pytest.skip("LMCache chose a GPU")
    layer = LayerRecipe(kv_format, 2, 64 if kv_format == "bf16" else 128)
    for order in ("LBNHC", "LBHNC"):
        layout = place(Recipe((layer,), order))
        registration = register(lmcache_library.load(), layout, make_arena(layout, blocks_per_slot=2).layers, 2)
        assert lmcache_slots._head_size(registration.manager.kernel_groups[0]) == head_size
