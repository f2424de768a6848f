"""What looks like a fault and is none must pass: the oracle is worth nothing if it cries at good kernels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from kvverify.faults.planted import DeviceBytes, Planted, rows_of
from kvverify.faults.reported import layers_alike
from kvverify.kernels.contract import ArenaView
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.recipe import LayerRecipe, Recipe
from tests.faults.hunting import hunt, pool, reference

if TYPE_CHECKING:
    import torch as t

PADDED = [x for x in pool() if len(x.groups) == 1 and len(x.layers) < 20 and any(y.padding_bytes for y in x.layers)]


class Permuting(Planted):
    """Exchanges equal layers on the way out and back: slots hold another order of bytes, which is the kernel's own."""

    def around_store(self, blocks: list[int], slots: list[int], group: int, copy: Any) -> None:
        self._turn(blocks, group, 1)
        copy(blocks, slots)
        self._turn(blocks, group, -1)

    def around_load(self, slots: list[int], blocks: list[int], group: int, copy: Any) -> None:
        copy(slots, blocks)
        self._turn(blocks, group, -1)

    def _turn(self, blocks: list[int], group: int, by: int) -> None:
        for alike in layers_alike(self.layers_of(group)):
            rows = rows_of(alike[0], list(dict.fromkeys(blocks)))
            bytes_ = [self.view(layer)[rows].clone() for layer in alike]
            for layer, moved in zip(alike, bytes_[by:] + bytes_[:by], strict=True):
                self.view(layer)[rows] = moved


class WholeStrides:
    """Copies every byte from one block to the next, padding included."""

    name = "whole-strides"

    def supports(self, layout: Layout) -> bool | str:
        return True

    def prepare(self, arena: ArenaView) -> None:
        import torch

        self.fields: list[tuple[t.Tensor, int]] = [
            (DeviceBytes(arena).field(layer, field), layer.rows_per_block)
            for layer in arena.layout.layers
            for field in layer.fields
        ]
        self.kept = torch.empty(
            arena.host.shape[0], sum(math.prod(f.shape[1:]) * k for f, k in self.fields), dtype=torch.uint8
        )

    def store(self, block_ids: Sequence[int], host_slots: Sequence[int]) -> None:
        for block, slot in zip(block_ids, host_slots, strict=True):
            parts = [f[block * k : (block + 1) * k].reshape(-1) for f, k in self.fields]
            self.kept[slot] = _joined(parts)

    def load(self, host_slots: Sequence[int], block_ids: Sequence[int]) -> None:
        for slot, block in zip(host_slots, block_ids, strict=True):
            at = 0
            for field, k in self.fields:
                target = field[block * k : (block + 1) * k]
                target.copy_(self.kept[slot, at : at + target.numel()].view(target.shape))
                at += target.numel()

    def wait(self) -> None: ...

    def close(self) -> None: ...


def _joined(parts: list[t.Tensor]) -> t.Tensor:
    import torch

    return torch.cat(parts)


def test_a_permutation_that_store_and_load_share_is_no_fault(torch: ModuleType) -> None:
    for layout in pool()[:6]:
        outcome = hunt(lambda: Permuting(reference()), layout, examples=16)
        assert not outcome.failed, f"{layout.name}: {outcome.headline}"


@pytest.mark.parametrize("layout", PADDED, ids=lambda x: x.name)
def test_padding_may_be_carried_along(layout: Layout, torch: ModuleType) -> None:
    outcome = hunt(WholeStrides, layout, examples=24)
    assert not outcome.failed, f"{layout.name}: {outcome.headline}"


def test_padding_inside_cells_may_travel_while_that_behind_the_page_stays(torch: ModuleType) -> None:
    # head size 82 makes slots with a padding byte, which the view shows and the page padding behind it does not
    recipe = Recipe((LayerRecipe("turboquant_k8v4", 1, 82, 2),), num_blocks=7, block_tokens=3, page_padding=16)
    outcome = hunt(reference, place(recipe), examples=24)
    assert not outcome.failed, outcome.headline
