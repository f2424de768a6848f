"""LMCache's compiled ops on a GPU, through every adapter: round trips checked byte by byte.

Layouts that are known or likely to make LMCache read or write wrong places are left to campaigns, where each program has a
process of its own: an illegal access here would take all later tests with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch")

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.lmcache_cuda import LMCacheCudaBlockOp, LMCacheCudaTransfer
from kvverify.kernels.lmcache_direct import LMCacheDirectCopy
from kvverify.kernels.lmcache_groups import known_defect
from kvverify.kernels.lmcache_slots import LMCacheSlotOp
from kvverify.kernels.provenance import library_version
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.pool import campaign_pool

if TYPE_CHECKING:
    from kvverify.kernels.contract import CopyKernel

CLASSES = (LMCacheCudaTransfer, LMCacheCudaBlockOp, LMCacheSlotOp, LMCacheDirectCopy)


def _tame(layout: Layout) -> bool:
    """Dense memory, every layer on a multiple of 16 bytes, nothing that LMCache is known to misread."""
    aligned = all(layer.offset % 16 == 0 for layer in layout.layers)
    return layout.usable_blocks is None and layout.num_blocks >= 3 and aligned and known_defect(layout) is None


def _layouts() -> list[Layout]:
    return [layout for layout in map(place, campaign_pool()) if _tame(layout) and layout.order in {"LBNHC", "LBHNC"}]


@pytest.fixture(params=CLASSES, ids=lambda factory: factory.name)
def kernel(request: pytest.FixtureRequest, gpu: str, lmcache: Any, make_kernel: Any) -> CopyKernel:
    """One adapter, or a skip with its own words."""
    made: CopyKernel = make_kernel(request.param)
    return made


@pytest.mark.parametrize("layout", _layouts(), ids=lambda layout: layout.name)
def test_round_trip(kernel: Any, layout: Layout, round_trip: Callable[[Any, Layout], None]) -> None:
    reason = kernel.supports(layout)
    if reason is not True:
        pytest.skip(reason)
    if kernel.name == "lmcache-slots" and layout.order == "LBHNC" and any(len(x.shape) == 3 for x in layout.layers):
        pytest.skip("the slot-wise op divides fused HND cells by a truncated head size: left to campaigns")
    round_trip(kernel, layout)


def test_a_part_leaves_the_skipped_blocks_alone(kernel: Any) -> None:
    import torch

    from tests.gpu.device_arena import content_positions, make_device_arena

    layout = place(campaign_pool()[0])
    arena = make_device_arena(layout, blocks_per_slot=2)
    with arena.current():
        kernel.prepare(arena)
        before = arena.memory.clone()
        kernel.store([3, 0], [4])
        kernel.wait()
        arena.memory.bitwise_xor_(torch.full_like(arena.memory, 0x5A))
        want = arena.memory.clone()
        to, source = (torch.from_numpy(content_positions(layout, 0, [b])).to("cuda") for b in (5, 0))
        want[to] = before[source]
        kernel.load_part(4, 1, [5])
        kernel.wait()
        assert kernel.done()
        assert torch.equal(arena.memory, want)
        kernel.close()


def test_a_call_does_not_wait_for_the_stream(kernel: Any) -> None:
    """A store is enqueued behind work that takes a second, and brings what that work wrote in the end."""
    import torch

    from tests.gpu.device_arena import make_device_arena

    layout = place(campaign_pool()[0])
    arena = make_device_arena(layout, blocks_per_slot=2)
    with arena.current():
        kernel.prepare(arena)
        kernel.store([3, 0], [4])  # whatever is allocated once is allocated now
        kernel.wait()
        stale = arena.host[4].clone()
        torch.cuda._sleep(2_000_000_000)  # type: ignore[no-untyped-call]  # cycles
        arena.memory.bitwise_xor_(torch.full_like(arena.memory, 0x5A))
        kernel.store([3, 0], [4])
        assert not kernel.done()
        assert torch.equal(arena.host[4], stale)
        kernel.wait()
        changed = int((arena.host[4] == stale ^ 0x5A).sum())
        assert changed == 2 * sum(layer.page_bytes for layer in layout.layers)
        kernel.close()


def test_provenance_names_the_compiled_ops(kernel: Any) -> None:
    provenance = kernel.provenance()
    assert "(compiled ops)" in provenance["path"]
    assert any(name.endswith(".so") for name in provenance["files"])


def test_direct_copy_is_refused_in_one_line_where_the_release_lacks_it(gpu: str, lmcache: Any) -> None:
    if library_version("lmcache") != "0.5.3":
        pytest.skip("LMCache 0.5.3 is the release without it")
    with pytest.raises(EnvironmentProblem, match=r"^LMCache 0\.5\.3 has no execute_direct_copy_transfer"):
        LMCacheDirectCopy()
