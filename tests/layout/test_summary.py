"""Sizes in the summary and the command that prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvverify.cli.main import run
from kvverify.layout.document import load_layout_file
from kvverify.layout.models import load_model
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.layout.rules import recipe_for
from kvverify.layout.summary import summarise


def test_sizes_of_a_dense_model_in_two_precisions() -> None:
    # 32 layers, 8 heads of 128: 131,072 bytes a token in bf16, 46,400 mixed
    summary = summarise(recipe_for(load_model("llama-3.1-8b"), "turboquant_4bit_nc"))
    assert (summary.bytes_per_token, summary.bf16_bytes_per_token) == (46_400, 131_072)
    assert summary.ratio_to_bf16 == pytest.approx(2.82, abs=0.005)
    assert summary.tokens_per_gib == (1 << 30) // 46_400


def test_padding_costs_tokens_not_ratio() -> None:
    layers = (LayerRecipe("bf16", 2, 64, 2),)
    padded = summarise(Recipe(layers, page_padding=8_192))
    assert padded.ratio_to_bf16 == 1.0
    assert padded.tokens_per_gib == (1 << 30) // 2_048
    assert padded.formats[0].padding_bytes == 8_192


def test_states_cost_no_bytes_per_token() -> None:
    summary = summarise(Recipe((LayerRecipe("mamba_state", 1, 100),)))
    assert (summary.bytes_per_token, summary.ratio_to_bf16, summary.tokens_per_gib) == (0, None, None)


def test_indexer_rows_are_counted() -> None:
    summary = summarise(recipe_for(load_model("deepseek-v3.2"), "fp8"))
    assert summary.bytes_per_token == 61 * (656 + 132)
    assert summary.bf16_bytes_per_token == 61 * (1_152 + 256)


def test_every_layout_of_the_pool_has_a_summary() -> None:
    for recipe in campaign_pool():
        summary = summarise(recipe)
        assert sum(fmt.layers for fmt in summary.formats) == summary.layers
        assert sum(len(group.layers) for group in summary.groups) == summary.layers
        assert json.loads(json.dumps(summary.to_json()))["name"] == summary.name


def test_command_prints_the_numbers_of_minimax_as_json(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["layout", "minimax-m2.5", "--kv-cache-dtype", "turboquant_4bit_nc", "--json"]) == 0
    out = capsys.readouterr().out
    data: dict[str, Any] = json.loads(out.strip().splitlines()[-1])
    assert [(f["kv_format"], f["layers"], f["bytes_per_token_head"]) for f in data["formats"]] == [
        ("bf16", 4, 512),
        ("turboquant_4bit_nc", 58, 134),
    ]
    assert data["ratio_to_bf16"] == 3.23
    file = tmp_path / "layout.json"
    file.write_text(out)
    assert load_layout_file(file) == recipe_for(load_model("minimax-m2.5"), "turboquant_4bit_nc")


def test_command_prints_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["layout", "minimax-m2.5", "--kv-cache-dtype", "turboquant_4bit_nc", "--block-size", "16"]
    assert run(arguments) == 0
    out = capsys.readouterr().out
    for text in ("turboquant_4bit_nc", "134", "512", "3.23", "32 (asked for 16, raised", "78,560"):
        assert text in out


def test_command_shows_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["layout", "gemma-3-4b"]) == 0
    assert "sliding_window" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["minimax-m2"], "kvverify: unknown model 'minimax-m2'; did you mean 'minimax-m2.5'"),
        (["minimax-m2.5", "--kv-cache-dtype", "turbo"], "kvverify: unknown KV dtype 'turbo'; "),
        (["minimax-m2.5", "--order", "LBNH"], "kvverify: unknown order 'LBNH'; did you mean 'LBNHC'"),
        (["gemma-3-4b", "--kv-cache-dtype", "turboquant_4bit_nc"], "does not support sliding-window"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["layout", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
