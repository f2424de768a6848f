"""Recipes as JSON: every recipe survives, every damage gets one line that says where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvverify.errors import LayoutError
from kvverify.layout.document import from_document, load_layout_file, to_document
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import LayerRecipe, Recipe


def test_every_recipe_of_the_pool_survives() -> None:
    for recipe in campaign_pool():
        assert from_document(json.loads(json.dumps(to_document(recipe))), "x") == recipe


def test_a_recipe_inside_a_larger_document() -> None:
    recipe = Recipe((LayerRecipe("bf16", 2, 64),), num_blocks=3)
    assert from_document({"model": "m", "recipe": to_document(recipe)}, "x") == recipe
    assert (
        from_document({"layers": [{"kv_format": "bf16", "heads": 2, "head_size": 64}], "num_blocks": 3}, "x") == recipe
    )


def damaged(**changes: Any) -> dict[str, Any]:
    return {**to_document(Recipe((LayerRecipe("bf16", 2, 64),))), **changes}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ([], r"x: Input should be a valid dictionary"),
        ({}, "x: layers: Field required"),
        (damaged(ordr="LBNHC"), "x: ordr: Extra inputs are not permitted, got 'LBNHC'"),
        (damaged(num_blocks="8"), "x: num_blocks: Input should be a valid integer, got '8'"),
        (damaged(version=2), "x: version: Input should be 1, got 2"),
        (damaged(layers=[{"kv_format": "bf16", "heads": 2}]), r"x: layers\[0\].head_size: Field required"),
        (damaged(num_blocks="8", order=7), r"x: order: .* \(and 1 more\)"),
        (damaged(order="LBHN"), "x: unknown order 'LBHN'; did you mean 'LBHNC'"),
        (damaged(name="x" * 10, usable_blocks=[9]), r"x: recipe usable_blocks: got \[9\]"),
        ({"recipe": {}}, "x: recipe: layers: Field required"),
    ],
)
def test_damage_is_located_in_one_line(data: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message) as caught:
        from_document(data, "x")
    assert "\n" not in str(caught.value)


def test_files(tmp_path: Path) -> None:
    file = tmp_path / "layout.json"
    with pytest.raises(LayoutError, match=r"layout file .*layout\.json: cannot read: No such file"):
        load_layout_file(file)
    file.write_text("{")
    with pytest.raises(LayoutError, match=r"not JSON: .*; expected what `kvverify layout --json` prints"):
        load_layout_file(file)
    file.write_text("[" * 200_000)
    with pytest.raises(LayoutError, match="not JSON"):
        load_layout_file(file)
    recipe = campaign_pool()[0]
    file.write_text(json.dumps({"recipe": to_document(recipe)}))
    assert load_layout_file(file) == recipe
