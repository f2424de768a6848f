"""Further layouts for campaigns on a GPU, where large memory is cheap and the libraries choose between several copies.

The thresholds are vLLM's (``_select_swap_blocks_fn`` and its Triton kernel): pages of 28 KiB, pages in words of 8 bytes, chunks of
8,192 bytes; 16 descriptors a call come from the number of blocks. The large buffers take offsets beyond 2^31 in bytes, and in
units of 2, 4, 8 and 16 bytes.
"""

from __future__ import annotations

from functools import cache

from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe

_ODD_SLOTS = (  # (format, head size) of 66, 68, 102, 118, 130, 132, 134, 136 and 196 bytes a token and head
    ("fp8_e4m3", 33),
    ("ultraquant_4bit", 64),
    ("turboquant_3bit_nc", 128),
    ("turboquant_k3v4_nc", 128),
    ("turboquant_k8v4", 84),
    ("dsa_indexer", 128),
    ("turboquant_4bit_nc", 128),
    ("int4_per_token_head", 128),
    ("turboquant_k8v4", 128),
)
_HEADS = (1, 2, 3, 8)
_THRESHOLD_PAGES = (8_184, 8_192, 8_200, 28_660, 28_664, 28_672, 28_680)
_BLOCKS = 33  # enough for calls of 15, 16 and 17 blocks
_COMMON_FIRST = 21  # of the campaign pool: all formats and orders
_LARGE_BYTES = 36 << 30  # a little more than 2^31 units of 16 bytes


@cache
def gpu_pool() -> tuple[Recipe, ...]:
    """Return the recipes; their layout names are unique among themselves and those of the campaign pool."""
    return (*_many_blocks(), *_thresholds(), *_large(), *_odd_pages())


def pool_for(device: str) -> tuple[Recipe, ...]:
    """Return what a campaign on ``device`` draws from: every format and order first, then what is special there."""
    common = campaign_pool()
    return common if device == "cpu" else (*common[:_COMMON_FIRST], *gpu_pool(), *common[_COMMON_FIRST:])


def _odd_pages() -> tuple[Recipe, ...]:
    """One token a block: a page is as odd as its slots."""
    return tuple(
        Recipe((LayerRecipe(name, heads, size, 2),), num_blocks=_BLOCKS, block_tokens=1)
        for name, size in _ODD_SLOTS
        for heads in (_HEADS if name != "dsa_indexer" else (1,))
    )


def _many_blocks() -> tuple[Recipe, ...]:
    """Enough blocks for calls of 17 slots where a slot holds four of them."""
    layers = (LayerRecipe("bf16", 1, 64, 1), LayerRecipe("turboquant_4bit_nc", 1, 64, 2))
    return tuple(Recipe(layers, order=order, num_blocks=80) for order in ("LBNHC", "BLNHC"))


def _thresholds() -> tuple[Recipe, ...]:
    pages = tuple(
        Recipe((LayerRecipe("mamba_state", 1, page, 2),), num_blocks=_BLOCKS, groups=(GroupRecipe("mamba"),))
        for page in _THRESHOLD_PAGES
    )
    heads = tuple(
        Recipe((LayerRecipe("bf16", 1, 64, 1), LayerRecipe(name, count, 128, 2)), num_blocks=_BLOCKS)
        for name, count in (("fp8_e4m3", 6), ("fp8_e4m3", 7), ("turboquant_4bit_nc", 13), ("turboquant_4bit_nc", 14))
    )
    return (*pages, *heads)


def _large() -> tuple[Recipe, ...]:
    packed = LayerRecipe("turboquant_4bit_nc", 4, 128, 58)
    # MiniMax-M2.5 at TP 2: 4 bf16 layers around 58 packed ones, blocks outside, so that a block id crosses every border
    outside = (LayerRecipe("bf16", 4, 128, 2), packed, LayerRecipe("bf16", 4, 128, 2))
    stride = 4 * 32_768 + 58 * 8_576
    blocks = _LARGE_BYTES // stride
    inside = _LARGE_BYTES // 2 // 32_768
    return (
        Recipe(outside, order="BLNHC", num_blocks=blocks, usable_blocks=_around(stride, blocks)),
        Recipe(
            (LayerRecipe("bf16", 4, 128, 1), LayerRecipe("fp16", 4, 128, 1)),
            num_blocks=inside,
            usable_blocks=_around(32_768, inside),
        ),
    )


def _around(stride: int, blocks: int) -> tuple[int, ...]:
    """Return the first ids, the last one, and those on both sides of 2^31 units of 1, 2, 4, 8 and 16 bytes."""
    borders = [(unit << 31) // stride + step for unit in (1, 2, 4, 8, 16) for step in (-1, 0, 1)]
    return tuple(sorted({0, 1, blocks - 1, *(b for b in borders if 0 <= b < blocks)}))
