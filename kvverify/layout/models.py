"""The attention geometry of a model, from a Hugging Face config.json, a folder that holds one, a hub id or a preset name."""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from kvverify.errors import LayoutError, nearest
from kvverify.layout.expand import MAX_LAYERS
from kvverify.layout.state import state_bytes

FULL, SLIDING, CHUNKED, MAMBA = "full", "sliding_window", "chunked", "mamba"
_LAYER_TYPES = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": MAMBA,
}
_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


@dataclass(frozen=True, slots=True)
class Model:
    """What decides the KV cache of a model.

    ``kinds`` names each layer's attention: full, sliding_window, chunked or mamba. ``kv_heads`` and ``head_size`` are those of
    the whole model (not of one rank). ``latent_size`` is kv_lora_rank + qk_rope_head_dim of an MLA model, else 0;
    ``indexer_size`` the head size of its sparse-attention indexer, else 0; ``state_bytes`` the state of one mamba layer.
    ``shared_from`` maps a layer to the earlier layer whose cache it uses.
    """

    name: str
    kinds: tuple[str, ...]
    attention_heads: int
    kv_heads: int
    head_size: int
    dtype: str
    latent_size: int = 0
    indexer_size: int = 0
    state_bytes: int = 0
    shared_from: tuple[tuple[int, int], ...] = ()

    @property
    def is_mla(self) -> bool:
        """Does the model cache one latent vector per token instead of K and V?"""
        return self.latent_size > 0

    @property
    def has_states(self) -> bool:
        """Does the model have mamba or linear-attention layers beside attention?"""
        return MAMBA in self.kinds


def preset_names() -> tuple[str, ...]:
    """Return the names of the models that need no file."""
    return tuple(_presets())


def preset_of(model: str) -> str | None:
    """Return the preset that ``model``, a preset's name or a hub id, means; None where there is none."""
    wanted = model.lower()
    return next((n for n, p in _presets().items() if wanted in (n, *(hub_id.lower() for hub_id in p["hub_ids"]))), None)


def load_model(model: str) -> Model:
    """Return the model that ``model`` names: a folder with config.json, a config.json, a preset or a hub id.

    Raises:
        LayoutError: nothing of that name, or a config.json without the needed fields.
    """
    presets = _presets()
    name = preset_of(model)
    if name is not None:
        return model_from_config(presets[name]["config"], name, f"preset {name}")
    path = Path(model).expanduser()
    if path.exists():
        return _from_path(path)
    if path.suffix == ".json" or model.startswith((".", "/", "~")):
        raise LayoutError(f"model {model}: no such file or folder; expected a config.json or a folder that holds one")
    if "/" in model:
        return _from_hub(model)
    raise LayoutError(f"unknown model {model!r}; {nearest(model, presets)}; or a folder with config.json")


def _presets() -> dict[str, Any]:
    text = resources.files("kvverify.layout").joinpath("presets.json").read_text(encoding="utf-8")
    presets: dict[str, Any] = json.loads(text)
    return presets


def _from_path(path: Path) -> Model:
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LayoutError(f"model {path}: cannot read {file}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:  # JSON or UTF-8; brackets nested without end
        raise LayoutError(f"model {path}: {file} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise LayoutError(f"model {path}: {file} holds a JSON {type(config).__name__}, expected an object")
    return model_from_config(config, path.resolve().name if path.is_dir() else path.stem, str(file))


def _from_hub(hub_id: str) -> Model:
    try:
        hub = importlib.import_module("huggingface_hub")
    except ImportError:
        raise LayoutError(
            f"model {hub_id!r} is no preset, and huggingface_hub is not installed to look it up; install it, give a folder "
            f"with config.json, or use a preset: {', '.join(_presets())}"
        ) from None
    try:
        file = hub.hf_hub_download(hub_id, "config.json")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()
        raise LayoutError(
            f"model {hub_id!r}: no config.json from the hub ({type(error).__name__}: {reason[0] if reason else ''}); give a "
            f"folder with config.json, or use a preset: {', '.join(_presets())}"
        ) from error
    config = json.loads(Path(file).read_text(encoding="utf-8"))
    return model_from_config(config, hub_id, f"{hub_id}/config.json")


class _Fields:
    """Typed access to a config; a problem names file and field."""

    def __init__(self, config: Mapping[str, Any], where: str) -> None:
        nested = config.get("text_config")
        self.where = where
        self.values: Mapping[str, Any] = {**config, **nested} if isinstance(nested, Mapping) else config

    def get(self, *names: str) -> Any:
        return next((self.values[n] for n in names if self.values.get(n) is not None), None)

    def number(self, *names: str) -> int | None:
        value = self.get(*names)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise LayoutError(
                f"{self.where}: field {' or '.join(names)}: got {value!r}, expected a whole number above 0"
            )
        return value

    def needed(self, *names: str) -> int:
        value = self.number(*names)
        if value is None:
            raise LayoutError(f"{self.where}: field {' or '.join(names)} is missing; expected a whole number")
        return value


def model_from_config(config: Mapping[str, Any], name: str, where: str) -> Model:
    """Return the model described by the fields of a config.json; ``where`` is what an error line calls the file.

    Raises:
        LayoutError: a field is missing or has a value that cannot be; the line names file and field.
    """
    fields = _Fields(config, where)
    layers = fields.needed("num_hidden_layers", "n_layer", "num_layers")
    if layers > MAX_LAYERS:
        raise LayoutError(f"{where}: field num_hidden_layers: got {layers}, expected at most {MAX_LAYERS}")
    heads = fields.needed("num_attention_heads", "n_head")
    rank = fields.number("kv_lora_rank")
    kinds = _kinds(fields, layers)
    return Model(
        name=name,
        kinds=kinds,
        attention_heads=heads,
        kv_heads=1 if rank else fields.number("num_key_value_heads") or heads,
        head_size=fields.number("head_dim") or _head_size(fields, heads),
        dtype=_dtype(fields),
        latent_size=rank + fields.needed("qk_rope_head_dim") if rank else 0,
        indexer_size=(fields.number("index_head_dim") or 0) if rank else 0,
        state_bytes=state_bytes(fields.needed, _dtype(fields)) if MAMBA in kinds else 0,
        shared_from=_shared(fields, kinds),
    )


def _head_size(fields: _Fields, heads: int) -> int:
    hidden = fields.number("hidden_size", "n_embd")
    if hidden is None:
        raise LayoutError(f"{fields.where}: field head_dim is missing, and so is hidden_size to compute it from")
    if hidden % heads:
        raise LayoutError(
            f"{fields.where}: hidden_size {hidden} is not a multiple of num_attention_heads {heads}; give head_dim"
        )
    return hidden // heads


def _dtype(fields: _Fields) -> str:
    word = str(fields.get("dtype", "torch_dtype") or "bfloat16").removeprefix("torch.")
    if word not in _DTYPES:
        raise LayoutError(f"{fields.where}: field torch_dtype: unknown {word!r}; {nearest(word, _DTYPES)}")
    return _DTYPES[word]


def _kinds(fields: _Fields, layers: int) -> tuple[str, ...]:
    types = fields.get("layer_types")
    if types is not None:
        if not isinstance(types, list) or len(types) != layers:
            raise LayoutError(f"{fields.where}: field layer_types: expected a list of {layers} words, one per layer")
        return tuple(_kind(fields, str(word)) for word in types)
    marks = fields.get("attn_type_list")
    if isinstance(marks, list) and 0 in marks:
        raise LayoutError(
            f"{fields.where}: field attn_type_list: layers of type 0 (lightning attention) are not supported"
        )
    interval = fields.number("full_attention_interval")
    if interval:
        return tuple(FULL if (i + 1) % interval == 0 else MAMBA for i in range(layers))
    window = fields.number("sliding_window")
    if window is None or fields.get("use_sliding_window") is False:
        return (FULL,) * layers
    pattern = fields.number("sliding_window_pattern", "_sliding_window_pattern")
    if pattern is None:
        return (SLIDING,) * layers
    return tuple(FULL if (i + 1) % pattern == 0 else SLIDING for i in range(layers))


def _kind(fields: _Fields, word: str) -> str:
    if word not in _LAYER_TYPES:
        raise LayoutError(f"{fields.where}: field layer_types: unknown {word!r}; {nearest(word, _LAYER_TYPES)}")
    return _LAYER_TYPES[word]


def _shared(fields: _Fields, kinds: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return pairs (layer, owner): the last layers of some models reuse the cache of the last own layer of their kind."""
    # 0 says that no layer shares
    shared = fields.number("num_kv_shared_layers") if fields.get("num_kv_shared_layers") else None
    first = len(kinds) - (shared or 0)
    pairs = []
    for layer in range(max(first, 1), len(kinds)):
        owners = [i for i in range(first) if kinds[i] == kinds[layer]]
        if not owners:
            raise LayoutError(
                f"{fields.where}: field num_kv_shared_layers: layer {layer} has no earlier {kinds[layer]} layer"
            )
        pairs.append((layer, owners[-1]))
    return tuple(pairs)
