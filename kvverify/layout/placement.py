"""The placement of a KV cache: where every byte of every layer lies.

A :class:`Layout` is the truth that views, oracle and diagnosis share. It holds byte arithmetic only, no tensors::

    byte j of field f, block b, kernel-block r of it, head h, token n (inside that kernel block)
      = layer.offset + (b * layer.rows_per_block + r) * layer.row_stride
        + f.offset + h * f.head_stride + n * f.token_stride + j

All positions are bytes from the start of the engine's one buffer. A *row* is one entry of the view's first dimension: a
block, or a kernel block where the attention kernel works on smaller blocks than the block manager.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Role(enum.StrEnum):
    """What a field holds; decides how a wrong byte is described and which occupants hurt most."""

    DATA = "data"  # values or packed indices
    SCALE = "scale"  # scale, norm, minimum, zero point
    PADDING = "padding"  # belongs to the block, holds nothing; a copy may carry it along or leave it


@dataclass(frozen=True, slots=True)
class Field:
    """One named run of ``length`` bytes that each (head, token) cell of a row carries."""

    name: str
    role: Role
    offset: int
    length: int
    heads: int
    head_stride: int
    tokens: int
    token_stride: int


@dataclass(frozen=True, slots=True)
class Layer:
    """One registered tensor. ``shape`` and ``strides`` describe its view without the row dimension.

    ``shape`` is ``(head, token, content)`` or, with split K/V, ``(2, head, token, head_size)`` in elements of ``element``;
    ``strides`` are bytes in the same order. ``fields`` cover every content byte of a row exactly once, padding included.
    """

    index: int
    name: str
    group: int
    kv_format: str  # name of the slot format, e.g. "bf16", "turboquant_4bit_nc"
    element: str  # torch dtype name of the view: bfloat16, float16, float32 or uint8
    element_bytes: int
    offset: int
    row_stride: int
    rows_per_block: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    fields: tuple[Field, ...]
    aliases: tuple[str, ...] = ()  # further layer names that share this very tensor

    @property
    def block_stride(self) -> int:
        """Bytes from one block to the next."""
        return self.row_stride * self.rows_per_block

    @property
    def page_bytes(self) -> int:
        """Content bytes of one block of this layer, padding not counted."""
        per_row = sum(f.length * f.heads * f.tokens for f in self.fields if f.role is not Role.PADDING)
        return per_row * self.rows_per_block

    @property
    def padding_bytes(self) -> int:
        """Padding bytes that belong to one block of this layer."""
        per_row = sum(f.length * f.heads * f.tokens for f in self.fields if f.role is Role.PADDING)
        return per_row * self.rows_per_block


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table. Groups overlay the same bytes: a block id belongs to one group at a time."""

    index: int
    kind: str  # full, sliding_window, mamba, indexer, ...
    block_tokens: int


@dataclass(frozen=True, slots=True)
class Layout:
    """One engine buffer with all its layers.

    ``usable_blocks`` are the block ids backed by memory, None for all: a buffer beyond 2 GiB is a sparse mapping in which
    only some blocks can be touched.
    """

    name: str
    order: str  # LBNHC, LBHNC, LHBNC, BLNHC, BLHNC or BHLNC
    num_blocks: int
    block_tokens: int
    size_bytes: int
    layers: tuple[Layer, ...]
    groups: tuple[Group, ...]
    usable_blocks: tuple[int, ...] | None = None

    @property
    def blocks(self) -> tuple[int, ...]:
        """Block ids that a campaign may use."""
        return self.usable_blocks if self.usable_blocks is not None else tuple(range(self.num_blocks))

    @property
    def formats(self) -> tuple[str, ...]:
        """The distinct KV formats, in order of first use."""
        return tuple(dict.fromkeys(layer.kv_format for layer in self.layers))

    def group_layers(self, group: int) -> tuple[int, ...]:
        """Positions in ``layers`` of the layers of ``group``."""
        return tuple(i for i, layer in enumerate(self.layers) if layer.group == group)

    def host_slot_bytes(self) -> int:
        """Bytes of one host slot: every page of one block, each rounded up to 16 (plug-in contract, rule 4).

        With several groups, the largest group decides, since a slot holds one group's block.
        """
        return max(
            sum(
                -(-layer.page_bytes // 16) * 16 + -(-layer.padding_bytes // 16) * 16
                for layer in self.layers
                if layer.group == g.index
            )
            for g in self.groups
        )
