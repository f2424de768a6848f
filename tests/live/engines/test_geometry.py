"""Exact bytes, against figures that were measured on a GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvverify.errors import LayoutError
from kvverify.layout.models import load_model
from kvverify.live.engines.geometry import geometry_of, known_model, number, with_dtype, words

LLAMA = load_model("llama-3.1-8b")
SMOLLM = load_model("smollm2-135m")


def test_the_worked_example() -> None:
    # 32 layers, 4 of them bf16, the others 134 B a slot; 8 heads of 128; block 32, hit 2,048
    packed = geometry_of(LLAMA, "turboquant_4bit_nc", block_tokens=32)
    assert packed.load_bytes(2048) == 64 * 32 * 8 * (4 * 512 + 28 * 134) == 95_027_200
    assert geometry_of(LLAMA, "auto", block_tokens=32).load_bytes(2048) == 268_435_456


def test_bytes_measured_on_an_h200() -> None:
    # 8 prompts of which 608 tokens were hit (live-cpu.md)
    assert 8 * (geometry_of(SMOLLM, "auto", block_tokens=16).load_bytes(608) or 0) == 112_066_560
    packed = geometry_of(SMOLLM, "turboquant_4bit_nc", block_tokens=32)
    assert 8 * (packed.load_bytes(608) or 0) == 41_499_648
    assert packed.layers == (("bf16", 3, 64),) * 2 + (("turboquant_4bit_nc", 3, 64),) * 26 + (("bf16", 3, 64),) * 2


def test_ranks_that_slice_heads_load_as_much_together_and_those_that_replicate_more() -> None:
    alone = geometry_of(LLAMA, "auto").load_bytes(160)
    assert alone is not None
    assert geometry_of(LLAMA, "auto", tp=4).load_bytes(160) == alone
    assert geometry_of(LLAMA, "auto", tp=16).load_bytes(160) == 2 * alone


def test_windows_have_no_exact_bytes() -> None:
    geometry = geometry_of(load_model("gemma-3-4b"), "auto")
    assert not geometry.exact
    assert geometry.load_bytes(1024) is None


def test_served_in_another_dtype() -> None:
    assert geometry_of(with_dtype(SMOLLM, "torch.float32"), "auto").token_bytes == 30 * 3 * 64 * 2 * 4
    assert with_dtype(SMOLLM, "auto") == SMOLLM


def test_more_layers_skipped() -> None:
    assert geometry_of(SMOLLM, "turboquant_4bit_nc", skip_layers=["2"]).token_bytes == 5 * 3 * 256 + 25 * 3 * 70


CONFIG = {
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "hidden_size": 576,
}


def test_a_configuration_as_transformers_prints_it() -> None:
    model, where = known_model(None, "hub/unknown", f"LlamaConfig {json.dumps(CONFIG)}\n", windowed=False)
    assert model is not None
    assert (model.kv_heads, model.head_size, len(model.kinds), where) == (3, 64, 30, "/server_info")


@pytest.mark.parametrize("missing", ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"])
def test_what_equals_a_class_default_is_not_printed_and_must_not_be_guessed(missing: str) -> None:
    text = json.dumps({name: value for name, value in CONFIG.items() if name != missing})
    model, why = known_model(None, "hub/unknown", f"LlamaConfig {text}", windowed=False)
    assert model is None
    assert missing in why
    assert "--model" in why


def test_windows_are_not_always_printed_either() -> None:
    model, why = known_model(None, "", json.dumps(CONFIG), windowed=True)
    assert model is None
    assert "windows" in why


@pytest.mark.parametrize("text", ["", "LlamaConfig", "LlamaConfig {broken"])
def test_no_configuration_at_all(text: str) -> None:
    model, why = known_model(None, "", text, windowed=False)
    assert model is None
    assert "--model" in why


def test_a_folder_and_a_preset_of_the_server_are_read_and_the_hub_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    model, where = known_model(None, str(tmp_path), "", windowed=True)
    assert model is not None
    assert where == str(tmp_path)
    assert known_model(None, "HuggingFaceTB/SmolLM2-135M", "", windowed=True)[0] == SMOLLM
    assert known_model(None, "somebody/else", "", windowed=True)[0] is None


def test_a_mistake_in_the_users_model_is_told() -> None:
    with pytest.raises(LayoutError, match="unknown model"):
        known_model("lama-3.1", "", "", windowed=False)


def test_labels_are_text() -> None:
    assert words("['0', '1', 'sliding_window']") == words(["0", "1", "sliding_window"]) == ("0", "1", "sliding_window")
    assert words("None") == words(None) == words("[1") == ()
    assert [number(v) for v in ("32", 32, 32.0, "1.5", "None", None, True, "inf", "nan")] == [32, 32, 32, *[None] * 6]
