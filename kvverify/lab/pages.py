"""The bytes of both tiers: pages of HBM blocks that attention writes and reads, and copies to and from DRAM slots."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from kvverify.arena.arena import Arena
from kvverify.codecs.arrays import Bytes
from kvverify.codecs.interface import SlotCodec
from kvverify.codecs.registry import slot_codec
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.kernels.contract import ArenaView, CopyKernel
from kvverify.layout.placement import Layer, Layout


class Pages:
    """Memory for ``layout`` and ``slots`` DRAM slots of one block each; ``kernel`` copies between them."""

    def __init__(self, layout: Layout, head_size: int, slots: int, kernel: CopyKernel) -> None:
        self.layout = layout
        self.block_bytes = sum(layer.page_bytes for layer in layout.layers)
        self._arena = Arena(layout, slots)
        self._kernel = kernel
        kernel.prepare(cast("ArenaView", self._arena))  # the protocol's attributes, as properties
        views = zip(layout.layers, self._arena.layers, strict=True)
        self._layers = [_LayerPages(layer, head_size, view) for layer, view in views]

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> None:
        """Encode K and V [tokens, heads, head_size] into the cells of ``places`` (block * block_tokens + position, [tokens])."""
        self._layers[layer].write(places, k, v)

    def read(self, layer: int, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the cells of ``places`` hold, float32 [tokens, heads, head_size]; K as :meth:`turned` turns queries."""
        return self._layers[layer].read(places)

    def turned(self, layer: int, q: Tensor) -> Tensor:
        """Return queries in the basis in which a packed layer holds its keys, as engines do instead of turning all keys back."""
        rotation = self._layers[layer].rotation
        return q if rotation is None else q @ rotation

    def packed(self, layer: int) -> bool:
        """Does the layer hold K and V in another form than the model's numbers?"""
        return self._layers[layer].codec is not None

    def store(self, blocks: Sequence[int], slots: Sequence[int]) -> None:
        """Copy HBM blocks to DRAM slots."""
        self._kernel.store(list(blocks), list(slots))
        self._kernel.wait()

    def load(self, slots: Sequence[int], blocks: Sequence[int]) -> None:
        """Copy DRAM slots to HBM blocks."""
        self._kernel.load(list(slots), list(blocks))
        self._kernel.wait()

    def poison(self, blocks: Sequence[int], seed: int, *, packed: bool = False) -> int:
        """Overwrite blocks by random bytes that are moderate numbers in every format, so that nothing gives itself away as NaN.

        ``packed``: in packed layers alone, unless there is none. Return the number of layers.
        """
        random = np.random.default_rng(seed)
        chosen = [pages for pages in self._layers if packed and pages.codec is not None] or self._layers
        for pages in chosen:
            for block in blocks:
                cells = pages.block(block)
                cells.copy_(torch.from_numpy(_moderate(random, tuple(cells.shape))))
        return len(chosen)

    def poison_slots(self, slots: Sequence[int], seed: int) -> None:
        """Do the same to DRAM slots."""
        random = np.random.default_rng(seed)
        for slot in slots:
            row = self._arena.slot(slot)
            row[:] = _moderate(random, row.shape)

    def digest(self, block: int) -> str:
        """Return SHA-256 over the content of a block in all layers."""
        digest = hashlib.sha256()
        for pages in self._layers:
            digest.update(pages.block(block).contiguous().numpy().tobytes())
        return digest.hexdigest()

    def close(self) -> None:
        """Let the kernel go."""
        self._kernel.close()


class _LayerPages:
    """One layer's view: [row, head, token, content], a block being ``rows`` rows."""

    def __init__(self, layer: Layer, head_size: int, view: Tensor) -> None:
        self._view = view
        self._rows = layer.rows_per_block
        self._tokens = layer.shape[1]  # of one row
        self._head_size = head_size
        self.codec: SlotCodec | None = slot_codec(layer.kv_format, head_size) if layer.element == "uint8" else None
        self.rotation: Tensor | None = None
        if isinstance(self.codec, TurboQuantCodec) and self.codec.preset.key_bits != 8:
            self.rotation = torch.from_numpy(self.codec.rotation)

    def write(self, places: Tensor, k: Tensor, v: Tensor) -> None:
        """See :meth:`Pages.write`."""
        rows, tokens = places // self._tokens, places % self._tokens
        if self.codec is None:
            cells = torch.cat([k, v], dim=-1).to(self._view.dtype)
        else:
            cells = torch.from_numpy(self.codec.encode(k.numpy(), v.numpy()))
        self._view[rows, :, tokens] = cells

    def read(self, places: Tensor) -> tuple[Tensor, Tensor]:
        """See :meth:`Pages.read`."""
        cells = self._view[places // self._tokens, :, places % self._tokens]
        if self.codec is None:
            return cells[..., : self._head_size].float(), cells[..., self._head_size :].float()
        if isinstance(self.codec, TurboQuantCodec):
            pair = self.codec.decode_rotated(cells.numpy())
        else:
            pair = self.codec.decode(cells.numpy(), check=False)
        return torch.from_numpy(pair.k).clone(), torch.from_numpy(pair.v).clone()  # at torch's alignment: equal sums

    def block(self, block: int) -> Tensor:
        """The bytes of one block, uint8 [row, head, token, bytes]."""
        return self._view[block * self._rows : (block + 1) * self._rows].view(torch.uint8)


def _moderate(random: np.random.Generator, shape: tuple[int, ...]) -> Bytes:
    bytes_ = random.integers(0, 256, shape, np.uint8)
    return (bytes_ & np.uint8(0x8F)) | np.uint8(0x30)
