"""Whatever a kernel did to the memory, the diagnosis finds words for it: an exception of ours would hide the finding."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.arena.diagnosis import diagnose
from kvverify.arena.memory import Bytes
from kvverify.arena.oracle import Oracle
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from tests.arena.hand import make_oracle, round_trip, store, take

POOL = {place(recipe).name: recipe for recipe in campaign_pool() if len(place(recipe).blocks) >= 5}
SHARES = st.floats(0, 1, exclude_max=True)
DAMAGE = st.tuples(
    st.sampled_from(["device", "host"]),
    SHARES,  # where
    st.one_of(st.integers(1, 12), st.integers(1, 20_000)),  # bytes
    st.sampled_from(["zeros", "ones", "random", "device", "host", "one bit", "shifted"]),
    SHARES,  # from where
)


@functools.lru_cache(maxsize=2)
def loaded(name: str) -> tuple[Oracle, Bytes, Bytes]:
    """An oracle with contents, slots and landings of which nothing was checked yet, and copies of its windows."""
    oracle = make_oracle(POOL[name], host_slots=5)
    group = len(oracle.arena.layout.groups) - 1
    round_trip(oracle, group)
    last = oracle.arena.layout.blocks[4]
    oracle.fill([last], 0, "fill (step 3)")
    store(oracle, [last], [4], 0)
    assert oracle.check() is None
    oracle.expect_load(oracle.slots[2], [oracle.arena.layout.blocks[3]])
    take(oracle, [2], [oracle.arena.layout.blocks[3]], group)
    return oracle, windows(oracle, "device"), windows(oracle, "host")


def windows(oracle: Oracle, region: str) -> Bytes:
    memory = oracle.arena.mapping if region == "device" else oracle.arena.host_memory
    return np.concatenate([memory.array[a:b] for a, b in memory.windows])


def put_back(oracle: Oracle, region: str, data: Bytes) -> None:
    memory = oracle.arena.mapping if region == "device" else oracle.arena.host_memory
    done = 0
    for start, stop in memory.windows:
        memory.array[start:stop] = data[done : done + stop - start]
        done += stop - start


def damage(oracle: Oracle, one: tuple[str, float, int, str, float]) -> None:
    region, share, length, kind, source_share = one
    data = windows(oracle, region)
    at = int(share * len(data))
    length = min(length, len(data) - at)
    there = data[at : at + length]
    source = windows(oracle, kind if kind in ("device", "host") else region)
    start = int(source_share * max(1, len(source) - length))
    random = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    found = {
        "zeros": there * 0,
        "ones": there | 255,
        "random": random,
        "one bit": there ^ 1,
        "shifted": np.roll(there, 3),
    }
    new = found.get(kind, source[start : start + length])
    data[at : at + len(new)] = new
    put_back(oracle, region, data)


@settings(max_examples=150)
@given(st.sampled_from(list(POOL)), st.lists(DAMAGE, min_size=1, max_size=4))
def test_any_damage_is_put_into_words(name: str, damages: list[tuple[str, float, int, str, float]]) -> None:
    oracle, device, host = loaded(name)
    try:
        for one in damages:
            damage(oracle, one)
        mismatch = oracle.check()
        changed = not (
            np.array_equal(device, windows(oracle, "device")) and np.array_equal(host, windows(oracle, "host"))
        )
        assert (mismatch is not None) == changed
        if mismatch is not None:
            said = diagnose(oracle, mismatch, {oracle.arena.layout.blocks[3]}, set())
            assert said.headline.startswith(f"{mismatch.total:,} wrong ")
            assert said.first["position"] == int(mismatch.positions[0])
            assert len(said.headline) < 800
            assert len(said.details) <= 7
            assert len(said.fingerprint) == 12
    finally:
        put_back(oracle, "device", device)
        put_back(oracle, "host", host)
        if oracle.check() is not None or not oracle.landings:
            loaded.cache_clear()
