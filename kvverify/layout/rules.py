"""Engine rules: from a model, a KV dtype and a tensor-parallel size to the layers, groups and block size of one rank.

The rules are vLLM 0.32's. ``vllm-gfx950`` is the same engine on AMD gfx950 with FlyDSL, which stores TurboQuant as
structure-of-arrays (``v1/attention/ops/turboquant_soa``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvverify.errors import LayoutError, nearest
from kvverify.layout.formats import FORMATS, format_name, slot_format
from kvverify.layout.models import FULL, MAMBA, SLIDING, Model
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe
from kvverify.layout.row import ORDERS

ENGINES = ("vllm", "vllm-gfx950")
DEFAULT_BLOCK_TOKENS = 16
_SPARSE_MLA_BLOCK_TOKENS = 64
_TURBOQUANT_KERNEL_BLOCKS = (128, 64, 32, 16)
_BOUNDARY_LAYERS = 2
_ORDER_ALIASES = {"NHD": "LBNHC", "HND": "LBHNC"}


@dataclass(frozen=True, slots=True)
class _Planned:
    """One layer of one rank before it is given a group."""

    kind: str
    kv_format: str
    heads: int
    head_size: int
    owner: int | None = None


def recipe_for(
    model: Model,
    kv_cache_dtype: str = "auto",
    *,
    tp: int = 1,
    block_size: int | None = None,
    engine: str = "vllm",
    num_blocks: int = 8,
    order: str | None = None,
    skip_layers: Sequence[str] = (),
) -> Recipe:
    """Return the recipe of one rank's KV cache.

    ``block_size`` is the wish in tokens; the engine's alignment may raise it. ``skip_layers`` are layer numbers, or the word
    ``sliding_window``, that stay in the model's dtype; the boundary layers of TurboQuant are added to them.

    Raises:
        LayoutError: the engine refuses this combination; the line says why.
    """
    if engine not in ENGINES:
        raise LayoutError(f"unknown engine {engine!r}; {nearest(engine, ENGINES)}")
    name = _engine_format(model, kv_cache_dtype, engine)
    chosen = _order(order, name)
    heads = heads_per_rank(model, tp)
    skipped = skipped_layers(model, name, skip_layers)
    planned = _plan(model, name, heads, tp, skipped)
    tokens = _block_tokens(planned, name, model.dtype, block_size, skipped=bool(skipped))
    layers, groups = _group(planned, tokens)
    return Recipe(
        layers=layers,
        order=chosen,
        num_blocks=num_blocks,
        block_tokens=tokens,
        groups=groups,
        kernel_block_tokens=_kernel_tokens(name, tokens),
    )


def heads_per_rank(model: Model, tp: int) -> int:
    """Return the KV heads of one rank: sliced while there are enough, then replicated; an MLA latent is always replicated.

    Raises:
        LayoutError: the heads cannot be divided.
    """
    if tp < 1:
        raise LayoutError(f"tp: got {tp}, expected at least 1")
    if model.attention_heads % tp:
        raise LayoutError(f"model {model.name}: {model.attention_heads} attention heads cannot be divided by tp {tp}")
    if model.state_bytes % tp:
        raise LayoutError(f"model {model.name}: states of {model.state_bytes} bytes cannot be divided by tp {tp}")
    if model.is_mla:
        return 1
    if model.kv_heads % tp and tp % model.kv_heads:
        raise LayoutError(
            f"model {model.name}: {model.kv_heads} KV heads can be neither divided by tp {tp} nor replicated evenly"
        )
    return max(1, model.kv_heads // tp)


def skipped_layers(model: Model, kv_format: str, wish: Sequence[str] = ()) -> frozenset[int]:
    """Return the layers that stay in the model's dtype.

    TurboQuant keeps the first and last two of a dense model, at most half of the layers on each side; models with states keep
    none. Users can add layers, not remove them (vLLM ``TurboQuantConfig.get_boundary_skip_layers``).

    Raises:
        LayoutError: a wish that names no layer.
    """
    count = len(model.kinds)
    skipped: set[int] = set()
    for word in wish:
        if word == SLIDING:
            skipped.update(i for i, kind in enumerate(model.kinds) if kind == SLIDING)
        elif word.isdecimal() and int(word) < count:
            skipped.add(int(word))
        else:
            raise LayoutError(f"skip layer {word!r}: expected a layer number 0 to {count - 1} or 'sliding_window'")
    if kv_format.startswith("turboquant") and not model.has_states:
        side = min(_BOUNDARY_LAYERS, count // 2)
        skipped |= {*range(side), *range(count - side, count)}
    return frozenset(skipped)


def aligned_block_tokens(wish: int, plain_bytes: int, first_layer_bytes: int, state_bytes: int = 0) -> int:
    """Return the block size to which vLLM raises ``wish`` where two KV dtypes, or states, share the block pool.

    ``plain_bytes`` is one token's page in the model's dtype, 0 where no layer was skipped; ``first_layer_bytes`` one token's
    page as the *first* layer's backend sees the quantised dtype (``platforms/interface.py``,
    ``_align_heterogeneous_kv_block_size``); ``state_bytes`` the page of a state layer, which an attention page must cover.
    """
    needed = max(plain_bytes * DEFAULT_BLOCK_TOKENS, state_bytes)
    step = max(DEFAULT_BLOCK_TOKENS, wish) if plain_bytes else DEFAULT_BLOCK_TOKENS
    return max(wish, step * -(-needed // (step * first_layer_bytes)))


def _engine_format(model: Model, kv_cache_dtype: str, engine: str) -> str:
    name = format_name(kv_cache_dtype, model.dtype)
    if model.is_mla:
        return _mla_format(model, kv_cache_dtype, name)
    fmt = FORMATS[name]
    if fmt.one_head:
        raise LayoutError(
            f"model {model.name}: KV dtype {name} is for MLA models; use auto, fp8 or a TurboQuant preset"
        )
    if name.startswith("turboquant"):
        if {SLIDING, "chunked"} & set(model.kinds):
            raise LayoutError(
                f"model {model.name}: TurboQuant does not support sliding-window or chunked attention, which "
                f"{sum(kind not in (FULL, MAMBA) for kind in model.kinds)} of its layers use; use fp8 or auto"
            )
        if engine == "vllm-gfx950" and not name.endswith("_soa"):
            name += "_soa"
    return name


def _mla_format(model: Model, kv_cache_dtype: str, name: str) -> str:
    if FORMATS[name].one_head and name not in ("dsa_indexer", "mamba_state"):
        return name
    if name in ("bf16", "fp16"):
        return "mla_bf16"
    if name == "fp8_e4m3":
        return "fp8_ds_mla" if model.indexer_size else "mla_fp8"
    if name.startswith("turboquant"):
        raise LayoutError(
            f"model {model.name}: TurboQuant does not support MLA attention, whose cache is one latent vector without heads; "
            f"use auto, fp8, fp8_ds_mla or nvfp4_ds_mla"
        )
    raise LayoutError(
        f"model {model.name}: KV dtype {kv_cache_dtype!r} does not exist for MLA; use auto, fp8, fp8_ds_mla or nvfp4_ds_mla"
    )


def _order(order: str | None, kv_format: str) -> str:
    if order is None:
        return "LBNHC"
    chosen = _ORDER_ALIASES.get(order.upper(), order.upper())
    if chosen not in ORDERS:
        raise LayoutError(f"unknown order {order!r}; {nearest(order, [*ORDERS, *_ORDER_ALIASES])}")
    if kv_format.startswith("turboquant") and chosen != "LBNHC":
        raise LayoutError(f"order {chosen}: TurboQuant's attention backend accepts LBNHC (NHD) only")
    return chosen


def _plan(model: Model, name: str, heads: int, tp: int, skipped: frozenset[int]) -> list[_Planned]:
    plain = "mla_bf16" if model.is_mla else model.dtype
    size = model.latent_size or model.head_size
    if slot_format(name).fixed_head_size == 512:  # records of newer DeepSeek models count the rotary part in
        size = 512
    owners = dict(model.shared_from)
    planned = [
        _Planned(MAMBA, "mamba_state", 1, model.state_bytes // tp)
        if kind == MAMBA
        else _Planned(kind, plain if layer in skipped else name, heads, size, owners.get(layer))
        for layer, kind in enumerate(model.kinds)
    ]
    if model.indexer_size:
        planned += [_Planned(FULL, "dsa_indexer", 1, model.indexer_size)] * len(model.kinds)
    slot_format(name).parts(heads, size)  # refuses impossible geometries, also where every layer is skipped
    return planned


def _block_tokens(planned: list[_Planned], name: str, model_dtype: str, wish: int | None, *, skipped: bool) -> int:
    if wish is not None and wish < 1:
        raise LayoutError(f"block size: got {wish}, expected at least 1 token")
    if wish is None:
        indexed = any(layer.kv_format == "dsa_indexer" for layer in planned)
        wish = _SPARSE_MLA_BLOCK_TOKENS if indexed else DEFAULT_BLOCK_TOKENS
    state = max((layer.head_size for layer in planned if layer.kind == MAMBA), default=0)
    first = next(layer for layer in planned if layer.kind != MAMBA)
    if slot_format(first.kv_format).one_head or not (skipped or state):
        return wish
    plain = slot_format(model_dtype)
    plain_bytes = plain.cell_bytes(first.heads, first.head_size) * first.heads
    first_bytes = _token_bytes(first)
    if first.kv_format == model_dtype:
        # a skipped first layer runs a 16-bit backend, which sees one element for each value whatever the packing
        first_bytes = first_bytes // plain.element_bytes * slot_format(name).element_bytes
    unequal = skipped and first_bytes != plain_bytes
    return aligned_block_tokens(wish, plain_bytes if unequal else 0, first_bytes, state)


def _token_bytes(layer: _Planned) -> int:
    return slot_format(layer.kv_format).cell_bytes(layer.heads, layer.head_size) * layer.heads


def _kernel_tokens(name: str, tokens: int) -> int | None:
    if not name.startswith("turboquant"):
        return None
    for size in _TURBOQUANT_KERNEL_BLOCKS:
        if tokens % size == 0:
            return None if size == tokens else size
    raise LayoutError(
        f"block size {tokens}: TurboQuant's kernels work on 16, 32, 64 or 128 tokens; use a multiple of 16"
    )


def _group(planned: list[_Planned], tokens: int) -> tuple[tuple[LayerRecipe, ...], tuple[GroupRecipe, ...]]:
    """Give every layer its group: one where all layers keep every token, else groups of equally many layers.

    vLLM ``_get_kv_cache_groups_uniform_page_size``: the rarest kind decides the number of layers in a group, unless the
    commonest has less than 1.5 times as many; layers of a kind are dealt to its groups in turn. Smaller pages get more tokens
    where that fits, padding elsewhere.
    """
    owners = [i for i, layer in enumerate(planned) if layer.owner is None]
    kinds = {planned[i].kind for i in owners}
    group_of = dict.fromkeys(owners, 0)
    if len(kinds) == 1:
        groups = [GroupRecipe(kinds.pop())]
    else:
        buckets: dict[tuple[str, str], list[int]] = {}
        for i in owners:
            buckets.setdefault((planned[i].kind, planned[i].kv_format), []).append(i)
        counts = [len(layers) for layers in buckets.values()]
        size = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
        groups = []
        for (kind, _), layers in buckets.items():
            number = -(-len(layers) // size)
            for position, i in enumerate(layers):
                group_of[i] = len(groups) + position % number
            groups += [GroupRecipe(kind, _unified_tokens(planned, planned[layers[0]], tokens))] * number
    runs = [
        LayerRecipe(
            layer.kv_format,
            layer.heads,
            layer.head_size,
            group=group_of[i if layer.owner is None else layer.owner],
            alias_of=layer.owner,
        )
        for i, layer in enumerate(planned)
    ]
    return _runs(runs), tuple(groups)


def _unified_tokens(planned: list[_Planned], layer: _Planned, tokens: int) -> int | None:
    if layer.kind == MAMBA:
        return None
    largest = max(_token_bytes(p) for p in planned if p.kind != MAMBA)
    ratio, rest = divmod(largest, _token_bytes(layer))
    return tokens * ratio if ratio > 1 and not rest else None


def _runs(layers: list[LayerRecipe]) -> tuple[LayerRecipe, ...]:
    """Return equal neighbours as one run."""
    runs: list[LayerRecipe] = []
    for layer in layers:
        if runs and replace(runs[-1], count=1) == layer:
            runs[-1] = replace(runs[-1], count=runs[-1].count + 1)
        else:
            runs.append(layer)
    return tuple(runs)
