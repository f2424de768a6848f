"""The recipe of a layout: the few choices from which :func:`kvverify.layout.place.place` computes every position.

A recipe is what ``kvverify layout --json`` prints, ``--layout FILE`` takes and a failure file stores.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerRecipe:
    """``count`` layers in a row (by layer number) of one format.

    ``split`` is the K/V arrangement of 16- and 32-bit and fp8 formats: ``fused`` (K and V concatenated in the content),
    ``block_kv`` ([block, 2, ...]: K and V of a block beside each other) or ``kv_block`` ([2, block, ...]: all K, then all V).
    ``alias_of`` names a layer number whose tensor these layers share; they take no bytes.
    """

    kv_format: str
    heads: int
    head_size: int
    count: int = 1
    group: int = 0
    split: str = "fused"
    alias_of: int | None = None


@dataclass(frozen=True, slots=True)
class GroupRecipe:
    """A block table. ``block_tokens`` None takes the recipe's."""

    kind: str = "full"
    block_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that decides a placement; sizes in bytes, blocks or tokens as named.

    ``storage_offset`` is unused space before the first region, ``region_gap`` between regions (a region holds all layers of
    one shape), ``page_padding`` and ``block_stride_alignment`` enlarge the block stride, ``kernel_block_tokens`` splits a
    block into rows. ``usable_blocks`` makes the buffer sparse.
    """

    layers: tuple[LayerRecipe, ...]
    order: str = "LBNHC"
    num_blocks: int = 8
    block_tokens: int = 16
    groups: tuple[GroupRecipe, ...] = (GroupRecipe(),)
    kernel_block_tokens: int | None = None
    storage_offset: int = 0
    region_gap: int = 0
    page_padding: int = 0
    block_stride_alignment: int = 1
    usable_blocks: tuple[int, ...] | None = None
    name: str = ""
