"""Models from presets, files and hub ids, and what is said about damaged ones."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvverify.errors import LayoutError
from kvverify.layout.models import Model, load_model, model_from_config, preset_names

DENSE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}


def config(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**DENSE, **changes}.items() if value is not ...}


def model(**changes: Any) -> Model:
    return model_from_config(config(**changes), "m", "m/config.json")


@pytest.mark.parametrize(
    ("name", "layers", "heads", "head_size"),
    [
        ("minimax-m2.5", 62, 8, 128),
        ("llama-3.1-8b", 32, 8, 128),
        ("qwen3-8b", 36, 8, 128),
        ("smollm2-135m", 30, 3, 64),
        ("gemma-3-4b", 34, 4, 256),
    ],
)
def test_presets(name: str, layers: int, heads: int, head_size: int) -> None:
    loaded = load_model(name)
    assert (len(loaded.kinds), loaded.kv_heads, loaded.head_size, loaded.dtype) == (layers, heads, head_size, "bf16")
    assert name in preset_names()


def test_deepseek_caches_one_latent_vector() -> None:
    loaded = load_model("deepseek-v3")
    assert (loaded.is_mla, loaded.latent_size, loaded.kv_heads, loaded.indexer_size) == (True, 576, 1, 0)
    assert load_model("deepseek-v3.2").indexer_size == 128


def test_hub_ids_of_presets_need_no_network() -> None:
    assert load_model("MiniMaxAI/MiniMax-M2.5") == load_model("minimax-m2.5")


def test_every_sixth_layer_of_gemma_is_global() -> None:
    kinds = load_model("gemma-3-4b").kinds
    assert [i for i, kind in enumerate(kinds) if kind == "full"] == [5, 11, 17, 23, 29]


def test_folder_and_file(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config()))
    assert load_model(str(folder)).name == "mine"
    assert load_model(str(folder / "config.json")).head_size == 64


def test_fallbacks() -> None:
    assert model(num_key_value_heads=...).kv_heads == 8
    assert model(head_dim=96).head_size == 96
    assert model(torch_dtype="float16").dtype == "fp16"
    assert model(dtype="float32", torch_dtype=...).dtype == "fp32"
    nested = {"text_config": config(num_hidden_layers=3), "torch_dtype": "float16"}
    assert len(model_from_config(nested, "m", "m").kinds) == 3
    assert model_from_config(nested, "m", "m").dtype == "fp16"


def test_windows() -> None:
    assert set(model(sliding_window=128).kinds) == {"sliding_window"}
    assert set(model(sliding_window=128, use_sliding_window=False).kinds) == {"full"}
    types = ["sliding_attention", "full_attention", "chunked_attention", "full_attention"]
    assert model(layer_types=types).kinds == ("sliding_window", "full", "chunked", "full")


def test_shared_layers_point_to_the_last_own_layer_of_their_kind() -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
    assert model(layer_types=types, num_kv_shared_layers=2).shared_from == ((2, 0), (3, 1))
    assert model(layer_types=types, num_kv_shared_layers=0).shared_from == ()


LINEAR = {
    "full_attention_interval": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}


def test_states_of_linear_attention() -> None:
    loaded = model(**LINEAR)
    assert loaded.kinds == ("mamba", "mamba", "mamba", "full")
    assert loaded.state_bytes == (3 * (2 * 2 * 8 + 4 * 16) + 4 * 16 * 8) * 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": ...}, "m/config.json: field num_hidden_layers or n_layer or num_layers is missing"),
        ({"num_attention_heads": ...}, "field num_attention_heads or n_head is missing"),
        ({"hidden_size": ...}, "field head_dim is missing, and so is hidden_size"),
        ({"hidden_size": 513}, "hidden_size 513 is not a multiple of num_attention_heads 8; give head_dim"),
        ({"num_hidden_layers": "4"}, "got '4', expected a whole number above 0"),
        ({"num_key_value_heads": 0}, "field num_key_value_heads: got 0"),
        ({"kv_lora_rank": 512}, "field qk_rope_head_dim is missing"),
        ({"torch_dtype": "float17"}, "field torch_dtype: unknown 'float17'; did you mean 'float16'"),
        ({"layer_types": ["full_attention"]}, "expected a list of 4 words"),
        (
            {"layer_types": ["full_atention"] * 4},
            "field layer_types: unknown 'full_atention'; did you mean 'full_attention'",
        ),
        ({"layer_types": ["linear_attention"] * 4}, "field linear_num_key_heads is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers: got 1000000000, expected at most 10000"),
        ({"attn_type_list": [1, 0, 1, 1]}, "field attn_type_list: layers of type 0"),
        ({"num_kv_shared_layers": 4}, "layer 1 has no earlier full layer"),
    ],
)
def test_a_damaged_config_names_file_and_field(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        model(**changes)
    assert str(caught.value).startswith("m/config.json: ")
    assert "\n" not in str(caught.value)


def test_unknown_name_names_the_nearest_presets() -> None:
    with pytest.raises(LayoutError, match=r"unknown model 'llama-3.1-9b'; did you mean 'llama-3.1-8b'"):
        load_model("llama-3.1-9b")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match=r"no such file or folder; expected a config\.json"):
        load_model(str(tmp_path / "none.json"))
    with pytest.raises(LayoutError, match=r"cannot read .*config\.json: No such file"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(LayoutError, match=r"config\.json is not JSON"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(LayoutError, match=r"config\.json is not JSON"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[" * 200_000)
    with pytest.raises(LayoutError, match=r"config\.json is not JSON"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(LayoutError, match="holds a JSON list, expected an object"):
        load_model(str(tmp_path))


def fake_hub(monkeypatch: pytest.MonkeyPatch, download: Any) -> None:
    real = importlib.import_module

    def import_module(name: str, package: str | None = None) -> Any:
        if name != "huggingface_hub":
            return real(name, package)
        if download is None:
            raise ImportError(name)
        return SimpleNamespace(hf_hub_download=download)

    monkeypatch.setattr(importlib, "import_module", import_module)


def test_hub_id(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config()))
    fake_hub(monkeypatch, lambda repo, name: str(file))
    assert load_model("some/model").name == "some/model"


def test_hub_id_without_the_library_or_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_hub(monkeypatch, None)
    with pytest.raises(LayoutError, match="'some/model' is no preset, and huggingface_hub is not installed"):
        load_model("some/model")

    def offline(repo: str, name: str) -> str:
        raise OSError("no network\nsecond line")

    fake_hub(monkeypatch, offline)
    with pytest.raises(LayoutError, match=r"no config.json from the hub \(OSError: no network\)"):
        load_model("some/model")
