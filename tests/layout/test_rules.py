"""Engine rules: boundary layers, block sizes, tensor parallelism, groups, refusals."""

from __future__ import annotations

from typing import Any

import pytest

from kvverify.errors import LayoutError
from kvverify.layout.models import Model, load_model, model_from_config
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.layout.rules import heads_per_rank, recipe_for, skipped_layers

TQ4 = "turboquant_4bit_nc"
PRESETS = [TQ4, "turboquant_k8v4", "turboquant_k3v4_nc", "turboquant_3bit_nc"]


def dense(layers: int = 8, kinds: tuple[str, ...] = (), **changes: Any) -> Model:
    values: dict[str, Any] = {"attention_heads": 8, "kv_heads": 2, "head_size": 128, "dtype": "bf16", **changes}
    return Model("m", kinds or ("full",) * layers, **values)


def formats(recipe: Recipe) -> list[tuple[str, int]]:
    return [(run.kv_format, run.count) for run in recipe.layers]


def test_minimax_keeps_four_layers_in_bf16() -> None:
    recipe = recipe_for(load_model("minimax-m2.5"), TQ4)
    assert formats(recipe) == [("bf16", 2), (TQ4, 58), ("bf16", 2)]
    assert recipe.block_tokens == 32


@pytest.mark.parametrize("head_size", [64, 128, 256])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_bf16_first_layer_turns_16_tokens_into_32(preset: str, head_size: int) -> None:
    model = dense(head_size=head_size)
    assert recipe_for(model, preset).block_tokens == 32
    assert recipe_for(model, preset, block_size=16).block_tokens == 32
    assert recipe_for(model, preset, block_size=64).block_tokens == 64


def test_one_dtype_keeps_the_block_size() -> None:
    assert recipe_for(dense(), "fp8").block_tokens == 16
    assert recipe_for(dense(), "auto").block_tokens == 16
    assert recipe_for(dense(), "bf16", skip_layers=["0"]).block_tokens == 16
    assert recipe_for(dense(), "fp8", skip_layers=["0"]).block_tokens == 32


@pytest.mark.parametrize(("layers", "kept"), [(1, 0), (2, 2), (3, 2), (4, 4), (5, 4), (9, 4)])
def test_boundary_layers_are_at_most_half_on_each_side(layers: int, kept: int) -> None:
    assert len(skipped_layers(dense(layers), TQ4)) == kept


def test_users_add_layers_to_the_boundary() -> None:
    assert skipped_layers(dense(), TQ4, ["3"]) == {0, 1, 3, 6, 7}
    assert skipped_layers(dense(), "fp8_e4m3") == frozenset()
    windows = dense(kinds=("full", "sliding_window", "full", "sliding_window"))
    assert skipped_layers(windows, "fp8_e4m3", ["sliding_window"]) == {1, 3}
    with pytest.raises(LayoutError, match="skip layer '8': expected a layer number 0 to 7"):
        skipped_layers(dense(), TQ4, ["8"])


def test_models_with_states_skip_none_and_pad_the_state() -> None:
    model = dense(kinds=("mamba", "mamba", "mamba", "full"), state_bytes=50_000)
    recipe = recipe_for(model, TQ4)
    assert formats(recipe) == [("mamba_state", 1), ("mamba_state", 1), ("mamba_state", 1), (TQ4, 1)]
    assert [group.kind for group in recipe.groups] == ["mamba", "mamba", "mamba", "full"]
    assert recipe.block_tokens == 192  # 192 tokens of 2 x 134 bytes cover the state, 176 do not
    layout = place(recipe)
    assert {layer.offset for layer in layout.layers} == {0}
    assert layout.layers[0].padding_bytes == 192 * 2 * 134 - 50_000
    assert place(recipe_for(model, TQ4, tp=2)).layers[0].page_bytes == 25_000


def test_gemma_deals_its_windows_to_groups_as_large_as_the_global_one() -> None:
    recipe = recipe_for(load_model("gemma-3-4b"), "auto")
    layout = place(recipe)
    assert [group.kind for group in layout.groups] == ["sliding_window"] * 6 + ["full"]
    assert [len(layout.group_layers(g)) for g in range(7)] == [5, 5, 5, 5, 5, 4, 5]
    assert [layout.layers[i].index for i in layout.group_layers(0)] == [0, 7, 14, 21, 28]
    assert layout.size_bytes == 5 * 8 * 16 * 4 * 1024


def test_smaller_pages_get_more_tokens() -> None:
    recipe = recipe_for(load_model("gemma-3-4b"), "fp8", skip_layers=["sliding_window"])
    layout = place(recipe)
    assert [group.block_tokens for group in layout.groups] == [32] * 6 + [64]
    assert {layer.padding_bytes for layer in layout.layers} == {0}


def test_kinds_of_nearly_equal_number_share_two_groups() -> None:
    recipe = recipe_for(dense(kinds=("full", "sliding_window") * 3 + ("full",)), "auto")
    assert [group.kind for group in recipe.groups] == ["full", "sliding_window"]


def test_shared_layers_take_no_bytes() -> None:
    layout = place(recipe_for(dense(shared_from=((6, 5), (7, 5))), "fp8"))
    assert layout.layers[-1].aliases == ("layers.6", "layers.7")
    assert len(layout.layers) == 6


@pytest.mark.parametrize(("tp", "heads"), [(1, 8), (2, 4), (8, 1), (16, 1)])
def test_heads_are_sliced_then_replicated(tp: int, heads: int) -> None:
    assert heads_per_rank(load_model("minimax-m2.5"), tp) == heads


def test_heads_that_cannot_be_divided() -> None:
    with pytest.raises(LayoutError, match="9 attention heads cannot be divided by tp 2"):
        heads_per_rank(load_model("smollm2-135m"), 2)
    with pytest.raises(LayoutError, match="3 KV heads can be neither divided by tp 2"):
        heads_per_rank(dense(kv_heads=3), 2)
    with pytest.raises(LayoutError, match="states of 5 bytes cannot be divided by tp 2"):
        heads_per_rank(dense(kinds=("mamba", "full"), state_bytes=5), 2)
    with pytest.raises(LayoutError, match="tp: got 0"):
        heads_per_rank(dense(), 0)


def test_mla_is_replicated() -> None:
    model = load_model("deepseek-v3")
    assert recipe_for(model, tp=8).layers == (LayerRecipe("mla_bf16", 1, 576, 61),)
    assert formats(recipe_for(model, "fp8")) == [("mla_fp8", 61)]
    assert formats(recipe_for(model, "fp8_ds_mla")) == [("fp8_ds_mla", 61)]
    newer = recipe_for(model, "fp8_ds_mla_584").layers[0]
    assert (newer.kv_format, newer.head_size) == ("fp8_ds_mla_584", 512)


def test_sparse_mla_has_an_indexer_beside_each_layer() -> None:
    recipe = recipe_for(load_model("deepseek-v3.2"), "fp8")
    assert formats(recipe) == [("fp8_ds_mla", 61), ("dsa_indexer", 61)]
    assert recipe.block_tokens == 64


def test_gfx950_stores_turboquant_as_structure_of_arrays() -> None:
    recipe = recipe_for(dense(), TQ4, engine="vllm-gfx950")
    assert formats(recipe) == [("bf16", 2), (f"{TQ4}_soa", 4), ("bf16", 2)]
    assert place(recipe).size_bytes == place(recipe_for(dense(), TQ4)).size_bytes


def test_long_blocks_are_split_for_the_kernels() -> None:
    assert recipe_for(dense(), TQ4, block_size=256).kernel_block_tokens == 128
    assert recipe_for(dense(), TQ4, block_size=48).kernel_block_tokens == 16
    assert recipe_for(dense(), TQ4, block_size=64).kernel_block_tokens is None
    with pytest.raises(LayoutError, match="block size 40: TurboQuant's kernels work on 16, 32, 64 or 128 tokens"):
        recipe_for(dense(), TQ4, block_size=40)


def test_orders() -> None:
    assert recipe_for(dense(), order="hnd").order == "LBHNC"
    with pytest.raises(LayoutError, match=r"TurboQuant's attention backend accepts LBNHC \(NHD\) only"):
        recipe_for(dense(), TQ4, order="LBHNC")
    with pytest.raises(LayoutError, match="unknown order 'BNHC'; did you mean"):
        recipe_for(dense(), order="BNHC")


@pytest.mark.parametrize(
    ("model", "dtype", "message"),
    [
        ("gemma-3-4b", TQ4, "does not support sliding-window or chunked attention, which 29 of its layers use"),
        ("deepseek-v3", TQ4, "does not support MLA attention"),
        ("deepseek-v3", "int8_per_token_head", "'int8_per_token_head' does not exist for MLA"),
        ("llama-3.1-8b", "fp8_ds_mla", "KV dtype fp8_ds_mla is for MLA models"),
        ("llama-3.1-8b", "turboquant", "unknown KV dtype 'turboquant'; did you mean 'turboquant_"),
    ],
)
def test_refusals_say_why(model: str, dtype: str, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        recipe_for(load_model(model), dtype)


@pytest.mark.parametrize("layers", [4, 8])  # with 4, the boundary leaves no layer to pack
@pytest.mark.parametrize("head_size", [80, 96])
def test_rotated_presets_refuse_other_head_sizes(head_size: int, layers: int) -> None:
    config = {"num_hidden_layers": layers, "num_attention_heads": 4, "head_dim": head_size}
    model = model_from_config(config, "m", "m")
    with pytest.raises(LayoutError, match=f"head size {head_size} is not supported by any engine; keys are rotated"):
        recipe_for(model, TQ4)


def test_unknown_engine_and_block_size() -> None:
    with pytest.raises(LayoutError, match="unknown engine 'vlm'; did you mean 'vllm'"):
        recipe_for(dense(), engine="vlm")
    with pytest.raises(LayoutError, match="block size: got 0"):
        recipe_for(dense(), block_size=0)
