"""The raw memcpy kernels without a GPU: which bytes they name, how they call a driver, how they refuse."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import itertools
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.arena.geometry import block_start, content_runs
from kvverify.errors import EnvironmentProblem
from kvverify.kernels.memcpy_runs import HostRows, RunAddresses, slot_runs
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool

pytest.importorskip("torch")

import torch as t

from kvverify.kernels.memcpy_batch import AsyncMemcpy, BatchMemcpy
from kvverify.kernels.memcpy_driver import AsyncLoop, CopyCall, CudaBatch, HipBatch, _loaded
from tests.kernels.fake_arena import GUARD, make_arena, moved, overwrite, wrong_bytes
from tests.kernels.recipes import RECIPES

LAYOUTS = {layout.name: layout for layout in map(place, campaign_pool())}
HEADERS = {"CUDA": "nvidia/include", "CUDART": "nvidia/include", "HIP": "amd/include"}
STREAM = 0x5EED
CALLS = ("CUDA=13000", "CUDA=12080", "CUDART=13000", "HIP=70226015", "HIP loop")


@given(st.sampled_from(list(LAYOUTS)), st.data())
def test_runs_hold_every_content_byte_once_on_both_sides(name: str, data: st.DataObject) -> None:
    layout = LAYOUTS[name]
    group = data.draw(st.sampled_from([g.index for g in layout.groups]))
    runs = slot_runs(layout, group)
    block = data.draw(st.sampled_from(layout.blocks))
    for number in layout.group_layers(group):
        layer = layout.layers[number]
        ours = {block_start(layer, block) + r.start + j for r in runs if r.layer == number for j in range(r.length)}
        fields = (
            layer.offset + (block * layer.rows_per_block + row) * layer.row_stride
            + f.offset + head * f.head_stride + token * f.token_stride + j
            for row in range(layer.rows_per_block)
            for f in layer.fields
            if f.role != "padding"
            for head in range(f.heads)
            for token in range(f.tokens)
            for j in range(f.length)
        )  # fmt: skip
        assert ours == set(fields)
        assert sum(r.length for r in runs if r.layer == number) == layer.page_bytes
    slot = sorted((r.slot_offset, r.length) for r in runs)
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(slot))
    assert slot[0][0] == 0
    assert sum(slot[-1]) <= layout.host_slot_bytes()


@pytest.mark.parametrize("name", LAYOUTS)
def test_pages_of_a_slot_begin_at_multiples_of_16(name: str) -> None:
    for group in LAYOUTS[name].groups:
        first = {r.layer: r.slot_offset for r in reversed(slot_runs(LAYOUTS[name], group.index))}
        assert all(offset % 16 == 0 for offset in first.values())


def test_addresses_beyond_32_and_63_bits_are_exact() -> None:
    layout = next(layout for layout in LAYOUTS.values() if layout.usable_blocks is not None)
    views = [2**63 + 16 * i for i in range(len(layout.group_layers(0)))]
    block, slot = layout.blocks[-1], 3
    runs = RunAddresses(layout, 0, views, HostRows(2**47, 2**33, layout.host_slot_bytes()))
    device, host, sizes = runs.pairs([block], [slot])
    expected = [
        (views[i] + block * layer.block_stride + start, length)
        for i, layer in enumerate(layout.layers)
        for start, length in content_runs(layer)
    ]
    assert list(zip(device.tolist(), sizes.tolist(), strict=True)) == expected
    assert host.tolist() == [2**47 + slot * 2**33 + run.slot_offset for run in slot_runs(layout, 0)]


def test_a_slot_that_is_too_small_is_refused() -> None:
    layout = place(RECIPES["mixed BLNHC"])
    needed = max(r.slot_offset + r.length for r in slot_runs(layout, 0))
    with pytest.raises(ValueError, match=f"a host slot has {needed - 1} bytes, a block of group 0 needs {needed}"):
        RunAddresses(layout, 0, range(len(layout.layers)), HostRows(0, 4096, needed - 1))


@given(per_slot=st.integers(1, 5), first=st.integers(0, 4), blocks=st.lists(st.integers(0, 9), min_size=1, max_size=12))
def test_blocks_of_one_slot_lie_behind_each_other(per_slot: int, first: int, blocks: list[int]) -> None:
    """A store fills slots from their beginning, a part may begin inside one; the last may stay partly empty."""
    layout = place(RECIPES["mixed BLNHC"])
    first %= per_slot
    part = layout.host_slot_bytes()
    slots = [7 * n + 3 for n in range(-(-(first + len(blocks)) // per_slot))]
    views = [1 << 40] * len(layout.layers)
    one = RunAddresses(layout, 0, views, HostRows(1 << 20, 1 << 30, part))
    many = RunAddresses(layout, 0, views, HostRows(1 << 20, 1 << 30, per_slot * part, per_slot))
    device, host, sizes = many.pairs(blocks, slots, first)
    runs = len(sizes) // len(blocks)
    for position, block in enumerate(blocks):
        place_in = first + position
        expected = one.pairs([block], [slots[place_in // per_slot]])
        at = [run * len(blocks) + position for run in range(runs)]
        assert device[at].tolist() == expected[0].tolist()
        assert (host[at] - place_in % per_slot * part).tolist() == expected[1].tolist()
        assert sizes[at].tolist() == expected[2].tolist()
    with pytest.raises(ValueError, match=f"a host slot has {part - 1} bytes, 2 blocks of group 0 need"):
        RunAddresses(layout, 0, views, HostRows(0, 4096, part - 1, 2))


@pytest.mark.parametrize("kernel", [BatchMemcpy, AsyncMemcpy])
def test_without_a_gpu_they_say_so(torch: object, kernel: Callable[[], object]) -> None:
    if t.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(EnvironmentProblem, match=re.escape(f"need a GPU, and torch {t.__version__} sees none")):
        kernel()


def test_the_runtime_is_the_one_that_torch_has_loaded(torch: object) -> None:
    library, path = _loaded("libtorch_cpu")
    assert path.parent == Path(t.__file__).parent / "lib"
    assert library._handle == ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW)._handle
    with pytest.raises(EnvironmentProblem, match=f"torch {re.escape(t.__version__)} has loaded no libtorch_cp"):
        _loaded("libtorch_cp")


@functools.cache
def compiled(folder: Path, macro: str) -> ctypes.CDLL:
    """The stand-in for the driver, of the given API and version."""
    triton = importlib.util.find_spec("triton")
    if shutil.which("gcc") is None or triton is None or triton.origin is None:
        pytest.skip("the stand-in for a driver needs gcc and the headers that triton brings")
    include = Path(triton.origin).parent / "backends" / HEADERS[macro.partition("=")[0]]
    target = folder / f"{macro}.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-Wall", f"-D{macro}", f"-I{include}", str(source), "-o", str(target)], check=True
    )
    return ctypes.CDLL(str(target))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driver")


def call_of(folder: Path, which: str) -> CopyCall:
    if which == "HIP loop":
        return AsyncLoop(compiled(folder, "HIP=70226015"), "hip")
    library = compiled(folder, which)
    match which.partition("=")[0]:
        case "CUDA":
            return CudaBatch(library)
        case "HIP":
            return HipBatch(library)
        case _:
            return AsyncLoop(library, "cuda")


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("which", CALLS)
def test_every_call_carries_blocks_to_slots_and_back(torch: object, folder: Path, which: str, name: str) -> None:
    call = call_of(folder, which)
    layout = place(RECIPES[name])
    for group in layout.groups:
        arena = make_arena(layout)
        before = arena.memory.clone()
        host = HostRows(arena.host.data_ptr(), arena.host.stride(0), arena.host.shape[1])
        addresses = [view.data_ptr() for view in arena.group_layers[group.index]]
        assert (
            addresses[0] == arena.memory.data_ptr() + GUARD + layout.layers[layout.group_layers(group.index)[0]].offset
        )
        runs = RunAddresses(layout, group.index, addresses, host)
        device, slots, sizes = runs.pairs([3, 0], [5, 1])
        call(slots, device, sizes, STREAM)
        overwrite(arena)
        want = moved(arena, before, [(3, 2), (0, 3)], group.index)
        device, slots, sizes = runs.pairs([2, 3], [5, 1])
        call(device, slots, sizes, STREAM)
        assert wrong_bytes(arena, want) == 0


def bytes_for(copies: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    source, target = np.random.default_rng(0).integers(0, 256, (2, copies * 3), dtype=np.uint8)
    places = np.arange(copies, dtype=np.uint64) * np.uint64(3)
    addresses = [places + np.uint64(memory.ctypes.data) for memory in (target, source)]
    return target, source, addresses[0], addresses[1], np.full(copies, 3, np.uint64)


@pytest.mark.parametrize("copies", [1, 8191, 8192, 8193, 20_000])
def test_hip_gets_pieces_of_8192_and_cuda_one_batch(torch: object, folder: Path, copies: int) -> None:
    for which, calls in (("HIP=70226015", -(-copies // 8192)), ("CUDA=13000", 1), ("CUDA=12080", 1)):
        library = compiled(folder, which)
        count, largest = (ctypes.c_int.in_dll(library, name) for name in ("calls", "largest"))
        count.value = largest.value = 0
        target, source, destinations, sources, sizes = bytes_for(copies)
        call_of(folder, which)(destinations, sources, sizes, STREAM)
        assert (target == source).all()
        assert (count.value, largest.value) == (calls, min(copies, 8192) if which.startswith("HIP") else copies)


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("CUDA=13000", "cuMemcpyBatchAsync_v2 with 4 copies: CUDA_ERROR_INVALID_VALUE (1)"),
        ("CUDA=12080", "cuMemcpyBatchAsync with 4 copies: CUDA_ERROR_INVALID_VALUE (1), copy 2 of 3 bytes"),
        ("HIP=70226015", "hipMemcpyBatchAsync with 4 copies: hipErrorInvalidValue (1), copy 2 of 3 bytes"),
        ("CUDART=13000", "cudaMemcpyAsync with 4 copies: cudaErrorInvalidValue (1), copy 2 of 3 bytes"),
        ("HIP loop", "hipMemcpyAsync with 4 copies: hipErrorInvalidValue (1), copy 2 of 3 bytes"),
    ],
)
def test_an_error_of_the_driver_has_name_number_and_place(torch: object, folder: Path, which: str, words: str) -> None:
    call = call_of(folder, which)
    library = compiled(folder, "HIP=70226015" if which == "HIP loop" else which)
    ctypes.c_int.in_dll(library, "calls").value = 0
    _, _, destinations, sources, sizes = bytes_for(4)
    with pytest.raises(RuntimeError, match=re.escape(words) + "$"):
        call(destinations, sources, sizes, 0)
    if not which.startswith("CUDA="):  # a runtime keeps its last error, and torch would find it later
        assert ctypes.c_int.in_dll(library, "forgotten").value > 0


@pytest.mark.parametrize(
    ("which", "version"),
    [("CUDA=13000", "13.0"), ("CUDA=12080", "12.8"), ("CUDART=12040", "12.4"), ("HIP=70226015", "7.2.26015")],
)
def test_the_version_is_that_of_the_library(torch: object, folder: Path, which: str, version: str) -> None:
    assert call_of(folder, which).version == version


@pytest.mark.parametrize(
    ("which", "words"),
    [
        ("CUDA=12040", "of CUDA 12.4 and has no cuMemcpyBatchAsync, which came with CUDA 12.8 (driver 570)"),
        ("HIP=60400000", "is 6.4.0 and has no hipMemcpyBatchAsync, which came with ROCm 7.1"),
    ],
)
def test_an_old_driver_is_refused_with_the_version_it_takes(
    torch: object, folder: Path, which: str, words: str
) -> None:
    with pytest.raises(EnvironmentProblem, match=re.escape(words)):
        call_of(folder, which)
