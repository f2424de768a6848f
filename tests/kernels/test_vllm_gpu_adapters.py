"""The GPU adapters over vLLM where there is no GPU: what they refuse, and that they drive vLLM's own code as it expects."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels import vllm_library, vllm_offload
from kvverify.kernels.registry import check_kernel, resolve, supports_reason
from kvverify.kernels.vllm_dma import VllmDmaBackend
from kvverify.kernels.vllm_offload import VllmOffloadWorker, selects_triton
from kvverify.kernels.vllm_pages import canonical_runs, is_packed, layer_runs
from kvverify.kernels.vllm_swap import VllmSwapBlocks, VllmSwapBlocksBatch
from kvverify.layout.place import place
from kvverify.layout.pool import campaign_pool

if TYPE_CHECKING:
    from kvverify.layout.placement import Layout

ADAPTERS = [VllmSwapBlocks, VllmSwapBlocksBatch, VllmOffloadWorker, VllmDmaBackend]
POOL = {layout.name: layout for layout in map(place, campaign_pool())}
CHECKOUT = Path(__file__).parents[2]
THRESHOLD = 28 * 1024


@pytest.fixture
def without_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")


@pytest.fixture
def pretended_gpu(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_without_a_gpu_it_says_so(without_gpu: None, adapter: Any) -> None:
    with pytest.raises(EnvironmentProblem, match=f"^{adapter.name} needs a GPU, and torch .* sees none") as caught:
        adapter()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize(
    ("version", "line"),
    [
        ("0.27.1", "vLLM 0.27.1 is installed, the adapters know 0.26 and 0.32"),
        ("0.3.2", "vLLM 0.3.2 is installed"),
        ("unknown", "vLLM is not installed here"),
    ],
)
def test_versions_that_no_adapter_knows(
    pretended_gpu: None, monkeypatch: pytest.MonkeyPatch, adapter: Any, version: str, line: str
) -> None:
    monkeypatch.setattr(vllm_library, "vllm_version", lambda: version)
    with pytest.raises(EnvironmentProblem, match=line):
        adapter()


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_cpu_build_beside_a_gpu(pretended_gpu: None, vllm: ModuleType, adapter: Any) -> None:
    with pytest.raises(EnvironmentProblem, match="runs on the platform CpuPlatform, not on CUDA or ROCm"):
        adapter()


@pytest.mark.parametrize(
    ("adapter", "operation"),
    [
        (VllmSwapBlocks, "swap_blocks"),
        (VllmSwapBlocksBatch, "swap_blocks_batch"),
        (VllmOffloadWorker, "swap_blocks_batch"),
    ],
)
def test_an_extension_that_registered_nothing(
    pretended_gpu: None, vllm: ModuleType, monkeypatch: pytest.MonkeyPatch, adapter: Any, operation: str
) -> None:
    platform = importlib.import_module("vllm.platforms").current_platform
    monkeypatch.setattr(platform, "is_cuda_alike", lambda: True, raising=False)
    with pytest.raises(EnvironmentProblem, match=f"registered no compiled {operation};"):
        adapter()


def test_a_module_built_for_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ImportError("undefined symbol: aoti_torch_new")

    monkeypatch.setattr(importlib, "import_module", fails)
    with pytest.raises(EnvironmentProblem, match=r"vllm\._C cannot be imported with torch .*undefined symbol"):
        vllm_library.import_vllm("vllm._C")


@pytest.fixture
def offload(monkeypatch: pytest.MonkeyPatch) -> VllmOffloadWorker:
    kernel = SimpleNamespace(THRESHOLD_BYTES=THRESHOLD, MIN_N=16)
    monkeypatch.setattr(vllm_offload, "_load", lambda: SimpleNamespace(swap_blocks_triton=kernel))
    return VllmOffloadWorker()


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setattr("kvverify.kernels.vllm_swap.compiled_ops", lambda _kernel, _names: None)
    monkeypatch.setattr("kvverify.kernels.vllm_dma._load", lambda: None)
    return [VllmSwapBlocks(), VllmSwapBlocksBatch(), VllmDmaBackend()]


def test_the_contract_is_kept_as_far_as_it_can_be_seen(offload: VllmOffloadWorker, swap: list[Any]) -> None:
    for kernel in (offload, *swap):
        check_kernel(kernel, kernel.name)
        assert not getattr(kernel, "caller_syncs", ())


def page_sizes(layout: Layout) -> list[int]:
    return [run.size for group in canonical_runs(layout) for _, run in group]


def test_what_the_driver_copies_is_taken_whatever_the_layout(swap: list[Any]) -> None:
    for kernel in swap:
        assert all(kernel.supports(layout) is True for layout in POOL.values())


def test_the_worker_refuses_only_words_across_word_borders(offload: VllmOffloadWorker) -> None:
    refused = {name: reason for name, layout in POOL.items() if (reason := supports_reason(offload, layout))}
    assert refused
    for name, layout in POOL.items():
        starts = [offset + run.start for group in canonical_runs(layout) for offset, run in group]
        strides = [run.stride for group in canonical_runs(layout) for _, run in group]
        triton = max(page_sizes(layout)) < THRESHOLD and all(size % 8 == 0 for size in page_sizes(layout))
        assert (name in refused) is (triton and any(value % 8 for value in (*starts, *strides)))
    assert all("_select_swap_blocks_fn" in reason for reason in refused.values())


@pytest.fixture
def compiled(vllm: ModuleType) -> Any:
    """The Triton adapter as it refuses on a GPU; made before anything imports vLLM's kernel with Triton switched off."""
    os.environ.update(resolve("vllm-triton").environment)
    kernel: Any = resolve("vllm-triton").create()
    kernel._kernel = dataclasses.replace(kernel._kernel, interpreted=False)
    return kernel


@pytest.mark.parametrize(
    ("sizes", "triton"),
    [
        ([THRESHOLD - 8], True),
        ([THRESHOLD], False),
        ([8, THRESHOLD], False),
        ([2144], True),
        ([2144, 2148], False),
        ([4], False),
    ],
)
def test_vllm_agrees_which_kernel_loads(
    compiled: Any, monkeypatch: pytest.MonkeyPatch, sizes: list[int], triton: bool
) -> None:
    worker: Any = importlib.import_module("vllm.v1.kv_offload.cpu.gpu_worker")
    base: Any = importlib.import_module("vllm.v1.kv_offload.base")
    monkeypatch.setattr(worker, "HAS_TRITON", True)
    monkeypatch.setattr(worker, "triton", SimpleNamespace(next_power_of_2=lambda n: 1 << (n - 1).bit_length()))
    refs = [[base.CanonicalKVCacheRef(i, size) for i, size in enumerate(sizes)]]
    chosen = worker._select_swap_blocks_fn(refs, gpu_to_cpu=False)
    assert isinstance(chosen, functools.partial) is triton is selects_triton(sizes, worker.THRESHOLD_BYTES)
    assert not isinstance(worker._select_swap_blocks_fn(refs, gpu_to_cpu=True), functools.partial)


def test_the_pool_has_both_sides_of_every_selection_rule() -> None:
    largest = [max(page_sizes(layout)) for layout in POOL.values()]
    words = [all(size % 8 == 0 for size in page_sizes(layout)) for layout in POOL.values()]
    assert min(largest) < THRESHOLD <= max(largest)
    assert {True, False} == set(words)
    assert {True, False} == {is_packed(layout) for layout in POOL.values()}


def test_the_compiled_kernel_refuses_by_size_shape_and_address(compiled: Any) -> None:
    kinds = {"one contiguous run": 0, "page % 8": 0, "by DMA": 0, "8-byte-aligned": 0, "served": 0}
    for layout in POOL.values():
        reason = supports_reason(compiled, layout)
        runs = [(layer, layer_runs(layer)) for layer in layout.layers]
        right = all(
            len(found) == 1
            and found[0].size % 8 == 0
            and found[0].size < THRESHOLD
            and (layer.offset + found[0].start) % 8 == found[0].stride % 8 == 0
            for layer, found in runs
        )
        assert (reason is None) is right, layout.name
        (kind,) = (k for k in kinds if k in (reason or "served"))
        kinds[kind] += 1
    assert all(kinds.values()), kinds


LAYOUTS = [
    next(name for name, layout in POOL.items() if layout.order == order and len(layout.groups) == 1)
    for order in ("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BHLNC")
]
PADDED = next(name for name, layout in POOL.items() if "pad48" in name)
PLANES = next(
    name
    for name, layout in POOL.items()
    if any(
        layer.shape[0] == 2 and len(layer.shape) == 4 and layer.strides[0] > layer.row_stride for layer in layout.layers
    )
    and layout.num_blocks > 8
)
GROUPS = [name for name, layout in POOL.items() if len(layout.groups) > 1][:4]


@pytest.fixture(scope="module")
def driven(vllm: ModuleType) -> dict[str, Any]:
    """What all adapters did over vLLM's own code, with memmove for the compiled calls, in one child process."""
    if not vllm_library.vllm_version().startswith("0.32"):
        pytest.skip("the substitutes are for vLLM 0.32")
    command = [sys.executable, "-O", "-m", "tests.kernels.memmove_vllm", *LAYOUTS, PADDED, PLANES, *GROUPS]
    environment = {**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "TRITON_INTERPRET": "0"}
    child = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT, env=environment, check=False)
    assert child.returncode == 0, child.stderr[-2000:]
    answer: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_vllms_own_code_brings_every_byte(driven: dict[str, Any], adapter: Any) -> None:
    groups = len(GROUPS) if getattr(adapter, "groups", False) else 0
    batched = adapter in (VllmSwapBlocksBatch, VllmOffloadWorker)
    assert driven[adapter.name] == {
        "layouts": len(LAYOUTS) + 2 + groups,
        "wrong": 0,
        "source_orders": [False, True] if batched else [],
    }
