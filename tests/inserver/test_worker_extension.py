"""The worker extension on CPU tensors in the layouts of vLLM's attention backends."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("torch")

import torch  # noqa: E402
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from kvverify.inserver import kv_blocks  # noqa: E402
from tests.inserver.kv_pools import BLOCKS, LAYOUTS, Worker, blocks_first, cross_layer, packed_odd  # noqa: E402

Layout = Callable[[int], torch.Tensor]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The same storage as bytes, in memory order."""
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    return whole.view(torch.uint8)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_equal_bytes_have_equal_digests_wherever_they_lie(layout: Layout) -> None:
    """Blocks that moved are recognised, in every layout, and answers survive JSON."""
    worker = Worker([layout(0), layout(1)])
    before = worker.kvverify_digests()
    assert before["blocks"] == list(range(1, BLOCKS))
    assert len(set(before["digests"])) == BLOCKS - 1
    views = worker.kvverify_views()
    for view in views:
        view[1] = view[5].clone()
    after = json.loads(json.dumps(worker.kvverify_digests([1, 5, 2])))
    assert after["digests"] == [before["digests"][4], before["digests"][4], before["digests"][1]]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_byte_counts_and_only_its_block_changes(layout: Layout, data: st.DataObject) -> None:
    """Any flipped bit, anywhere in the storage, changes the digest of exactly one block."""
    worker = Worker([layout(0), layout(1)])
    before = worker.kvverify_digests(list(range(BLOCKS)))["digests"]
    storage = _bytes_of(worker.model_runner.kv_caches[data.draw(st.integers(0, 1))])
    place = data.draw(st.integers(0, storage.numel() - 1))
    storage[place] ^= 1 << data.draw(st.integers(0, 7))
    after = worker.kvverify_digests(list(range(BLOCKS)))["digests"]
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


def test_two_flipped_signs_do_not_cancel() -> None:
    """The highest bits of two words once cancelled in a sum modulo 2**64 of 64-bit words."""
    worker = Worker([blocks_first(0)])
    before = worker.kvverify_digests([3])
    page = worker.kvverify_views()[0][3].view(-1)
    page[3] ^= -(2**15)
    page[7] ^= -(2**15)
    assert worker.kvverify_digests([3]) != before


def test_digests_by_layer_name_the_layer() -> None:
    """A changed layer is the only one whose digest changes."""
    worker = Worker([blocks_first(0), packed_odd(1)])
    before = worker.kvverify_digests([2], by_layer=True)["digests"][0]
    worker.model_runner.kv_caches[1][2, 0, 1, 5] ^= 1
    after = worker.kvverify_digests([2], by_layer=True)["digests"][0]
    assert [a == b for a, b in zip(before, after, strict=True)] == [True, False]


def test_digests_do_not_depend_on_how_much_is_hashed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks are a matter of memory alone."""
    worker = Worker([packed_odd(0), blocks_first(1)])
    whole = worker.kvverify_digests()
    monkeypatch.setattr(kv_blocks, "_CHUNK_BYTES", 1)
    assert worker.kvverify_digests() == whole


@pytest.mark.parametrize("layout", LAYOUTS)
def test_poison_fills_every_byte_of_its_blocks_and_no_other(layout: Layout) -> None:
    """The null block stays, everything else is the pattern."""
    worker = Worker([layout(0), layout(1)])
    null_before = worker.kvverify_digests([0])
    assert worker.kvverify_poisoned()["poisoned"] == 0
    answer = worker.kvverify_poison()
    storage = sum(_bytes_of(cache).numel() for cache in worker.model_runner.kv_caches)
    assert answer == {"blocks": BLOCKS - 1, "bytes": storage // BLOCKS * (BLOCKS - 1), "pattern": 0xA5}
    assert worker.kvverify_poisoned()["blocks"] == list(range(1, BLOCKS))
    assert worker.kvverify_digests([0]) == null_before
    for cache in worker.model_runner.kv_caches:
        assert int((_bytes_of(cache) == 0xA5).sum()) >= _bytes_of(cache).numel() // BLOCKS * (BLOCKS - 1)


def test_poison_of_named_blocks() -> None:
    """Only they change, also where the layers of a block lie side by side."""
    worker = Worker(cross_layer(3))
    before = worker.kvverify_digests()["digests"]
    worker.kvverify_poison([2, 6], 0x5A)
    assert worker.kvverify_poisoned(None, 0x5A)["blocks"] == [2, 6]
    after = worker.kvverify_digests()["digests"]
    assert [i + 1 for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [2, 6]


def test_poison_is_finite_in_every_format() -> None:
    """A NaN would leak through masked slots and make a clean reload look broken."""
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2):
        raw = torch.full((8,), kv_blocks.POISON, dtype=torch.uint8)
        assert bool(torch.isfinite(raw.view(dtype).float()).all())


def test_layers_that_share_a_tensor_are_taken_once_and_lists_are_unfolded() -> None:
    """Cross-layer sharing aliases a tensor; state-space layers are lists."""
    shared = blocks_first(0)
    worker = Worker([shared, [blocks_first(1), packed_odd(2)], shared])
    assert len(worker.kvverify_views()) == 3


def test_a_pool_whose_block_dimension_is_not_known_is_refused() -> None:
    """No guess where two dimensions, or none, can be it."""
    with pytest.raises(ValueError, match="cannot tell which dimension"):
        Worker([torch.zeros(2, 2, 4)], blocks=2).kvverify_digests()
    with pytest.raises(ValueError, match="cannot tell which dimension"):
        Worker([torch.zeros(5, 4)], blocks=7).kvverify_digests()


def test_a_block_outside_the_pool_is_refused() -> None:
    """Numbers come from outside."""
    with pytest.raises(ValueError, match="block 7 is not in the pool, which has 7 blocks"):
        Worker([blocks_first(0)]).kvverify_poison([1, 7])


def test_all_names_are_ours() -> None:
    """vLLM refuses an extension one of whose names its worker has."""
    names = [name for name in dir(Worker.__mro__[1]) if not name.startswith("__")]
    assert all(name.startswith("kvverify_") for name in names)


def test_description() -> None:
    """Bytes of a block over all layers."""
    described = Worker([blocks_first(0), packed_odd(1)]).kvverify_describe()
    assert described["blocks"] == BLOCKS
    assert described["block_bytes"] == 2 * 4 * 16 * 2 + 3 * 67
    assert described["tensors"][1]["dtype"] == "torch.uint8"


def test_a_scramble_overwrites_packed_layers_alone_and_not_the_null_block() -> None:
    """What the model's own layers hold stays, so that a lower score is the packed cache's."""
    worker = Worker([blocks_first(0), packed_odd(1)])
    before = worker.kvverify_digests(list(range(BLOCKS)), by_layer=True)["digests"]
    told = json.loads(json.dumps(worker.kvverify_scramble()))
    after = worker.kvverify_digests(list(range(BLOCKS)), by_layer=True)["digests"]
    assert (told["blocks"], told["scrambled"], told["layers"], told["of"]) == (BLOCKS - 1, BLOCKS - 1, 1, 2)
    assert [one[0] == other[0] for one, other in zip(before, after, strict=True)] == [True] * BLOCKS
    assert [one[1] == other[1] for one, other in zip(before, after, strict=True)] == [True] + [False] * (BLOCKS - 1)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_scramble_overwrites_all_layers_where_none_is_packed(layout: Layout) -> None:
    worker = Worker([layout(0), layout(1)])
    told = worker.kvverify_scramble()
    assert (told["scrambled"], told["layers"]) == (BLOCKS - 1, 2)
    assert worker.kvverify_poisoned()["poisoned"] == BLOCKS - 1
