"""From a recipe's runs of layers to single layers, and the refusal of recipes that cannot exist."""

from __future__ import annotations

from kvverify.errors import LayoutError, nearest
from kvverify.layout.formats import Arrangement, format_name
from kvverify.layout.recipe import LayerRecipe, Recipe
from kvverify.layout.row import ORDERS, SPLITS, LayerSpec

MAX_LAYERS = 10_000  # a mistyped count must not fill the memory


def check_recipe(recipe: Recipe) -> None:
    """Refuse what is wrong with a recipe as a whole.

    Raises:
        LayoutError: naming the entry, its value and the valid ones.
    """
    if recipe.order not in ORDERS:
        raise LayoutError(f"unknown order {recipe.order!r}; {nearest(recipe.order, ORDERS)}")
    if not recipe.layers or not recipe.groups:
        raise LayoutError("a recipe needs at least one layer and one group")
    for name in ("num_blocks", "block_tokens", "block_stride_alignment"):
        _at_least(name, getattr(recipe, name), 1)
    for name in ("storage_offset", "region_gap", "page_padding"):
        _at_least(name, getattr(recipe, name), 0)
    for i, group in enumerate(recipe.groups):
        if group.block_tokens is not None:
            _at_least(f"groups[{i}].block_tokens", group.block_tokens, 1)
    if recipe.kernel_block_tokens is not None:
        _at_least("kernel_block_tokens", recipe.kernel_block_tokens, 1)
    if recipe.region_gap and (recipe.order[0] == "B" or recipe.order == "LHBNC" or len(recipe.groups) > 1):
        raise LayoutError(
            f"region_gap {recipe.region_gap} with order {recipe.order} and {len(recipe.groups)} groups: only LBNHC and LBHNC "
            f"with one group have regions; use region_gap=0"
        )
    _check_usable_blocks(recipe)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise LayoutError(f"recipe {name}: got {value}, expected at least {least}")


def _check_usable_blocks(recipe: Recipe) -> None:
    blocks = recipe.usable_blocks
    if blocks is None:
        return
    if not blocks or list(blocks) != sorted(set(blocks)) or blocks[0] < 0 or blocks[-1] >= recipe.num_blocks:
        raise LayoutError(
            f"recipe usable_blocks: got {list(blocks)[:8]}, expected rising block ids between 0 and {recipe.num_blocks - 1}"
        )


def expand(recipe: Recipe) -> list[LayerSpec]:
    """Return one spec per layer that owns a tensor, by layer number; aliases are recorded on their owner.

    Raises:
        LayoutError: a run of layers that no engine could have; the message names its position in the recipe.
    """
    total = sum(_count(position, run) for position, run in enumerate(recipe.layers))
    if total > MAX_LAYERS:
        raise LayoutError(f"recipe layers: got {total} layers, expected at most {MAX_LAYERS}")
    runs = [(position, run) for position, run in enumerate(recipe.layers) for _ in range(run.count)]
    specs: dict[int, LayerSpec] = {}
    aliases: dict[int, list[str]] = {}
    for index, (position, run) in enumerate(runs):
        if run.alias_of is None:
            specs[index] = _spec(recipe, position, run, index)
        else:
            _check_alias(position, run, index, runs)
            aliases.setdefault(run.alias_of, []).append(f"layers.{index}")
    result = [_with_aliases(spec, aliases.get(index, [])) for index, spec in specs.items()]
    _check_together(recipe, result)
    return result


def _count(position: int, run: LayerRecipe) -> int:
    _at_least(f"layers[{position}].count", run.count, 1)
    return run.count


def _check_alias(position: int, run: LayerRecipe, index: int, runs: list[tuple[int, LayerRecipe]]) -> None:
    where = f"recipe layers[{position}].alias_of"
    owner = run.alias_of
    assert owner is not None
    if not 0 <= owner < len(runs) or runs[owner][1].alias_of is not None or owner == index:
        raise LayoutError(f"{where}: got layer {owner}, expected a layer 0 to {len(runs) - 1} that owns its tensor")
    mine, theirs = ((format_name(r.kv_format), r.heads, r.head_size, r.group, r.split) for r in (run, runs[owner][1]))
    if mine != theirs:
        raise LayoutError(f"{where}: layer {index} is {mine}, layer {owner} is {theirs}; a shared tensor has one shape")


def _spec(recipe: Recipe, position: int, run: LayerRecipe, index: int) -> LayerSpec:
    where = f"recipe layers[{position}]"
    if not 0 <= run.group < len(recipe.groups):
        raise LayoutError(f"{where}.group: got {run.group}, expected 0 to {len(recipe.groups) - 1}")
    name = format_name(run.kv_format)
    block_tokens = recipe.groups[run.group].block_tokens or recipe.block_tokens
    spec = LayerSpec(index, run.group, name, run.heads, run.head_size, run.split, block_tokens, block_tokens)
    try:
        spec.format.parts(run.heads, run.head_size)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    _check_split(recipe, where, spec)
    row_tokens = recipe.kernel_block_tokens or block_tokens
    if spec.format.arrangement is Arrangement.STATE:
        block_tokens = row_tokens = 1
    if block_tokens % row_tokens:
        raise LayoutError(
            f"{where}: blocks of {block_tokens} tokens cannot be split into kernel blocks of {row_tokens}; "
            f"kernel_block_tokens must divide block_tokens"
        )
    return LayerSpec(index, run.group, name, run.heads, run.head_size, run.split, block_tokens, row_tokens)


def _check_split(recipe: Recipe, where: str, spec: LayerSpec) -> None:
    if spec.split not in SPLITS:
        raise LayoutError(f"{where}.split: unknown {spec.split!r}; {nearest(spec.split, SPLITS)}")
    if spec.split == "fused":
        return
    if not spec.format.splittable:
        raise LayoutError(f"{where}.split: {spec.kv_format} holds K and V in one slot; got {spec.split!r}, use 'fused'")
    allowed = ("LBNHC", "LBHNC", "BLNHC", "BLHNC") if spec.split == "block_kv" else ("LBNHC", "LBHNC")
    if recipe.order not in allowed:
        raise LayoutError(
            f"{where}.split: {spec.split!r} has no meaning in order {recipe.order}; use one of {', '.join(allowed)}"
        )


def _with_aliases(spec: LayerSpec, aliases: list[str]) -> LayerSpec:
    if not aliases:
        return spec
    return LayerSpec(
        spec.index,
        spec.group,
        spec.kv_format,
        spec.heads,
        spec.head_size,
        spec.split,
        spec.block_tokens,
        spec.row_tokens,
        tuple(aliases),
    )


def _check_together(recipe: Recipe, specs: list[LayerSpec]) -> None:
    for group in range(len(recipe.groups)):
        if not any(spec.group == group for spec in specs):
            raise LayoutError(f"recipe groups[{group}] has no layer; give it one or remove it")
    if recipe.order not in ("LHBNC", "BHLNC"):
        return
    shapes = {spec.shape_key for spec in specs}
    if len(shapes) > 1:
        got = ", ".join(f"{s[0]} heads={s[1]} head_size={s[2]}" for s in sorted(shapes))
        raise LayoutError(
            f"order {recipe.order} needs layers of one shape, got {got}; mixed models need LBNHC, LBHNC, BLNHC or BLHNC"
        )
    spec = specs[0]
    if spec.format.arrangement is not Arrangement.CELLS and spec.head_slots > 1:
        raise LayoutError(
            f"order {recipe.order}: {spec.kv_format} needs each block as one dense page; use LBNHC, LBHNC, BLNHC or BLHNC"
        )
    if recipe.page_padding or recipe.block_stride_alignment > 1:
        raise LayoutError(
            f"order {recipe.order} cannot pad pages (page_padding {recipe.page_padding}, block_stride_alignment "
            f"{recipe.block_stride_alignment}); use LBNHC, LBHNC, BLNHC or BLHNC"
        )
    if spec.rows_per_block > 1:
        raise LayoutError(
            f"order {recipe.order} cannot split blocks into kernel blocks: a block is not one dense page; use LBNHC or LBHNC"
        )
