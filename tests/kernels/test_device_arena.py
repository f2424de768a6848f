"""The check that GPU tests use, held against kernels that are right and wrong, without a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

pytest.importorskip("torch")

from kvverify.kernels.contract import ArenaView
from kvverify.kernels.torch_reference import TorchReference
from kvverify.layout.place import place
from tests.gpu.device_arena import GUARD, DeviceArena, make_device_arena, round_trip
from tests.kernels.fake_arena import positions
from tests.kernels.recipes import RECIPES


class Wrong(TorchReference):
    """Copies as it should, then does one thing more."""

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def prepare(self, arena: ArenaView) -> None:
        super().prepare(arena)
        assert isinstance(arena, DeviceArena)
        self.arena = arena

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int], *, group: int = 0) -> None:
        super().store(block_ids, host_slots, group=group)
        match self.fault:
            case "source":
                self.arena.memory[GUARD + 8] ^= 1
            case "host guard":
                self.arena.host_memory[GUARD + self.arena.host.shape[1]] ^= 1
            case "other slot":
                free = min(set(range(len(self.arena.host))) - set(host_slots))
                self.arena.host[free, -1] ^= 1

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
        if self.fault == "no load":
            return
        super().load(host_slots, block_ids, group=group)
        layer = self.arena.layout.layers[self.arena.layout.group_layers(group)[-1]]
        match self.fault:
            case "last byte":
                self.arena.memory[int(positions(layer, [block_ids[-1]])[-1])] ^= 1
            case "guard":
                self.arena.memory[-1] ^= 1
            case "load writes host":
                self.arena.host[host_slots[0], 0] ^= 1


@pytest.mark.parametrize("blocks_per_slot", [1, 2])
@pytest.mark.parametrize("name", RECIPES)
def test_a_right_kernel_passes(torch: object, name: str, blocks_per_slot: int) -> None:
    round_trip(TorchReference(blocks_per_slot), place(RECIPES[name]), device="cpu")


@pytest.mark.parametrize("name", ["mixed BLNHC", "two groups", "padded pages"])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("source", "the store changed the device side"),
        ("host guard", "outside its slots"),
        ("other slot", "outside its slots"),
        ("no load", "loaded into"),
        ("last byte", "loaded into.* 1 wrong bytes.*Owner"),
        ("guard", "loaded into.* 1 wrong bytes.*nobody owns it"),
        ("load writes host", "the load changed host bytes: 1 wrong bytes, the first at byte 0 of slot"),
    ],
)
def test_a_wrong_byte_anywhere_is_found(torch: object, name: str, fault: str, words: str) -> None:
    layout = place(RECIPES[name])
    with pytest.raises(AssertionError, match=words):
        round_trip(Wrong(fault), layout, device="cpu")


def test_lists_are_emptied_after_the_call(torch: object) -> None:
    class Late(TorchReference):
        """Reads its lists when it is asked to wait."""

        def load(self, host_slots: Sequence[int], block_ids: Sequence[int], *, group: int = 0) -> None:
            self.late = host_slots, block_ids

        def wait(self) -> None:
            if hasattr(self, "late") and self.late[0]:
                super().load(*self.late)

    with pytest.raises(AssertionError, match="loaded into"):
        round_trip(Late(), place(RECIPES["bf16 LBNHC"]), device="cpu")


def test_host_rows_are_aligned_and_guarded(torch: object) -> None:
    arena = make_device_arena(place(RECIPES["mixed BLNHC"]), 3, device="cpu")
    assert all(row.data_ptr() % 4096 == 0 for row in arena.host)
    assert arena.host.stride(0) == arena.host.shape[1] + GUARD
    assert arena.rows(arena.host_memory).data_ptr() == arena.host.data_ptr()
