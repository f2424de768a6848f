"""Every test of this folder needs a GPU, and is skipped with the reason where there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.contract import CopyKernel

if TYPE_CHECKING:
    from kvverify.layout.placement import Layout

MakeKernel = Callable[[Callable[[], CopyKernel]], CopyKernel]


@pytest.fixture(autouse=True)
def nothing_in_flight(torch: ModuleType, gpu: str) -> Iterator[None]:
    """A test that leaves the GPU in error fails itself, not the next one."""
    yield
    torch.cuda.synchronize()


@pytest.fixture
def make_kernel() -> MakeKernel:
    """Return a kernel of the given class; skip with its own words where it cannot run here."""

    def make(factory: Callable[[], CopyKernel]) -> CopyKernel:
        try:
            return factory()
        except EnvironmentProblem as problem:
            pytest.skip(str(problem))

    return make


@pytest.fixture
def round_trip(gpu: str) -> Callable[[CopyKernel, Layout], None]:
    """:func:`tests.gpu.device_arena.round_trip`, imported only where there is a GPU."""
    from tests.gpu.device_arena import round_trip

    return round_trip
