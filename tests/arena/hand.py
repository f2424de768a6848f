"""Copies done by hand: byte positions from the fields of a layout, no kernel, no torch. And the layouts to do them on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvverify.arena.arena import Arena
from kvverify.arena.geometry import Positions
from kvverify.arena.memory import Bytes
from kvverify.arena.oracle import Oracle
from kvverify.layout.place import place
from kvverify.layout.placement import Field, Role
from kvverify.layout.recipe import GroupRecipe, LayerRecipe, Recipe

TQ4 = "turboquant_4bit_nc"
GROUPS = (GroupRecipe(), GroupRecipe("sliding_window"))

SMALL: dict[str, Recipe] = {
    "mixed": Recipe((LayerRecipe("bf16", 2, 64), LayerRecipe(TQ4, 2, 128, 2)), num_blocks=6, block_tokens=4),
    "gaps and padding": Recipe(
        (LayerRecipe("bf16", 2, 64, 2), LayerRecipe(TQ4, 2, 64)),
        num_blocks=6,
        block_tokens=4,
        storage_offset=258,
        region_gap=70,
        page_padding=38,
    ),
    "cell padding": Recipe(
        (LayerRecipe("turboquant_k8v4", 1, 82, 2),), order="LBHNC", num_blocks=6, block_tokens=3, page_padding=5
    ),
    "blocks outside": Recipe(
        (LayerRecipe("bf16", 2, 64), LayerRecipe(TQ4, 2, 64, 2)),
        order="BLNHC",
        num_blocks=6,
        block_tokens=4,
        block_stride_alignment=512,
    ),
    "heads outside": Recipe((LayerRecipe("bf16", 3, 64, 2),), order="LHBNC", num_blocks=6, block_tokens=4),
    "SoA": Recipe((LayerRecipe(f"{TQ4}_soa", 2, 64, 2),), num_blocks=6, block_tokens=4),
    "split planes": Recipe((LayerRecipe("bf16", 2, 64, 2, split="kv_block"),), num_blocks=6, block_tokens=4),
    "overlaid groups": Recipe(
        (LayerRecipe("bf16", 3, 64, 2), LayerRecipe(TQ4, 3, 64, 3, group=1)),
        order="BLNHC",
        num_blocks=6,
        block_tokens=4,
        groups=GROUPS,
    ),
    "sparse": Recipe(
        (LayerRecipe("bf16", 2, 64), LayerRecipe(TQ4, 2, 64)),
        num_blocks=2**31 // 2048 + 2,
        block_tokens=4,
        usable_blocks=(0, 1, 2, 2**31 // 2048 - 1, 2**31 // 2048, 2**31 // 2048 + 1),
    ),
}


def make_oracle(recipe: Recipe, seed: int = 1, host_slots: int = 4, blocks_per_slot: int = 1) -> Oracle:
    oracle = Oracle(Arena(place(recipe), host_slots, blocks_per_slot))
    oracle.reset(seed)
    return oracle


def field_positions(oracle: Oracle, layer: int, block: int, field: Field) -> Positions:
    """Positions in the device mapping, [row of block, head, token, byte]."""
    place_of = oracle.arena.layout.layers[layer]
    rows = block * place_of.rows_per_block + np.arange(place_of.rows_per_block)
    start = oracle.arena.base + place_of.offset + field.offset + rows * place_of.row_stride
    heads = np.arange(field.heads) * field.head_stride
    tokens = np.arange(field.tokens) * field.token_stride
    cells = start[:, None, None, None] + heads[:, None, None] + tokens[:, None]
    return np.asarray(cells + np.arange(field.length), np.int64)


def positions(
    oracle: Oracle,
    layer: int,
    block: int,
    *,
    fields: Sequence[str] = (),
    head: int | None = None,
    token: int | None = None,
) -> Positions:
    """Content positions of a block of a layer, or of some fields, one head or one token of it, in the order of the fields."""
    parts = [np.empty(0, np.int64)]
    for field in oracle.arena.layout.layers[layer].fields:
        if field.name in fields or (not fields and field.role is not Role.PADDING):
            found = field_positions(oracle, layer, block, field)
            found = found if head is None else found[:, head : head + 1]
            found = found if token is None else found[:, :, token : token + 1]
            parts.append(found.ravel())
    return np.concatenate(parts)


def padding(oracle: Oracle, layer: int, block: int) -> Positions:
    names = [f.name for f in oracle.arena.layout.layers[layer].fields if f.role is Role.PADDING]
    return positions(oracle, layer, block, fields=names) if names else np.empty(0, np.int64)


def read(oracle: Oracle, where: Positions) -> Bytes:
    found: Bytes = oracle.arena.mapping.array[where]
    return found


def write(oracle: Oracle, where: Positions, data: Bytes) -> None:
    oracle.arena.mapping.array[where] = data


def put(oracle: Oracle, blocks: Sequence[int], slots: Sequence[int], group: int = 0) -> None:
    """Copy device blocks to host slots as a right kernel does; tell the oracle nothing."""
    per_slot = oracle.arena.blocks_per_slot
    for j, block in enumerate(blocks):
        row = oracle.arena.slot(slots[j // per_slot])
        offset = j % per_slot * oracle.arena.layout.host_slot_bytes()
        for layer in oracle.arena.layout.group_layers(group):
            where = positions(oracle, layer, block)
            row[offset : offset + len(where)] = read(oracle, where)
            offset += -(-len(where) // 16) * 16


def take(oracle: Oracle, slots: Sequence[int], blocks: Sequence[int], group: int = 0) -> None:
    """Copy host slots to device blocks as a right kernel does; tell the oracle nothing."""
    per_slot = oracle.arena.blocks_per_slot
    for j, block in enumerate(blocks):
        row = oracle.arena.slot(slots[j // per_slot])
        offset = j % per_slot * oracle.arena.layout.host_slot_bytes()
        for layer in oracle.arena.layout.group_layers(group):
            where = positions(oracle, layer, block)
            write(oracle, where, row[offset : offset + len(where)])
            offset += -(-len(where) // 16) * 16


def store(oracle: Oracle, blocks: Sequence[int], slots: Sequence[int], group: int = 0) -> None:
    oracle.expect_store(blocks, slots, oracle.arena.blocks_per_slot)
    put(oracle, blocks, slots, group)


def expect_load(oracle: Oracle, slots: Sequence[int], blocks: Sequence[int]) -> None:
    oracle.expect_load([held for slot in slots for held in oracle.slots[slot]], blocks)


def load(oracle: Oracle, slots: Sequence[int], blocks: Sequence[int], group: int = 0) -> None:
    expect_load(oracle, slots, blocks)
    take(oracle, slots, blocks, group)


def round_trip(oracle: Oracle, group: int = 0) -> None:
    """First two usable blocks to slots 2 and 0, then to the fourth and third usable block; the last ones stay untouched."""
    a, b, c, d, *_ = oracle.arena.layout.blocks
    oracle.fill([a, b], group, "fill (step 0)")
    store(oracle, [a, b], [2, 0], group)
    load(oracle, [2, 0], [d, c], group)
