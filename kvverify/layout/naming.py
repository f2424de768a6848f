"""Short names of layouts, for reports and folders: ``lbnhc-bf16x4+tq4x4-h2-d128-n16-b7``."""

from __future__ import annotations

from kvverify.layout.formats import slot_format
from kvverify.layout.recipe import LayerRecipe, Recipe

_SPLIT_TAGS = {"fused": "", "block_kv": ".bkv", "kv_block": ".kvb"}
_NAMED_GROUPS = 3  # beyond, a name says how many groups there are of a kind, not which layers are theirs


def layout_name(recipe: Recipe) -> str:
    """Return the recipe's own name, else one made of its choices; those at their default are left out."""
    if recipe.name:
        return recipe.name
    shapes = {(run.heads, run.head_size) for run in recipe.layers}
    uniform = len(shapes) == 1
    parts = [recipe.order.lower(), "+".join(_formats(recipe, with_shape=not uniform))]
    if uniform:
        heads, head_size = shapes.pop()
        parts.append(f"h{heads}-d{head_size}")
    parts.append(f"n{recipe.block_tokens}-b{recipe.num_blocks}")
    parts.extend(_extras(recipe))
    return "-".join(parts)


def _formats(recipe: Recipe, with_shape: bool) -> list[str]:
    """Return format tags with layer counts, in order of first use."""
    counts: dict[str, int] = {}
    with_group = len(recipe.groups) <= _NAMED_GROUPS
    for run in recipe.layers:
        tag = _tag(run, with_shape, with_group)
        counts[tag] = counts.get(tag, 0) + run.count
    return [f"{tag}x{count}" for tag, count in counts.items()]


def _tag(run: LayerRecipe, with_shape: bool, with_group: bool) -> str:
    tag = slot_format(run.kv_format).tag + _SPLIT_TAGS.get(run.split, run.split)
    if with_shape:
        tag += f".h{run.heads}d{run.head_size}"
    if run.group and with_group:
        tag += f".g{run.group}"
    if run.alias_of is not None:
        tag += f".alias{run.alias_of}"
    return tag


def _extras(recipe: Recipe) -> list[str]:
    groups = [f"{g.kind}{g.block_tokens or ''}" for g in recipe.groups]
    if len(groups) > _NAMED_GROUPS:
        groups = [f"{groups.count(name)}x{name}" for name in dict.fromkeys(groups)]
    extras = {
        "k": recipe.kernel_block_tokens,
        "at": recipe.storage_offset,
        "gap": recipe.region_gap,
        "pad": recipe.page_padding,
        "align": recipe.block_stride_alignment if recipe.block_stride_alignment > 1 else 0,
        "sparse": len(recipe.usable_blocks) if recipe.usable_blocks is not None else 0,
    }
    named = [f"{word}{value}" for word, value in extras.items() if value]
    return named if groups == ["full"] else [*named, "+".join(groups)]
