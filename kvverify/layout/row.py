"""One row of one layer: the view's inner shape and strides, and the fields that own its bytes.

A row is a block, or a kernel block where a block is split. Everything here is relative to the start of the row.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kvverify.layout.formats import Arrangement, Part, SlotFormat, slot_format
from kvverify.layout.placement import Field, Role

ORDERS = ("LBNHC", "LBHNC", "LHBNC", "BLNHC", "BLHNC", "BHLNC")
SPLITS = ("fused", "block_kv", "kv_block")


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer that owns a tensor. ``block_tokens`` and ``row_tokens`` are 1 for a state."""

    index: int
    group: int
    kv_format: str
    heads: int
    head_size: int
    split: str
    block_tokens: int
    row_tokens: int
    aliases: tuple[str, ...] = ()

    @property
    def format(self) -> SlotFormat:
        """The slot format."""
        return slot_format(self.kv_format)

    @property
    def shape_key(self) -> tuple[str, int, int, str, int]:
        """Layers with the same key share a region."""
        return (self.kv_format, self.heads, self.head_size, self.split, self.block_tokens)

    @property
    def head_slots(self) -> int:
        """Entries of the view's head dimension: K and V of nvfp4 are heads of their own."""
        return 2 * self.heads if self.format.arrangement is Arrangement.PLANES else self.heads

    @property
    def cell_bytes(self) -> int:
        """Bytes of one (token, KV head), K and V together."""
        return self.format.cell_bytes(self.heads, self.head_size)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one entry (head, token) of the fused view."""
        return self.cell_bytes * self.heads // self.head_slots

    @property
    def page_bytes(self) -> int:
        """Content bytes of one block."""
        return self.cell_bytes * self.heads * self.block_tokens

    @property
    def row_bytes(self) -> int:
        """Content bytes of one row."""
        return self.cell_bytes * self.heads * self.row_tokens

    @property
    def rows_per_block(self) -> int:
        """Kernel blocks in a block."""
        return self.block_tokens // self.row_tokens


@dataclass(frozen=True, slots=True)
class Strides:
    """Byte strides inside a row; ``plane`` is the distance from K to V where they are split."""

    head: int
    token: int
    plane: int = 0


def dense_strides(spec: LayerSpec, order: str, plane: int | None = None) -> Strides:
    """Return the strides of a row that is one dense page (two dense planes where K and V are split)."""
    cell = spec.slot_bytes if spec.split == "fused" else spec.slot_bytes // 2
    plane_bytes = spec.row_bytes // 2 if plane is None else plane
    if order.endswith("NHC"):
        return Strides(head=cell, token=spec.head_slots * cell, plane=plane_bytes)
    return Strides(head=spec.row_tokens * cell, token=cell, plane=plane_bytes)


def view_shape(spec: LayerSpec) -> tuple[int, ...]:
    """Return the view's shape without the row dimension, in elements."""
    size = spec.format.element_bytes
    if spec.split == "fused":
        return (spec.head_slots, spec.row_tokens, spec.slot_bytes // size)
    return (2, spec.heads, spec.row_tokens, spec.slot_bytes // 2 // size)


def view_strides(spec: LayerSpec, strides: Strides) -> tuple[int, ...]:
    """Return the view's byte strides without the row dimension."""
    inner = (strides.head, strides.token, spec.format.element_bytes)
    return inner if spec.split == "fused" else (strides.plane, *inner)


def content_fields(spec: LayerSpec, strides: Strides) -> tuple[Field, ...]:
    """Return the fields that own the content bytes of one row."""
    parts = spec.format.parts(spec.heads, spec.head_size)
    match spec.format.arrangement:
        case Arrangement.SOA:
            return _soa_fields(spec, parts)
        case Arrangement.ROWS_THEN_SCALES:
            return _segregated_fields(spec, parts)
        case Arrangement.PLANES:
            return _plane_fields(spec, parts, strides.head > strides.token)
        case _:
            return _cell_fields(spec, parts, strides)


def tail_field(offset: int, length: int, planes: int = 1, plane_stride: int = 0) -> Field:
    """Return the padding after the content of a row; with split planes, after each."""
    return Field("padding", Role.PADDING, offset, length, planes, plane_stride or length, 1, length)


def _cell_fields(spec: LayerSpec, parts: Iterable[Part], strides: Strides) -> tuple[Field, ...]:
    fields = []
    offset = 0
    for part in parts:
        if spec.split != "fused":  # the format has two parts, K and V
            offset = 0 if part.name == "k" else strides.plane
        fields.append(
            Field(
                part.name,
                part.role,
                offset,
                part.length,
                spec.heads,
                strides.head,
                spec.row_tokens,
                strides.token,
            )
        )
        offset += part.length
    return tuple(fields)


def _soa_fields(spec: LayerSpec, parts: tuple[Part, ...]) -> tuple[Field, ...]:
    """[N, H, data] at 0, then fp16 [H, F, N] (vLLM ``attention/ops/turboquant_soa``)."""
    heads, tokens = spec.heads, spec.row_tokens
    data = [p for p in parts if p.role is Role.DATA]
    scales = [p for p in parts if p.role is Role.SCALE]
    width = sum(p.length for p in data)
    fields: dict[str, Field] = {}
    offset = 0
    for part in data:
        fields[part.name] = Field(part.name, part.role, offset, part.length, heads, width, tokens, heads * width)
        offset += part.length
    offset = tokens * heads * width
    for part in scales:
        head_stride = len(scales) * tokens * part.length
        fields[part.name] = Field(part.name, part.role, offset, part.length, heads, head_stride, tokens, part.length)
        offset += tokens * part.length
    return tuple(fields[p.name] for p in parts)


def _segregated_fields(spec: LayerSpec, parts: tuple[Part, ...]) -> tuple[Field, ...]:
    """[N, data] at 0, then [N, scales]; one head."""
    fields: list[Field] = []
    start = 0
    for role in (Role.DATA, Role.SCALE):
        chosen = [p for p in parts if p.role is role]
        width = sum(p.length for p in chosen)
        offset = start
        for part in chosen:
            fields.append(Field(part.name, part.role, offset, part.length, 1, width, spec.row_tokens, width))
            offset += part.length
        start += width * spec.row_tokens
    return tuple(fields)


def _plane_fields(spec: LayerSpec, parts: tuple[Part, ...], head_outer: bool) -> tuple[Field, ...]:
    """[K data][K scales][V data][V scales], each dense over all (head, token) in the view's order."""
    heads, tokens = spec.heads, spec.row_tokens
    fields: list[Field] = []
    offset = 0
    for part in parts:
        steps = (tokens * part.length, part.length) if head_outer else (part.length, heads * part.length)
        fields.append(Field(part.name, part.role, offset, part.length, heads, steps[0], tokens, steps[1]))
        offset += heads * tokens * part.length
    return tuple(fields)
