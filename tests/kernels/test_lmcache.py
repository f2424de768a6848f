from __future__ import annotations

import os
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

from hypothesis import assume, given, settings

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.registry import resolve, supports_reason
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.kernels.fake_arena import (
    make_arena,
    make_sparse_arena,
    moved,
    overwrite,
    round_trip,
    sparse_round_trip,
    wrong_bytes,
)
from tests.kernels.recipes import RECIPES, recipes

KERNELS = ("lmcache", "lmcache-block")
REFUSED = {
    "bf16 LHBNC": "LMCache does not support the 'LHBNC' KV cache layout",
    "bf16 BHLNC": "LMCache does not support the 'BHLNC' KV cache layout",
    "bf16 BLNHC": "non-tight per-block strides are not supported",
    "bf16 BLHNC": "non-tight per-block strides are not supported",
    "mixed BLNHC": "non-tight per-block strides are not supported",
    "padded pages": "non-tight per-block strides are not supported",
    "aligned blocks": "non-tight per-block strides are not supported",
    "kernel blocks": "LMCache takes one row for one block id",
}


def create(name: str) -> Any:
    source = resolve(name)
    for variable, value in source.environment.items():
        os.environ.setdefault(variable, value)
    return source.create()


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", [n for n in RECIPES if n not in REFUSED])
def test_served_layouts_round_trip(lmcache: ModuleType, kernel_name: str, name: str) -> None:
    layout = place(RECIPES[name])
    for group in layout.groups:
        arena = make_arena(layout, blocks_per_slot=2)
        kernel = create(kernel_name)
        assert supports_reason(kernel, layout) is None
        kernel.prepare(arena)
        assert round_trip(kernel, arena, [3, 0, 6, 1], [4, 1], [7, 2, 5, 4], group=group.index) == 0
        kernel.close()


@pytest.mark.parametrize("kernel_name", KERNELS)
@pytest.mark.parametrize("name", REFUSED)
def test_refused_layouts_are_refused_in_lmcaches_words(lmcache: ModuleType, kernel_name: str, name: str) -> None:
    reason = supports_reason(create(kernel_name), place(RECIPES[name]))
    assert reason is not None
    assert REFUSED[name] in reason
    assert "\n" not in reason


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_more_chunks_than_a_batch(lmcache: ModuleType, kernel_name: str) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, count=2),), num_blocks=24))
    arena = make_arena(layout, host_slots=12, blocks_per_slot=2)
    kernel = create(kernel_name)
    kernel.prepare(arena)
    stored = [(7 * i + 3) % 24 for i in range(18)]
    loaded = [(5 * i + 1) % 24 for i in range(18)]
    assert round_trip(kernel, arena, stored, [11, 2, 5, 7, 0, 9, 4, 1, 8], loaded) == 0


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_a_part_of_a_chunk_leaves_the_skipped_blocks_alone(lmcache: ModuleType, kernel_name: str) -> None:
    arena = make_arena(place(RECIPES["mixed LBNHC"]), blocks_per_slot=2)
    kernel = create(kernel_name)
    kernel.prepare(arena)
    before = arena.memory.clone()
    kernel.store([3, 0, 6, 1], [4, 1])
    overwrite(arena)
    want = moved(arena, before, [(0, 7), (6, 5)])
    kernel.load_part(4, 1, [7])
    kernel.load_part(1, 0, [5])
    assert wrong_bytes(arena, want) == 0


@pytest.mark.parametrize("kernel_name", KERNELS)
def test_a_buffer_of_more_than_4_gib(lmcache: ModuleType, kernel_name: str) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, count=2), LayerRecipe("fp8_e4m3", 2, 66)), num_blocks=1 << 18))
    arena = make_sparse_arena(layout, blocks_per_slot=2)
    last = layout.num_blocks - 1
    kernel: CopyKernel = create(kernel_name)
    assert sparse_round_trip(kernel, arena, [last, 5, 131_072, 7], [0, last - 1, 262_000, 131_071]) == 0


def _misread_by_lmcache(recipe: Recipe) -> bool:
    """The two layouts whose K/V axis LMCache 0.5.6 takes for another one, see the strict xfails below."""
    splits = [(x.kv_format, x.heads, x.head_size, x.split) for x in recipe.layers if x.split != "fused"]
    shapes = {s[:3] for s in splits}
    two_blocks = recipe.num_blocks == 2 and any(s[3] == "block_kv" for s in splits)
    return two_blocks or len(set(splits)) > len(shapes)


@settings(max_examples=40)
@given(recipes())
def test_any_mix_of_formats_round_trips(lmcache: ModuleType, recipe: Recipe) -> None:
    assume(recipe.num_blocks >= 2 and not _misread_by_lmcache(recipe))
    layout = place(recipe)
    kernel = create("lmcache")
    assert supports_reason(kernel, layout) is None
    arena = make_arena(layout, blocks_per_slot=2)
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [layout.num_blocks - 1, 0], [3], [0, 1]) == 0


@pytest.mark.xfail(strict=True, reason="LMCache 0.5.6 reads [2 blocks, K/V, ...] as [K/V, 2 blocks, ...]")
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_k_beside_v_in_a_pool_of_two_blocks(lmcache: ModuleType, kernel_name: str) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, split="block_kv"),), num_blocks=2))
    kernel = create(kernel_name)
    assert "known defect" in (supports_reason(kernel, layout) or "")
    arena = make_arena(layout, blocks_per_slot=2)
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [1, 0], [3], [0, 1]) == 0


@pytest.mark.xfail(
    strict=True, reason="LMCache 0.5.6 takes the K/V order of one layer for all layers of the same shape"
)
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_both_kv_orders_with_one_shape(lmcache: ModuleType, kernel_name: str) -> None:
    runs = (LayerRecipe("bf16", 2, 64, split="block_kv"), LayerRecipe("bf16", 2, 64, split="kv_block"))
    layout = place(Recipe(runs))
    kernel = create(kernel_name)
    assert "known defect" in (supports_reason(kernel, layout) or "")
    arena = make_arena(layout, blocks_per_slot=2)
    kernel.prepare(arena)
    assert round_trip(kernel, arena, [3, 0], [3], [7, 2]) == 0


@pytest.mark.xfail(strict=True, raises=RuntimeError, reason="LMCache 0.5.6 computes a shape of zero blocks for it")
@pytest.mark.parametrize("kernel_name", KERNELS)
def test_one_block_that_is_longer_than_its_page(lmcache: ModuleType, kernel_name: str) -> None:
    layout = place(Recipe((LayerRecipe("bf16", 2, 64, count=2),), "BLNHC", num_blocks=1))
    kernel = create(kernel_name)
    assert "known defect" in (supports_reason(kernel, layout) or "")
    kernel.prepare(make_arena(layout, blocks_per_slot=2))


def test_provenance_says_that_the_torch_fallback_ran(lmcache: ModuleType) -> None:
    provenance = create("lmcache").provenance()
    assert provenance["path"] == (
        "transfer_kv_per_object_group, block op through a staging buffer on CpuDeviceOps "
        "(torch fallback, no compiled kernel ran)"
    )
    assert "lmcache/v1/multiprocess/object_group_transfer.py" in provenance["files"]
    assert "lmcache/v1/platform/torch_ops/mp_mem_kernels.py" in provenance["files"]


def test_an_unknown_version_is_refused(lmcache: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from kvverify.kernels import lmcache_library

    monkeypatch.setattr(lmcache_library, "library_version", lambda _name: "0.7.1")
    with pytest.raises(
        EnvironmentProblem, match=r"LMCache 0\.7\.1 is installed, the adapter knows 0\.5\.6: .*install lmcache=="
    ):
        lmcache_library.load.__wrapped__()


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvverify.kernels import lmcache_library

    monkeypatch.setattr(lmcache_library, "library_version", lambda _name: "unknown")
    with pytest.raises(
        EnvironmentProblem, match=r"^LMCache is not installed here; `nox -s stacks` makes an environment"
    ):
        lmcache_library.load.__wrapped__()
