from __future__ import annotations

import mmap
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.arena.arena import Arena
from kvverify.arena.memory import PAGE, BorrowedMemory, Mapping, merge_windows, page_ceil, page_floor, same_bytes
from kvverify.errors import ContractError
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool
from tests.arena.hand import SMALL

SPARSE = [r for r in campaign_pool() if r.usable_blocks is not None]

TOUCH = """
from kvverify.arena.memory import PAGE, Mapping
memory = Mapping(6 * PAGE, ((PAGE, 2 * PAGE), (4 * PAGE, 5 * PAGE)))
for position in (PAGE, 2 * PAGE - 1, 4 * PAGE, 5 * PAGE - 1):
    memory.array[position] = 1
print("inside", flush=True)
memory.array[{position}]{action}
print("outside", flush=True)
"""


@pytest.mark.parametrize("action", ["", " = 1"], ids=["read", "write"])
@pytest.mark.parametrize("position", [0, PAGE - 1, 2 * PAGE, 4 * PAGE - 1, 5 * PAGE, 6 * PAGE - 1])
def test_a_touch_outside_the_windows_ends_the_process(position: int, action: str) -> None:
    code = TOUCH.format(position=position, action=action)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.stdout == "inside\n"
    assert ended.returncode == -signal.SIGSEGV


def test_accessible_and_inaccessible_bytes_are_counted_apart() -> None:
    memory = Mapping(6 * PAGE, ((PAGE, 2 * PAGE), (4 * PAGE, 5 * PAGE)))
    assert (memory.accessible_bytes, memory.inaccessible_bytes) == (2 * PAGE, 4 * PAGE)
    assert memory.contains(PAGE, 2 * PAGE)
    assert not memory.contains(PAGE, 2 * PAGE + 1)
    assert not memory.contains(0, 1)
    borrowed = BorrowedMemory(np.zeros(10, np.uint8))
    assert (borrowed.size, borrowed.accessible_bytes, borrowed.inaccessible_bytes) == (10, 10, 0)
    assert borrowed.windows == ((0, 10),)


def test_refused_address_space_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match=r"cannot reserve 2,305,843,009,213,693,952 bytes of address space"):
        Mapping(1 << 61, ())


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 6)).map(lambda w: (w[0], w[0] + w[1])), max_size=9))
def test_merged_windows_hold_the_same_pages_and_stay_apart(windows: list[tuple[int, int]]) -> None:
    merged = merge_windows(windows)
    assert {p for a, b in merged for p in range(a, b)} == {p for a, b in windows for p in range(a, b)}
    assert all(left[1] < right[0] for left, right in pairwise(merged))


@given(st.integers(0, 2**40))
def test_pages_are_rounded_outwards(position: int) -> None:
    assert page_floor(position) <= position <= page_ceil(position)
    assert page_floor(position) % PAGE == page_ceil(position) % PAGE == 0
    assert page_ceil(position) - page_floor(position) in (0, PAGE)


@given(st.binary(min_size=1, max_size=50), st.integers(0, 49), st.integers(1, 255))
def test_same_bytes_sees_any_one_byte(data: bytes, where: int, mask: int) -> None:
    left, right = np.frombuffer(data, np.uint8), np.frombuffer(data, np.uint8).copy()
    assert same_bytes(left, right)
    right[where % len(data)] ^= mask
    assert not same_bytes(left, right)


def test_same_bytes_refuses_unequal_sizes() -> None:
    with pytest.raises(ValueError, match="sizes differ: 3 and 2"):
        same_bytes(np.zeros(3, np.uint8), np.zeros(2, np.uint8))


def test_a_nan_is_a_pattern_like_any_other() -> None:
    nan = np.array([np.nan], np.float32).view(np.uint8)
    assert same_bytes(nan, nan.copy())


@pytest.mark.parametrize("name", SMALL)
def test_guards_lie_around_the_buffer_and_every_slot(name: str) -> None:
    arena = Arena(place(SMALL[name]), 3)
    stop = arena.base + arena.layout.size_bytes
    assert arena.mapping.contains(arena.base - PAGE, arena.base)
    assert arena.mapping.contains(page_ceil(stop), page_ceil(stop) + PAGE)
    assert arena.mapping.windows[-1][1] < arena.device.size
    assert len(arena.buffer) == arena.layout.size_bytes
    for slot in range(3):
        start = arena.host_base + slot * arena.slot_stride
        assert start % PAGE == 0
        assert len(arena.slot(slot)) >= arena.layout.host_slot_bytes()
        assert isinstance(arena.host_memory, Mapping)
        assert arena.host_memory.contains(start - PAGE, start + arena.slot_bytes + PAGE)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


@pytest.mark.parametrize("number", range(len(SPARSE)))
def test_a_sparse_view_addresses_blocks_beyond_2_and_4_gib(torch: ModuleType, number: int) -> None:
    before = resident_bytes()
    arena = Arena(place(SPARSE[number]), 1)
    far = [0, 0]
    for layer, view in zip(arena.layout.layers, arena.layers, strict=True):
        for block in arena.layout.blocks:
            start = layer.offset + block * layer.block_stride
            rows = view[block * layer.rows_per_block]
            assert rows.data_ptr() == arena.mapping.address + arena.base + start
            first = view.reshape(-1)[:0] if rows.numel() == 0 else rows[(0,) * (rows.dim() - 1)]
            first.view(torch.uint8).fill_(block % 251 + 1)
            assert (arena.buffer[start : start + first.numel() * layer.element_bytes] == block % 251 + 1).all()
            far[0] += start >= 2**31
            far[1] += start >= 2**32
    assert far[0] > far[1] > 0
    assert resident_bytes() - before < 24 << 20


@pytest.mark.parametrize("number", range(len(SPARSE)))
def test_where_a_32_bit_offset_wraps_to_is_accessible(number: int) -> None:
    arena = Arena(place(SPARSE[number]), 1)
    wrapped = 0
    for layer in arena.layout.layers:
        for block in arena.layout.blocks:
            start, page = layer.offset + block * layer.block_stride, layer.page_bytes // layer.rows_per_block
            length = page if layer.strides[0] < layer.row_stride else 1
            for unit in (1, layer.element_bytes):
                cut = (start // unit + 2**31) % 2**32 - 2**31  # as int32 keeps it
                for offset in (cut * unit, start // unit % 2**32 * unit):
                    place_of = arena.base + offset
                    assert arena.mapping.contains(place_of, place_of + length), (layer.name, block, offset)
                    wrapped += offset != start
    assert wrapped > 0


def test_a_library_may_own_the_host_tier(torch: ModuleType) -> None:
    arena = Arena(place(SMALL["mixed"]), 2)
    rows = torch.zeros((3, 5000), dtype=torch.uint8)[:, 8:]
    arena.adopt_host(rows)
    arena.slot(1)[:] = 7
    assert rows[1].eq(7).all()
    assert rows[0].eq(0).all()
    assert rows[2].eq(0).all()
    assert arena.host_memory.size == 2 * 5000 + 4992


@pytest.mark.parametrize(("shape", "kind"), [((1, 64), "uint8"), ((2, 64), "int8"), ((128,), "uint8")])
def test_another_tensor_from_prepare_breaks_the_contract(torch: ModuleType, shape: tuple[int, ...], kind: str) -> None:
    arena = Arena(place(SMALL["mixed"]), 2)
    with pytest.raises(ContractError, match=r"prepare returned a tensor .* expected uint8 \[2 slots or more, bytes\]"):
        arena.adopt_host(torch.zeros(shape, dtype=getattr(torch, kind)))
