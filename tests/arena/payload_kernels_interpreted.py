"""Hold the Triton kernels under Triton's interpreter against numpy: ``python -m tests.arena.payload_kernels_interpreted TRIES``.

A process of its own, because Triton decides at import whether it interprets. Prints how many bytes were compared.
"""

from __future__ import annotations

import random
import sys

import numpy as np
import torch

from kvverify.arena.contents import contents
from kvverify.arena.device_arena import DeviceArena
from kvverify.arena.extents import Extent
from kvverify.arena.host_tier import HostTier
from kvverify.arena.payload import derive_key, fill
from kvverify.arena.payload_launch import Launch, Payloads, Records
from kvverify.arena.tiles import kinds_of, tiles_of
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe

CPU = torch.device("cpu")


def one(draw: random.Random) -> int:
    """Fill some blocks of one extent, compare all of memory, flip bytes, and compare the counts of both checks."""
    unit = draw.choice((1, 8))
    length = draw.choice((8, 64, 304, 520, 1032, 4096, 8576)) + draw.randrange(8) * (unit == 1)
    start, gap = draw.randrange(600) * 8 + draw.randrange(8) * (unit == 1), draw.randrange(40) * 8
    blocks = draw.randrange(1, 4)
    extent = Extent(start, -(-length // 8) * 8 + gap, length, blocks, frozenset({0}))
    size = -(-(extent.stop + 700) // 8) * 8
    payloads = Payloads(torch.zeros(size, dtype=torch.uint8), compiled=True)
    assert payloads.how == "Triton"
    base = derive_key(draw.randrange(1 << 60), 0)
    payloads.set_base_key(base)
    plain = draw.random() < 0.2
    keys = [base if plain else derive_key(draw.randrange(1 << 60), 1) for _ in range(blocks)]
    sources = [draw.randrange(blocks) for _ in range(blocks)]
    kinds = kinds_of([extent])
    launches = [Launch(tiles, CPU) for tiles in tiles_of([extent], kinds)]
    signed = np.asarray(keys, np.uint64).astype(np.int64)
    records = Records(blocks, None, torch.from_numpy(signed), torch.tensor(sources))
    for launch in launches:
        payloads.fill(launch, records)
    wanted = np.zeros(size, np.uint8)
    for block, (key, source) in enumerate(zip(keys, sources, strict=True)):
        here, there = (extent.start + b * extent.stride for b in (block, source))
        if plain:
            fill(wanted[here : here + length], base, there)
        else:
            wanted[here : here + length] = contents([key], [there], length)[0]
    memory = payloads.memory.numpy()
    assert np.array_equal(memory, wanted), (extent, keys, sources)
    for _ in range(draw.randrange(20)):
        memory[draw.randrange(size)] ^= draw.randrange(1, 256)
    _compare_counts(payloads, launches, records, extent, memory != wanted)
    return size


def _compare_counts(
    payloads: Payloads,
    launches: list[Launch],
    records: Records,
    extent: Extent,
    wrong: np.ndarray[tuple[int], np.dtype[np.bool_]],
) -> None:
    inside = np.stack([wrong[extent.start + b * extent.stride :][: extent.length] for b in range(extent.count)])
    step = launches[0].tiles.unit
    units = inside.reshape(extent.count, -1, step).any(2).sum()
    by_units, by_bytes = (
        sum(int(payloads.check(x, records, by_bytes=by_bytes).sum()) for x in launches) for by_bytes in (False, True)
    )
    assert (by_units, by_bytes) == (units, inside.sum()), (extent, by_units, by_bytes)


def host_tier(seed: int) -> None:
    """What the kernels write to a host tier is its payload, and their digests are the processor's."""
    layers = (LayerRecipe("bf16", 1, 8),)
    arena = DeviceArena(place(Recipe(layers, num_blocks=2, block_tokens=4)), 3, 1, CPU)
    tier = HostTier(arena, CPU)
    tier.reset(derive_key(seed, 5))
    memory, (start, stop) = arena.host_memory.array, arena.host_memory.windows[0]
    wanted = np.empty(stop - start, np.uint8)
    fill(wanted, derive_key(seed, 5), start)
    assert np.array_equal(memory[start:stop], wanted)
    assert tier.check([]) is None
    memory[start + seed] ^= 1
    found = tier.check([])
    assert found is not None
    assert found.positions.tolist() == [start + seed]


if __name__ == "__main__":
    host_tier(4711)
    print(sum(one(random.Random(seed)) for seed in range(int(sys.argv[1]))))
