"""The placement against the views that the real vLLM package makes for the same layers.

Everything vLLM can express is compared: offset, shape and byte strides of every layer, and the size of the buffer. The group
configuration and the view builder of the installed package run; the objects they get are reduced to the fields they read.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib.util
import itertools
import math
import os
from collections import defaultdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from kvverify.layout.expand import expand
from kvverify.layout.models import load_model
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe
from kvverify.layout.row import LayerSpec
from kvverify.layout.rules import recipe_for


def expressible(recipe: Recipe) -> bool:
    """VLLM 0.32 has fused views only, no gaps, no unused space before the first region."""
    plain = recipe.usable_blocks is None and not recipe.region_gap and not recipe.storage_offset
    return plain and all(run.split == "fused" and run.kv_format != "mamba_state" for run in recipe.layers)


def models() -> list[Recipe]:
    return [
        recipe_for(load_model("smollm2-135m"), "turboquant_4bit_nc", num_blocks=2),
        recipe_for(load_model("smollm2-135m"), "auto", num_blocks=2, order="HND"),
        recipe_for(load_model("gemma-3-4b"), "fp8", num_blocks=2, skip_layers=["sliding_window"]),
        recipe_for(load_model("deepseek-v3.2"), "fp8", num_blocks=2),
    ]


RECIPES = [recipe for recipe in (*campaign_pool(), *models()) if expressible(recipe)]


@dataclasses.dataclass(frozen=True)
class Spec:
    """The fields of vLLM's AttentionSpec that its placement reads; hashable, since equal specs share a region."""

    kv_format: str  # for vLLM's quantisation mode: part of a spec's identity, not of its size
    block_size: int
    num_heads: int
    state_content_size_bytes: int
    dtype: Any
    unpadded_page_size_bytes: int
    page_size_padded: int | None
    alignment: int

    @property
    def page_size_bytes(self) -> int:
        return self.page_size_padded or self.unpadded_page_size_bytes

    def get_block_stride_alignment(self) -> int:
        return self.alignment

    def get_num_kernel_states(self, tokens: int) -> int:
        return tokens


@dataclasses.dataclass(frozen=True)
class Uniform:
    """In place of UniformTypeKVCacheSpecs: one group whose layers differ in page size."""

    kv_cache_specs: dict[str, Spec]


class HotSpec:
    """In place of HiSparseHotSpec, which no layer here is."""


@pytest.fixture(scope="module")
def vllm_source() -> Path:
    """Folder of the installed vLLM. It isn't imported: that needs packages which have nothing to do with placement."""
    found = importlib.util.find_spec("vllm")
    if found is None or not found.submodule_search_locations:
        if "vllm" in os.environ.get("KVVERIFY_REQUIRE", "").split(","):
            pytest.fail("vllm is required here (KVVERIFY_REQUIRE) and is not installed")
        pytest.skip("vllm is not installed")
    return Path(found.submodule_search_locations[0])


@pytest.fixture(scope="module")
def upstream(vllm_source: Path, torch: ModuleType) -> dict[str, Any]:
    """The real functions of the installed vLLM that place layers, compiled from their source."""
    wanted = {
        "v1/kv_cache_layout.py": ("_DIM_L", "KVCacheLayout"),
        "v1/kv_cache_interface.py": (
            "compute_layer_kv_cache_shape_bytes",
            "compute_layout_strides",
            "create_kv_cache_views",
        ),
        "v1/core/kv_cache_utils.py": (
            "_get_per_layer_spec",
            "_get_layer_block_stride",
            "_get_kv_cache_bytes_per_block",
            "validate_kv_cache_layout",
            "may_override_num_blocks",
            "get_kv_cache_config_from_groups",
        ),
    }
    names: dict[str, Any] = {
        "torch": torch,
        "math": math,
        "prod": math.prod,
        "Enum": enum.Enum,
        "defaultdict": defaultdict,
        "round_up": lambda value, step: -(-value // step) * step,
        "UniformTypeKVCacheSpecs": Uniform,
        "HiSparseHotSpec": HotSpec,
        "KVCacheTensor": SimpleNamespace,
        "KVCacheConfig": SimpleNamespace,
    }
    for file, definitions in wanted.items():
        tree = ast.parse((vllm_source / file).read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if defined_names(node) & set(definitions)]
        found = set().union(*(defined_names(node) for node in tree.body))
        assert set(definitions) <= found, f"{file} no longer defines {set(definitions) - found}"
        tree.body.insert(0, ast.parse("from __future__ import annotations").body[0])
        exec(compile(tree, file, "exec"), names)  # noqa: S102 - the code under comparison
    return names


def defined_names(node: ast.stmt) -> set[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else []
    return {n.id for target in targets for n in ast.walk(target) if isinstance(n, ast.Name)}


def vllm_spec(torch: ModuleType, spec: LayerSpec, recipe: Recipe, page_bytes: int) -> Spec:
    padded = page_bytes + recipe.page_padding
    return Spec(
        kv_format=spec.kv_format,
        block_size=spec.block_tokens,
        num_heads=spec.head_slots,
        state_content_size_bytes=spec.slot_bytes,
        dtype=getattr(torch, spec.format.element),
        unpadded_page_size_bytes=spec.page_bytes,
        page_size_padded=padded if padded != spec.page_bytes else None,
        alignment=recipe.block_stride_alignment,
    )


def vllm_views(upstream: dict[str, Any], torch: ModuleType, recipe: Recipe) -> tuple[int, dict[int, Any]]:
    """Return the buffer size and the view of every layer."""
    order = upstream["KVCacheLayout"][recipe.order]
    layers = expand(recipe)
    unified = max(s.page_bytes for s in layers) if len(recipe.groups) > 1 and order.is_layer_compact else 0
    specs = {f"layers.{s.index}": vllm_spec(torch, s, recipe, unified or s.page_bytes) for s in layers}
    groups = []
    for group in range(len(recipe.groups)):
        members = {f"layers.{s.index}": specs[f"layers.{s.index}"] for s in layers if s.group == group}
        groups.append(SimpleNamespace(layer_names=list(members), kv_cache_spec=Uniform(members)))
    engine = SimpleNamespace(
        attention_config=SimpleNamespace(hisparse_config=None),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: order,
            num_gpu_blocks_override=recipe.num_blocks,
            prefix_cache_retention_interval=None,
        ),
    )
    config = upstream["get_kv_cache_config_from_groups"](engine, groups, 1 << 40)
    size = config.kv_cache_tensors[0].size
    raw = torch.zeros(size, dtype=torch.int8)
    views: dict[int, Any] = {}
    for tensor in config.kv_cache_tensors:
        spec = specs[tensor.layers[0]]
        made = upstream["create_kv_cache_views"](
            raw, spec, recipe.num_blocks, order, tensor, recipe.kernel_block_tokens
        )
        views |= {int(name.removeprefix("layers.")): view for name, view in zip(tensor.layers, made, strict=True)}
    return size, views


def described(layout: Layout) -> dict[int, tuple[int, tuple[int, ...], tuple[int, ...]]]:
    """Offset in bytes, shape, and byte strides with the row dimension in front."""
    return {
        layer.index: (
            layer.offset,
            (layout.num_blocks * layer.rows_per_block, *layer.shape),
            (layer.row_stride, *layer.strides),
        )
        for layer in layout.layers
    }


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: place(recipe).name)
def test_views_are_those_of_vllm(upstream: dict[str, Any], torch: ModuleType, recipe: Recipe) -> None:
    layout = place(recipe)
    size, views = vllm_views(upstream, torch, recipe)
    found = {}
    for index, view in views.items():
        bytes_ = view.element_size()
        found[index] = (view.storage_offset() * bytes_, tuple(view.shape), tuple(s * bytes_ for s in view.stride()))
    # a stride of a dimension of size 1 has no meaning, and vLLM's differs there
    for index, (offset, shape, strides) in described(layout).items():
        assert found[index][:2] == (offset, shape), f"layer {index}"
        meant = [n > 1 for n in shape]
        assert list(itertools.compress(found[index][2], meant)) == list(itertools.compress(strides, meant))
    assert size == layout.size_bytes


def test_most_of_the_pool_is_compared() -> None:
    assert len(RECIPES) > 80
