"""The KV cache of a served model: from its configuration to the bytes that a load must move."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvverify.errors import LayoutError
from kvverify.layout.formats import ALIASES, FORMATS, slot_format
from kvverify.layout.models import FULL, Model, load_model, model_from_config, preset_of
from kvverify.layout.rules import recipe_for

_EXPLICIT = ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")


@dataclass(frozen=True, slots=True)
class Geometry:
    """The KV cache of a model as it is served.

    ``layers`` are (KV format, heads of one rank, head size) of each layer that owns a cache; ``ranks`` hold them all. ``exact``
    False: windows, states or several groups, of which a load moves other blocks than the hit length says. ``block_tokens`` is
    the largest block of a group.
    """

    layers: tuple[tuple[str, int, int], ...]
    ranks: int
    exact: bool
    block_tokens: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token over all layers of one rank, without padding."""
        return sum(slot_format(name).cell_bytes(heads, size) * heads for name, heads, size in self.layers)

    def load_bytes(self, tokens: int) -> int | None:
        """Return the bytes that loading ``tokens`` tokens, whole blocks, moves on all ranks together; None: not known.

        (tokens / block) · sum of un-padded pages · ranks, as a page is block · bytes of a token in that layer.
        """
        return tokens * self.token_bytes * self.ranks if self.exact else None


def geometry_of(
    model: Model,
    kv_cache_dtype: str,
    *,
    tp: int = 1,
    block_tokens: int | None = None,
    skip_layers: Sequence[str] = (),
) -> Geometry:
    """Return the cache of one rank of ``model`` as vLLM lays it out.

    Raises:
        LayoutError: vLLM refuses this combination.
    """
    recipe = recipe_for(model, kv_cache_dtype, tp=tp, block_size=block_tokens, skip_layers=skip_layers)
    layers = [
        (run.kv_format, run.heads, run.head_size)
        for run in recipe.layers
        if run.alias_of is None
        for _ in range(run.count)
    ]
    tokens = [group.block_tokens or recipe.block_tokens for group in recipe.groups]
    exact = len(recipe.groups) == 1 and recipe.groups[0].kind == FULL
    return Geometry(tuple(layers), tp, exact, max(tokens))


def known_model(named: str | None, folder: str, config_text: str, *, windowed: bool) -> tuple[Model | None, str]:
    """Return the served model, or None, and where it was read or why not.

    Args:
        named: the user's ``--model``; a mistake in it is the user's.
        folder: what the server calls its model: a folder here, or a preset's id. The hub is not asked.
        config_text: ``hf_config`` in ``/server_info``: the lab's; vLLM 0.32 leaves it out.
        windowed: the server says that layers have windows or states, or does not say that they have none.

    Raises:
        LayoutError: ``named`` is no model.
    """
    if named is not None:
        return load_model(named), named
    if folder:
        found = _readable(folder)
        if found is not None:
            return found, folder
    return _from_text(config_text, windowed=windowed)


def _readable(name: str) -> Model | None:
    """Return the model of a folder on this machine or of a preset; a server may well be on another machine."""
    folder = Path(name)
    if not preset_of(name) and not (folder.is_absolute() and (folder / "config.json").is_file()):
        return None
    try:
        return load_model(name)
    except LayoutError:  # a model whose layout kvverify does not know is served all the same
        return None


def _from_text(text: str, *, windowed: bool) -> tuple[Model | None, str]:
    """Read ``hf_config``, JSON or ``LlamaConfig {…}``.

    transformers prints only what differs from a class' defaults, so all that counts must be there.
    """
    hint = "give --model CONFIG for exact bytes"
    start = text.find("{")
    if start < 0:
        return None, f"the server does not tell its model's geometry; {hint}"
    try:
        config = json.loads(text[start:])
    except ValueError:
        return None, f"the model's configuration as the server prints it is not JSON; {hint}"
    missing = [name for name in _EXPLICIT if not isinstance(config.get(name), int)]
    if missing or windowed:
        why = f"lacks {', '.join(missing)}" if missing else "may have windows or states"
        return None, f"the model's configuration as the server prints it {why}; {hint}"
    try:
        return model_from_config(
            config, str(config.get("model_type", "model")), "/server_info hf_config"
        ), "/server_info"
    except LayoutError as error:
        return None, f"{error}; {hint}"


def with_dtype(model: Model, word: str) -> Model:
    """Return ``model`` in the dtype it is served in (``--dtype``), which is that of an ``auto`` cache."""
    name = ALIASES.get(word.removeprefix("torch."), word.removeprefix("torch."))
    return replace(model, dtype=name) if name in ("bf16", "fp16", "fp32") else model


def known_format(kv_cache_dtype: str) -> bool:
    """Does kvverify know this ``--kv-cache-dtype``?"""
    word = kv_cache_dtype.lower()
    return word == "auto" or ALIASES.get(word, word) in FORMATS


def words(value: Any) -> tuple[str, ...]:
    """Return a list of words that a server gives as a list, or as the text of one (a label)."""
    if isinstance(value, str):
        try:
            value = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            return ()
    return tuple(str(word) for word in value) if isinstance(value, (list, tuple)) else ()


def number(value: Any) -> int | None:
    """Return a whole number that a server gives as such or as a label's text, None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        exact = float(value)
    except (TypeError, ValueError):
        return None
    return int(exact) if math.isfinite(exact) and exact == int(exact) else None


def member(values: Mapping[str, Any], *path: str) -> Any:
    """Return ``values[path[0]][path[1]]…``, None where a step is missing."""
    found: Any = values
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found
