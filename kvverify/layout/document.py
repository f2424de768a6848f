"""Recipes as JSON: what ``kvverify layout --json`` prints, ``--layout FILE`` reads and a failure file stores."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from kvverify.errors import LayoutError
from kvverify.layout.place import place
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe

VERSION: Literal[1] = 1


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Layer(_Strict):
    kv_format: str
    heads: int
    head_size: int
    count: int = 1
    group: int = 0
    split: str = "fused"
    alias_of: int | None = None


class _Group(_Strict):
    kind: str = "full"
    block_tokens: int | None = None


class _Recipe(_Strict):
    version: Literal[1] = VERSION
    layers: list[_Layer]
    order: str = "LBNHC"
    num_blocks: int = 8
    block_tokens: int = 16
    groups: list[_Group] = [_Group()]
    kernel_block_tokens: int | None = None
    storage_offset: int = 0
    region_gap: int = 0
    page_padding: int = 0
    block_stride_alignment: int = 1
    usable_blocks: list[int] | None = None
    name: str = ""


def to_document(recipe: Recipe) -> dict[str, Any]:
    """Return ``recipe`` as a JSON object; fields that are None are left out."""

    def present(value: Any) -> dict[str, Any]:
        return {key: item for key, item in dataclasses.asdict(value).items() if item is not None}

    data = present(recipe)
    data["layers"] = [present(layer) for layer in recipe.layers]
    data["groups"] = [present(group) for group in recipe.groups]
    if recipe.usable_blocks is not None:
        data["usable_blocks"] = list(recipe.usable_blocks)
    return {"version": VERSION, **data}


def from_document(data: Any, where: str) -> Recipe:
    """Return the recipe written by :func:`to_document`, or the one under the key ``recipe``; ``where`` names the source.

    Raises:
        LayoutError: a key is missing, unknown or of the wrong type, or the recipe cannot be placed; one line that says where.
    """
    if isinstance(data, Mapping) and "recipe" in data:
        data, where = data["recipe"], f"{where}: recipe"
    try:
        parsed = _Recipe.model_validate(data)
    except ValidationError as error:
        raise LayoutError(f"{where}: {_first_problem(error)}") from None
    values = {name: getattr(parsed, name) for name in _Recipe.model_fields if name != "version"}
    values["layers"] = tuple(LayerRecipe(**layer.model_dump()) for layer in parsed.layers)
    values["groups"] = tuple(GroupRecipe(**group.model_dump()) for group in parsed.groups)
    values["usable_blocks"] = None if parsed.usable_blocks is None else tuple(parsed.usable_blocks)
    recipe = Recipe(**values)
    try:
        place(recipe)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    return recipe


def load_layout_file(path: str | Path) -> Recipe:
    """Return the recipe in a JSON file.

    Raises:
        LayoutError: the file cannot be read, is not JSON or holds no valid recipe.
    """
    file = Path(path)
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LayoutError(f"layout file {file}: cannot read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # JSON or UTF-8; brackets nested without end
        raise LayoutError(
            f"layout file {file}: not JSON: {error}; expected what `kvverify layout --json` prints"
        ) from error
    return from_document(data, f"layout file {file}")


def _first_problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    place_ = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in problem["loc"]).lstrip(".")
    got = "" if problem["type"] == "missing" else f", got {_short(problem['input'])}"
    more = error.error_count() - 1
    rest = f" (and {more} more)" if more else ""
    return f"{place_ + ': ' if place_ else ''}{problem['msg']}{got}{rest}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
