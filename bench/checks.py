"""The whole-allocation check on arenas of a given size: how fast, and with how much memory.

python -m bench.checks MIB [flip]        peak memory of one check in this process, as JSON; flip: of a check that finds a wrong byte
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from kvverify.arena.arena import Arena
from kvverify.arena.oracle import Oracle
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe

BLOCK_MIB = 2  # 32 layers of 8 heads, head size 128, 16 tokens, K and V in bf16
HOST_SLOTS = 4


def oracle_of(mib: int) -> Oracle:
    """Return the oracle of a fresh bf16 arena with about ``mib`` MiB of device blocks, contents and shadow written."""
    layers = (LayerRecipe("bf16", heads=8, head_size=128, count=32),)
    oracle = Oracle(Arena(place(Recipe(layers, num_blocks=mib // BLOCK_MIB)), HOST_SLOTS))
    oracle.reset(1)
    return oracle


def check_rate(oracle: Oracle) -> float:
    """Return the bytes a second that one clean check compares."""
    before, start = oracle.compared_bytes, time.perf_counter()
    wrong = oracle.check()
    seconds = time.perf_counter() - start
    if wrong is not None:
        raise RuntimeError(f"a clean arena has {wrong.total} wrong bytes")
    return (oracle.compared_bytes - before) / seconds


def peak_ratio(mib: int, *, flip: bool) -> float:
    """Return the peak memory of making, filling and checking an arena over its accessible bytes, what was imported left out."""
    warm = oracle_of(2 * BLOCK_MIB)
    warm.check()
    before = _status_bytes("VmRSS")
    oracle = oracle_of(mib)
    if flip:
        oracle.arena.buffer[12345] ^= 1
    wrong = oracle.check()
    if (wrong is not None) is not flip:
        raise RuntimeError(f"expected {'a' if flip else 'no'} wrong byte, got {wrong}")
    arena = oracle.arena.device.accessible_bytes + oracle.arena.host_memory.accessible_bytes
    ratio = (_status_bytes("VmHWM") - before) / arena
    if ratio < 1:
        raise RuntimeError(f"a peak of {ratio:.2f} times the arena, which has just been written, cannot be")
    return ratio


def _status_bytes(name: str) -> int:
    """Return a memory size of this process; not getrusage, whose peak a child inherits from the process that started it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    print(json.dumps({"peak_ratio": peak_ratio(int(sys.argv[1]), flip="flip" in sys.argv[2:])}))
