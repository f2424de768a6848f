"""The layouts a campaign draws from when no model is named.

Each buffer takes about 1 MiB at most, so that a sequence costs milliseconds, and is as awkward as its size allows: two
formats side by side, 2 heads or 2 blocks (where layouts have the same shape), odd pages, gaps, padding. The first layouts
cover every format, every order and the common mixes, so that a short campaign meets them all.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from kvverify.layout.formats import format_name
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe

TQ4, TQ3 = "turboquant_4bit_nc", "turboquant_3bit_nc"
K8V4, K3V4 = "turboquant_k8v4", "turboquant_k3v4_nc"
_COMPANIONS = {"bf16", "fp16", "mla_bf16", "dsa_indexer", "mamba_state"}  # formats that accompany the one under test


@cache
def campaign_pool() -> tuple[Recipe, ...]:
    """Return the recipes, most telling first; their layout names are unique."""
    return (
        *_first(),
        *_slots(),
        *_orders(),
        *_heads_and_blocks(),
        *_splits(),
        *_kernel_blocks(),
        *_gaps_and_padding(),
        *_odd_pages(),
        *_groups(),
        *_aliases(),
        *_records(),
        *_sparse(),
    )


def filter_pool(dtype: str, pool: tuple[Recipe, ...] | None = None) -> tuple[Recipe, ...]:
    """Return the recipes of ``pool``, the campaign's if not given, that exercise the KV dtype ``dtype``, alone or beside 16-bit layers.

    Raises:
        LayoutError: unknown dtype.
    """
    wanted = format_name(dtype)
    return tuple(recipe for recipe in pool or campaign_pool() if wanted in _tested_formats(recipe))


def _tested_formats(recipe: Recipe) -> set[str]:
    formats = {run.kv_format for run in recipe.layers}
    return formats - _COMPANIONS or formats


def _mix(order: str, formats: str, *, heads: int = 2, head_size: int = 128, blocks: int = 7, **choices: Any) -> Recipe:
    """Return a recipe from words such as ``"bf16*2 turboquant_4bit_nc bf16"``."""
    runs = []
    for word in formats.split():
        name, _, count = word.partition("*")
        runs.append(LayerRecipe(name, heads, head_size, int(count or 1)))
    return Recipe(tuple(runs), order=order, num_blocks=blocks, **choices)


def _first() -> tuple[Recipe, ...]:
    return (
        _mix("LBNHC", f"bf16 {TQ4}*3 bf16"),
        _mix("BLNHC", f"bf16 {K8V4}*2 bf16", heads=3, head_size=64),
        _mix("LBHNC", f"bf16 {K3V4}*2", heads=8, head_size=64, blocks=5, storage_offset=4096),
        _mix("BLHNC", f"{TQ3}*2 bf16 {TQ3}", heads=2, head_size=64, blocks=9, block_tokens=32),
        _mix("LHBNC", "bf16*3", head_size=64, blocks=8),
        _mix("BHLNC", "fp8_e4m3*3", heads=3, head_size=64, blocks=8),
        _mix("LBNHC", "fp8_per_token_head*2 bf16 int8_per_token_head", head_size=64, blocks=9),
        _mix("LBHNC", "fp16 int4_per_token_head*3", head_size=128, blocks=9, region_gap=256),
        _mix("LBNHC", f"bf16 {TQ4}_soa*2 {TQ3}_soa", blocks=8),
        _mix("BLNHC", f"bf16 {K8V4}_soa {K3V4}_soa", heads=3, head_size=64, blocks=8),
        _mix("LBHNC", "bf16 nvfp4*3", head_size=64, blocks=9),
        _mix("LBNHC", "bf16 ultraquant_4bit*3 bf16", blocks=6),
        Recipe(
            (LayerRecipe("fp32", 2, 64, split="block_kv"), LayerRecipe("fp8_e5m2", 2, 64, 2, split="block_kv")),
            num_blocks=5,
            storage_offset=64,
        ),
        Recipe((LayerRecipe("bf16", 2, 64, 3, split="kv_block"),), num_blocks=2, block_tokens=32),
        Recipe(
            (LayerRecipe("mla_bf16", 1, 576), LayerRecipe("mla_fp8", 1, 576), LayerRecipe("dsa_indexer", 1, 128, 2)),
            num_blocks=9,
        ),
        Recipe(
            (LayerRecipe("fp8_ds_mla", 1, 576, 2), LayerRecipe("dsa_indexer", 1, 128, 2)),
            order="BLNHC",
            num_blocks=9,
            block_tokens=32,
        ),
        Recipe(
            (
                LayerRecipe("nvfp4_ds_mla", 1, 576),
                LayerRecipe("fp8_ds_mla_584", 1, 512),
                LayerRecipe("fp8_ds_mla_528", 1, 512),
            ),
            num_blocks=7,
            block_stride_alignment=64,
            block_tokens=32,
        ),
        Recipe(
            (LayerRecipe("bf16", 2, 64, 3), LayerRecipe("mamba_state", 1, 6_150, 2, group=1)),
            num_blocks=8,
            groups=(GroupRecipe(), GroupRecipe("mamba")),
        ),
        _mix("LBNHC", f"bf16 {TQ4}*2", heads=1, blocks=5, block_tokens=64, kernel_block_tokens=16),
        _mix("LBHNC", f"bf16 {TQ4}*2 bf16", heads=3, head_size=64, page_padding=48, block_stride_alignment=256),
        _sparse_regions("turboquant_4bit_nc"),
    )


def _slots() -> tuple[Recipe, ...]:
    """Every slot size from 54 to 388 bytes beside bf16, over the block-compact orders, and alone."""
    orders = ("LBNHC", "BLNHC", "LBHNC", "BLHNC")
    tokens = (16, 32, 16, 64)
    recipes = []
    presets = (TQ3, K3V4, TQ4, K8V4)
    for i, (preset, head_size) in enumerate((p, d) for d in (64, 128, 256) for p in presets):
        heads = {64: (2, 3)[i % 2], 128: (1, 2)[i % 2], 256: 1}[head_size]
        recipes.append(
            _mix(
                orders[(i + i // 4) % 4],
                f"bf16 {preset}*3" if i % 2 else f"{preset}*2 bf16 {preset}",
                heads=heads,
                head_size=head_size,
                blocks=(3, 6, 4)[i % 3],
                block_tokens=tokens[(i // 4 + i) % 4],
            )
        )
        recipes.append(
            _mix("LBNHC", f"{preset}*3", heads=(1, 8, 3)[i % 3], head_size=head_size, blocks=(6, 3, 9)[i % 3])
        )
    recipes.append(_mix("BLNHC", "fp16 ultraquant_4bit*2 fp16", head_size=64))
    recipes.append(_mix("BLHNC", "bf16 nvfp4*2 bf16", heads=1, blocks=9))
    recipes.append(_mix("BLNHC", "bf16 fp8_per_token_head*3", heads=3, head_size=64))
    recipes.append(_mix("BLHNC", "int8_per_token_head*2 bf16", head_size=64, blocks=9))
    recipes.append(_mix("BLNHC", "bf16 int4_per_token_head*3", heads=3, head_size=96, blocks=5))
    recipes.append(
        _mix("LBHNC", f"bf16 {TQ4}*2 ultraquant_4bit int4_per_token_head", blocks=5)
    )  # 134, 136 and 136 bytes
    recipes.append(_mix("LBNHC", f"bf16 {TQ4} {TQ4}_soa", blocks=6))  # same page size, other bytes
    return tuple(recipes)


def _orders() -> tuple[Recipe, ...]:
    """All six orders, each with a 16-bit and a packed model whose layers have one shape."""
    recipes = []
    for i, order in enumerate(("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC")):
        recipes.append(_mix(order, "bf16*3", heads=(3, 2, 8, 1, 2, 3)[i], head_size=64, blocks=4))
        recipes.append(_mix(order, f"{TQ4}*4", heads=(2, 8, 2, 3, 1, 8)[i], head_size=64, blocks=6))
    recipes.append(_mix("LHBNC", f"{TQ3}*2", heads=3, head_size=64, blocks=33))
    recipes.append(_mix("BHLNC", f"{K8V4}*3", heads=2, head_size=64, blocks=2))
    recipes.append(_mix("LHBNC", "fp8_per_token_head*2", heads=2, head_size=64, blocks=2))
    recipes.append(_mix("BHLNC", "int4_per_token_head*3", heads=3, head_size=64, blocks=3))
    recipes.append(_mix("BHLNC", "fp16*2", heads=2, head_size=64, blocks=2))
    recipes.append(_mix("LHBNC", "fp32*2", heads=3, head_size=32, blocks=3))
    return tuple(recipes)


def _heads_and_blocks() -> tuple[Recipe, ...]:
    """Two heads or two blocks hide an exchanged dimension; 33 blocks leave a tail after every power of two."""
    recipes = []
    for heads in (1, 2, 3, 8):
        for blocks in (2, 3, 33):
            if heads * blocks <= 100:
                order = ("LBNHC", "BLNHC", "LBHNC", "BLHNC")[(heads + blocks) % 4]
                recipes.append(_mix(order, f"bf16 {TQ4}*2", heads=heads, head_size=64, blocks=blocks))
    recipes.append(_mix("LBNHC", f"bf16 {TQ3}", heads=8, head_size=32, blocks=33))
    return tuple(recipes)


def _splits() -> tuple[Recipe, ...]:
    """K and V in a dimension of their own, where 2 heads or 2 blocks give several dimensions the size 2."""
    cases = [
        ("LBNHC", "bf16", 2, 2, "block_kv"),
        ("LBNHC", "bf16", 2, 33, "kv_block"),
        ("LBHNC", "bf16", 2, 2, "kv_block"),
        ("LBHNC", "fp16", 2, 33, "block_kv"),
        ("BLNHC", "bf16", 2, 2, "block_kv"),
        ("BLHNC", "fp8_e4m3", 3, 5, "block_kv"),
        ("LBNHC", "fp8_e4m3", 1, 33, "kv_block"),
        ("LBHNC", "fp8_e5m2", 8, 2, "kv_block"),
    ]
    return tuple(
        Recipe((LayerRecipe(fmt, heads, 64, 2, split=split),), order=order, num_blocks=blocks)
        for order, fmt, heads, blocks, split in cases
    )


def _kernel_blocks() -> tuple[Recipe, ...]:
    return (
        _mix("LBNHC", "bf16*2", heads=1, head_size=64, blocks=3, block_tokens=256, kernel_block_tokens=16),
        _mix("LBHNC", f"bf16 {TQ4}*2", heads=2, head_size=64, blocks=4, block_tokens=256, kernel_block_tokens=64),
        _mix("LBHNC", f"{K8V4}*3", heads=3, head_size=64, blocks=3, block_tokens=64, kernel_block_tokens=16),
        _mix("LBNHC", f"{TQ4}_soa*2", heads=2, head_size=64, blocks=4, block_tokens=64, kernel_block_tokens=16),
        _mix("LBHNC", "nvfp4*2 bf16", heads=1, head_size=64, blocks=4, block_tokens=128, kernel_block_tokens=64),
        Recipe(
            (LayerRecipe("bf16", 2, 64, 2, split="kv_block"),), num_blocks=3, block_tokens=64, kernel_block_tokens=16
        ),
        _mix("LBNHC", f"bf16 {TQ3}*2", heads=1, head_size=64, blocks=3, block_tokens=256),
    )


def _gaps_and_padding() -> tuple[Recipe, ...]:
    return (
        _mix("LBNHC", f"bf16 {TQ4}*2 bf16", head_size=64, storage_offset=2, region_gap=6),
        _mix("LBHNC", f"{TQ3}*2 fp16", head_size=64, storage_offset=4094, region_gap=4096),
        _mix("BLNHC", f"bf16 {TQ4}*2", head_size=64, storage_offset=1022, block_stride_alignment=512),
        _mix("BLHNC", f"bf16 {K8V4}*2", heads=3, head_size=64, page_padding=32),
        _mix("LBNHC", f"{TQ4}*3", heads=1, page_padding=8, blocks=33, storage_offset=3),
        _mix("LHBNC", f"{TQ4}*2", heads=2, storage_offset=17, blocks=5),
        _mix("BHLNC", "bf16*2", heads=2, head_size=64, storage_offset=258, blocks=5),
        Recipe(
            (LayerRecipe("bf16", 2, 64, 2, split="kv_block"),), num_blocks=4, page_padding=16, block_stride_alignment=64
        ),
    )


def _odd_pages() -> tuple[Recipe, ...]:
    """Pages that are no multiple of 8, 4 or 2 bytes, which copies in whole words must not round."""
    return (
        _mix("LBNHC", f"{TQ4}*3", heads=1, block_tokens=2, blocks=33),
        _mix("BLNHC", f"{TQ3}*2 bf16", heads=3, head_size=64, block_tokens=1, blocks=33),
        _mix("LBHNC", f"bf16 {K3V4}*2", heads=1, block_tokens=3, blocks=17),
        _mix("LBNHC", "nvfp4*2", heads=1, head_size=16, block_tokens=5, blocks=33),
        Recipe((LayerRecipe("mamba_state", 1, 5_001, 3),), num_blocks=9, groups=(GroupRecipe("mamba"),)),
        _mix("LBHNC", f"{K8V4}*2", heads=1, head_size=82, block_tokens=3, blocks=17),  # slots with a padding byte
    )


def _groups() -> tuple[Recipe, ...]:
    """Block tables that overlay the same bytes; pages are unified by tokens per block or by padding."""
    full, window = GroupRecipe(), GroupRecipe("sliding_window")
    return (
        Recipe((LayerRecipe("bf16", 2, 64, 2), LayerRecipe("bf16", 2, 64, 2, group=1)), groups=(full, window)),
        Recipe(
            (LayerRecipe("bf16", 2, 64), LayerRecipe("fp8_e4m3", 2, 64, 3, group=1)),
            order="LBHNC",
            groups=(full, window),
        ),
        Recipe(
            (LayerRecipe("bf16", 2, 64, 2), LayerRecipe("fp8_e4m3", 2, 64, 2, group=1)),
            groups=(full, GroupRecipe("sliding_window", 32)),
        ),
        Recipe(
            (LayerRecipe("bf16", 3, 64, 2), LayerRecipe(TQ4, 3, 64, 3, group=1)), order="BLNHC", groups=(full, window)
        ),
        Recipe(
            (
                LayerRecipe("bf16", 2, 64),
                LayerRecipe(TQ4, 2, 64, 2),
                LayerRecipe("bf16", 2, 64, 2, group=1),
                LayerRecipe("mamba_state", 1, 7_000, 2, group=2),
            ),
            groups=(full, window, GroupRecipe("mamba")),
        ),
        Recipe(
            (LayerRecipe("bf16", 2, 64, 2), LayerRecipe("bf16", 2, 64, 3, group=1)),
            order="LHBNC",
            groups=(full, window),
        ),
    )


def _aliases() -> tuple[Recipe, ...]:
    return (
        Recipe((LayerRecipe("bf16", 2, 64, 2), LayerRecipe(TQ4, 2, 64, 2), LayerRecipe(TQ4, 2, 64, 2, alias_of=3))),
        Recipe((LayerRecipe("bf16", 3, 64, 2), LayerRecipe("bf16", 3, 64, 1, alias_of=0)), order="BLNHC"),
    )


def _records() -> tuple[Recipe, ...]:
    """DeepSeek records: one head, no V, tokens of 132, 352, 528, 584, 656 and 1,152 bytes."""
    mla, indexer = LayerRecipe("fp8_ds_mla", 1, 576, 2), LayerRecipe("dsa_indexer", 1, 128, 3)
    return (
        Recipe((mla,), num_blocks=5, block_tokens=64),
        Recipe((indexer,), num_blocks=9, block_tokens=64),
        Recipe((LayerRecipe("mla_bf16", 1, 576, 2),), order="BLHNC", num_blocks=9),
        Recipe((LayerRecipe("mla_bf16", 1, 576, 2),), order="LHBNC", num_blocks=5),
        Recipe((LayerRecipe("nvfp4_ds_mla", 1, 576, 2), indexer), order="BLNHC", num_blocks=6),
        Recipe((LayerRecipe("fp8_ds_mla_584", 1, 512, 2),), num_blocks=5, block_tokens=64, block_stride_alignment=576),
        Recipe((LayerRecipe("fp8_ds_mla_528", 1, 512, 2),), num_blocks=5, block_tokens=64, block_stride_alignment=512),
        Recipe((mla, indexer), num_blocks=5, block_tokens=64, kernel_block_tokens=64, storage_offset=32),
    )


def _border_ids(stride: int, *, beyond: int = 1) -> tuple[tuple[int, ...], int]:
    """Return block ids next to 2^31 and 2^32 bytes (2^31 bf16 elements), a few small ones, and the number of blocks."""
    ids = {0, 1, 2}
    for border in (2**31, 2**32):
        ids.update(range(border // stride - 1, border // stride + 2))
    return tuple(sorted(ids)), max(ids) + beyond


def _sparse_regions(preset: str) -> Recipe:
    """bf16 and packed layers, layer outside: block offsets and region offsets cross the borders."""
    blocks, count = _border_ids(16_384)
    return _mix("LBNHC", f"bf16 {preset}*2", blocks=count, usable_blocks=blocks)


def _sparse() -> tuple[Recipe, ...]:
    recipes = [_mix("LBHNC", "bf16", blocks=_border_ids(16_384)[1], usable_blocks=_border_ids(16_384)[0])]
    blocks, count = _border_ids(4_288)
    recipes.append(_mix("LBNHC", f"{TQ4}*2", blocks=count, usable_blocks=blocks))
    blocks, count = _border_ids(2 * 16_384 + 4 * 4_288)
    recipes.append(_mix("BLNHC", f"bf16 {TQ4}*4 bf16", blocks=count, usable_blocks=blocks))
    blocks, count = _border_ids(3 * 8_192)
    recipes.append(_mix("BHLNC", "bf16*3", head_size=64, blocks=count, usable_blocks=blocks))
    # 58 packed layers of a model with 8 KV heads, pages padded by 128: block stride 1,002,240
    ids = (0, 2_142, 2_143, 4_285, 4_286)
    recipes.append(_mix("BLNHC", f"{TQ4}*58", heads=8, blocks=4_287, page_padding=128, usable_blocks=ids))
    return tuple(recipes)
