"""What the CUDA adapters of LMCache say where they cannot run, and which documented limits they give; no GPU needed."""

from __future__ import annotations

import importlib.machinery
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels import lmcache_cuda, lmcache_cuda_library, lmcache_direct, lmcache_library, lmcache_slots
from kvverify.kernels.lmcache_groups import unsupported
from kvverify.layout.place import place
from kvverify.layout.recipe import LayerRecipe, Recipe

CLASSES = (
    lmcache_cuda.LMCacheCudaTransfer,
    lmcache_cuda.LMCacheCudaBlockOp,
    lmcache_slots.LMCacheSlotOp,
    lmcache_direct.LMCacheDirectCopy,
)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that a version of LMCache is installed, and that torch sees a GPU or none."""

    def pretend(version: str, *, gpu: bool) -> None:
        lmcache_cuda_library.load.cache_clear()
        monkeypatch.setattr(lmcache_library, "library_version", lambda _name: version)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)

    return pretend


@pytest.fixture
def on_cpu(lmcache: ModuleType) -> lmcache_library.Library:
    """LMCache with its torch fallback, which registers layouts as the compiled build does."""
    if lmcache.torch_device_type != "cpu":
        pytest.skip("LMCache chose a GPU")
    return lmcache_library.load()


@pytest.mark.parametrize("factory", CLASSES)
@pytest.mark.parametrize("version", ["0.5.3", "0.5.6"])
def test_without_a_gpu_each_adapter_says_so(factory: Callable[[], Any], version: str, installed: Any) -> None:
    installed(version, gpu=False)
    with pytest.raises(
        EnvironmentProblem, match=rf"^LMCache {version}: torch {torch.__version__[:4]}.* sees no GPU.*CUDA 13"
    ):
        factory()


@pytest.mark.parametrize("factory", CLASSES)
def test_an_unknown_version_names_the_known_ones(factory: Callable[[], Any], installed: Any) -> None:
    installed("0.4.9", gpu=True)
    with pytest.raises(EnvironmentProblem, match=r"LMCache 0\.4\.9 is installed, the adapter knows 0\.5\.3, 0\.5\.6"):
        factory()


def test_a_missing_package_is_named(installed: Any) -> None:
    installed("unknown", gpu=True)
    with pytest.raises(EnvironmentProblem, match=r"^LMCache is not installed here"):
        lmcache_cuda_library.load()


def test_a_forced_device_is_named(on_cpu: Any, installed: Any) -> None:
    installed(on_cpu.version, gpu=True)
    with pytest.raises(EnvironmentProblem, match="chose the device 'cpu', expected 'cuda': unset DEVICE_TYPE"):
        lmcache_cuda_library.load()


def test_ops_built_for_another_torch_are_not_mistaken_for_the_fallback(lmcache: ModuleType, on_cpu: Any) -> None:
    release = lmcache_cuda_library._RELEASES[on_cpu.version]
    with pytest.raises(EnvironmentProblem, match=r"torch fallback: .*built for torch 2\.13") as refusal:
        lmcache_cuda_library._bound_extension(on_cpu.version, release, lmcache, on_cpu.ops)
    text = str(refusal.value)
    assert "\n" not in text
    assert torch.__version__ in text
    if torch.version.cuda is None and torch.version.hip is None:
        assert "does not load: libc10_cuda.so" in text or "has no such extension" in text


def test_one_op_left_on_the_fallback_is_enough_to_refuse(lmcache: ModuleType, on_cpu: Any) -> None:
    release = lmcache_cuda_library._RELEASES[on_cpu.version]

    class Ops:
        multi_layer_kv_transfer = staticmethod(len)  # compiled code, as far as Python can tell
        multi_layer_block_kv_transfer = staticmethod(len)
        execute_object_group_transfer = staticmethod(len)

    bound = Ops()
    spec = importlib.machinery.PathFinder.find_spec(release.extension, lmcache.__path__)
    if spec is None:
        pytest.skip(f"this build of LMCache has no {release.extension}")
    assert lmcache_cuda_library._bound_extension(on_cpu.version, release, lmcache, bound) == spec.origin
    bound.multi_layer_kv_transfer = on_cpu.ops.multi_layer_kv_transfer
    with pytest.raises(EnvironmentProblem, match="torch fallback"):
        lmcache_cuda_library._bound_extension(on_cpu.version, release, lmcache, bound)


def test_cupy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(EnvironmentProblem, match=r"needs cupy.*install cupy-cuda13x"):
        lmcache_cuda_library.require_cupy("0.5.3")


def test_direct_copy_refuses_a_release_without_it(on_cpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lmcache_cuda, "load", lambda: on_cpu)
    monkeypatch.setattr(lmcache_cuda, "require_cupy", lambda _version: None)
    with pytest.raises(
        EnvironmentProblem, match=r"has no execute_direct_copy_transfer; the adapter knows it from 0\.5\.6"
    ):
        lmcache_direct.LMCacheDirectCopy()


def test_0_5_3_knows_two_orders() -> None:
    order = lmcache_cuda_library._vllm_order("0.5.3")
    assert [order("LBNHC"), order("LBHNC")] == ["NHD", "HND"]
    for unknown in ("BLNHC", "BLHNC", "LHBNC", "BHLNC"):
        with pytest.raises(NotImplementedError, match=rf"0\.5\.3 knows .* only, not {unknown}"):
            order(unknown)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (LayerRecipe("fp8_e4m3", 2, 65, split="kv_block"), "heads of 65 bytes"),
        (LayerRecipe("bf16", 33, 64), "33 heads"),
        (LayerRecipe("bf16", 32, 64), None),
        (LayerRecipe("turboquant_4bit_nc", 3, 128), None),
    ],
)
def test_limits_of_the_block_op(on_cpu: Any, layer: LayerRecipe, reason: str | None) -> None:
    found = unsupported(on_cpu, place(Recipe((layer,))), 2, lmcache_cuda.block_op_limits)
    assert (found is None) if reason is None else (found is not None and found.startswith(reason))
