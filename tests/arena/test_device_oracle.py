"""The oracle of a GPU, run on the CPU by torch and by Triton's interpreter: it must judge like the one that keeps a shadow."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.arena.geometry import block_start, padding_runs
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool
from kvverify.layout.recipe import Recipe

torch = pytest.importorskip("torch")

from kvverify.arena.arena import Arena  # noqa: E402
from kvverify.arena.device_arena import DeviceArena  # noqa: E402
from kvverify.arena.device_oracle import DeviceOracle  # noqa: E402
from kvverify.arena.expectation import Expectation  # noqa: E402
from kvverify.arena.memory import Bytes  # noqa: E402
from kvverify.arena.oracle import Oracle  # noqa: E402
from kvverify.kernels.torch_reference import TorchReference  # noqa: E402

_POOL = [r for r in campaign_pool() if r.usable_blocks is None]
_PADDED = [r for r in _POOL if r.num_blocks > 2 and len(r.groups) == 1 and padding_runs(place(r).layers[-1])]


def _device_oracle(layout: Layout, slots: int = 4, per_slot: int = 1) -> DeviceOracle:
    return DeviceOracle(DeviceArena(layout, slots, per_slot, torch.device("cpu")))


def _bytes(oracle: Expectation) -> Bytes:
    """The engine's buffer."""
    storage = oracle.arena.storage()[oracle.arena.base :][: oracle.arena.layout.size_bytes]
    found: Bytes = storage.numpy()
    return found


def _story(oracle: Expectation, seed: int) -> TorchReference:
    """Fill, store and load into other blocks; nothing is checked yet."""
    layout = oracle.arena.layout
    kernel = TorchReference(oracle.arena.blocks_per_slot)
    view: Any = oracle.arena
    kernel.prepare(view)
    oracle.reset(seed)
    group = layout.groups[-1].index
    many = {"group": group}
    first, second, third = layout.blocks[0], layout.blocks[1], layout.blocks[-1]
    oracle.fill([first, second], group, "fill (step 0)")
    oracle.expect_store([first, second], [1, 2], 1)
    kernel.store([first, second], [1, 2], **many)
    oracle.fill([first], 0, "fill (step 2)")
    oracle.expect_load([held for s in (2, 1) for held in oracle.slots[s]], [second, third][: len({second, third})])
    if second != third:
        kernel.load([2, 1], [second, third], **many)
    return kernel


@pytest.mark.parametrize("recipe", [r for r in _POOL if r.num_blocks > 2], ids=lambda r: place(r).name)
def test_a_right_copy_passes(recipe: Recipe) -> None:
    oracle = _device_oracle(place(recipe))
    for seed in (3, 4):
        _story(oracle, seed)
        assert oracle.check() is None
    assert oracle.compared_bytes >= 2 * oracle.arena.device.size


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_each_flipped_byte_is_found_and_nothing_else(data: st.DataObject) -> None:
    layout = place(data.draw(st.sampled_from([r for r in _POOL if r.num_blocks > 2])))
    oracle = _device_oracle(layout)
    _story(oracle, 7)
    assert oracle.check() is None
    memory = oracle.arena.storage().numpy()
    at, mask = data.draw(st.integers(0, len(memory) - 1)), data.draw(st.integers(1, 255))
    right = int(memory[at])
    memory[at] ^= mask
    found = oracle.check()
    assert found is not None
    assert (found.region, found.positions.tolist(), found.total) == ("device", [at], 1)
    assert (found.expected.tolist(), found.found.tolist()) == ([right], [right ^ mask])


@settings(max_examples=30, deadline=None)
@given(st.data())
def test_each_flipped_host_byte_is_found(data: st.DataObject) -> None:
    oracle = _device_oracle(place(_POOL[0]))
    _story(oracle, 7)
    assert oracle.check() is None
    start, stop = oracle.arena.host_memory.windows[0]
    at = data.draw(st.integers(start, stop - 1))
    oracle.arena.host_memory.array[at] ^= 1
    found = oracle.check()
    assert found is not None
    assert found.region == "host"
    assert at in found.positions
    assert found.exact is (found.total == 1)


@pytest.mark.parametrize("recipe", _POOL[:24], ids=lambda r: place(r).name)
def test_both_oracles_expect_the_same_bytes_and_write_the_same_occupant(recipe: Recipe) -> None:
    layout = place(recipe)
    shadow, device = Oracle(Arena(layout, 4)), _device_oracle(layout)
    for oracle in (shadow, device):
        oracle.reset(5)
        oracle.fill([0], 0, "fill")
        oracle.expect_store([0], [0], 1)
        oracle.expect_load(oracle.slots[0], [layout.num_blocks - 1])
    size = layout.size_bytes
    assert np.array_equal(
        device.expected_bytes(device.arena.base, size) == _bytes(device),
        shadow.expected_bytes(shadow.arena.base, size) == _bytes(shadow),
    )
    for layer in layout.layers:
        for position, occupant in device.occupant_bytes(layer, layout.num_blocks - 1):
            assert np.array_equal(device.arena.device.read(position, position + len(occupant)), occupant)


@pytest.mark.parametrize("recipe", _PADDED, ids=lambda r: place(r).name)
def test_padding_may_come_along_and_nothing_else_may_lie_there(recipe: Recipe) -> None:
    layout = place(recipe)
    layer = layout.layers[-1]
    (start, length), *_ = padding_runs(layer)
    oracle = _device_oracle(layout)
    for carried in (length, length // 2):
        kernel = _story(oracle, 11)
        memory, third = oracle.arena.storage().numpy(), layout.blocks[-1]
        source, target = (oracle.arena.base + block_start(layer, b) + start for b in (layout.blocks[0], third))
        memory[target : target + carried] = memory[source : source + carried]
        assert oracle.check() is None
        memory[target] ^= 1
        assert oracle.check() is not None
        kernel.close()


def test_a_reader_is_misled_only_when_its_bytes_change_too_early() -> None:
    oracle = _device_oracle(place(_POOL[0]))
    oracle.reset(1)
    oracle.fill([0, 1], 0, "fill")
    oracle.watch([0, 1], "read (step 1)")
    assert oracle.misread() is None
    oracle.arena.layers[0][1].view(torch.uint8)[0, 0, 0] ^= 1
    oracle.watch([0], "read (step 2)")
    assert oracle.misread() is None
    oracle.watch([0, 1], "read (step 3)")
    assert oracle.misread() == "read (step 3)"
