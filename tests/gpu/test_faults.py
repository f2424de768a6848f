"""Every fault that leaves wrong bytes does so on a GPU too: the same calls with and without it, and what they leave differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.faults.catalogue import catalogue
from kvverify.faults.fault import Fault
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.memcpy_batch import AsyncMemcpy
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.placement import Layout
from tests.faults.planting import effects, layout_for

PLANTED = [
    f for f in catalogue() if not f.out_of_reach("cuda") and f.only_on != "cuda"
]  # those are in test_race_faults.py
Factory = Callable[[], CopyKernel]
MakeKernel = Callable[[Factory], CopyKernel]
_clean: dict[tuple[str, int, str], list[Any]] = {}


def _left_by_a_clean_run(make: MakeKernel, factory: Factory, per_slot: int, layout: Layout) -> list[Any]:
    kernel = TorchReference(per_slot) if factory is TorchReference else make(factory)
    known = (kernel.name, per_slot, layout.name)
    if known not in _clean:
        _clean[known] = effects(kernel, layout, _device())
    return _clean[known]


def _device() -> t.device:
    return t.device("cuda", t.cuda.current_device())


@pytest.mark.parametrize("factory", [AsyncMemcpy, TorchReference])
@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f"{f.id}-{f.name}")
def test_a_fault_leaves_something_else_than_a_clean_run(
    make_kernel: MakeKernel, fault: Fault, factory: Factory
) -> None:
    planted = fault.plant(make_kernel(factory))
    layout = layout_for(fault, planted, "cuda")
    if layout is None:
        assert fault.chunked, f"no layout shows {fault.id}"
        assert factory is AsyncMemcpy
        pytest.skip("the kernel puts one block into a slot")
    clean = _left_by_a_clean_run(make_kernel, factory, int(getattr(planted, "blocks_per_slot", 1)), layout)
    assert effects(planted, layout, _device()) != clean


@pytest.mark.parametrize("factory", [AsyncMemcpy, TorchReference])
def test_clean_runs_leave_the_same(make_kernel: MakeKernel, factory: Factory) -> None:
    layout = layout_for(next(f for f in PLANTED if f.id == "F04"), make_kernel(factory), "cuda")
    assert layout is not None
    assert effects(make_kernel(factory), layout, _device()) == effects(make_kernel(factory), layout, _device())
