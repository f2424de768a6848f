"""Index arithmetic of a layout: from a block to its byte runs, and from a byte back to its owner.

Plain integers from :mod:`kvverify.layout.placement`; tests hold it against torch's strides, the product never uses them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvverify.layout.placement import Field, Layer, Layout, Role

Run = tuple[int, int]  # start relative to the block of the layer, length, in bytes
Positions = npt.NDArray[np.int64]


@functools.lru_cache(maxsize=4096)
def _row_runs(fields: tuple[Field, ...], padding: bool) -> tuple[Run, ...]:
    cells = [
        (f.offset + h * f.head_stride + n * f.token_stride, f.length)
        for f in fields
        if (f.role is Role.PADDING) is padding and f.length
        for h in range(f.heads)
        for n in range(f.tokens)
    ]
    return join_runs(cells)


def join_runs(cells: list[Run]) -> tuple[Run, ...]:
    """Sort runs and join those that touch.

    Raises:
        ValueError: two runs overlap, so a byte would have two owners.
    """
    joined: list[list[int]] = []
    for start, length in sorted(cells):
        if joined and start < joined[-1][0] + joined[-1][1]:
            raise ValueError(f"bytes {start} to {joined[-1][0] + joined[-1][1] - 1} have two owners")
        if joined and start == joined[-1][0] + joined[-1][1]:
            joined[-1][1] += length
        else:
            joined.append([start, length])
    return tuple((start, length) for start, length in joined)


@functools.lru_cache(maxsize=4096)
def _block_runs(fields: tuple[Field, ...], row_stride: int, rows_per_block: int, padding: bool) -> tuple[Run, ...]:
    runs = _row_runs(fields, padding)
    return join_runs([(r * row_stride + start, length) for r in range(rows_per_block) for start, length in runs])


def content_runs(layer: Layer) -> tuple[Run, ...]:
    """The content bytes of one block of ``layer`` as contiguous runs."""
    return _block_runs(layer.fields, layer.row_stride, layer.rows_per_block, False)


def padding_runs(layer: Layer) -> tuple[Run, ...]:
    """The padding bytes that belong to one block of ``layer``."""
    return _block_runs(layer.fields, layer.row_stride, layer.rows_per_block, True)


@functools.lru_cache(maxsize=4096)
def _scale_positions(fields: tuple[Field, ...], row_stride: int, rows_per_block: int) -> tuple[Positions, ...]:
    scales = [
        r * row_stride + f.offset + h * f.head_stride + n * f.token_stride + j
        for r in range(rows_per_block)
        for f in fields
        if f.role is Role.SCALE
        for h in range(f.heads)
        for n in range(f.tokens)
        for j in range(f.length)
    ]
    found = np.sort(np.asarray(scales, np.int64))
    runs = _block_runs(fields, row_stride, rows_per_block, False)
    return tuple(found[(found >= start) & (found < start + length)] - start for start, length in runs)


def scale_positions(layer: Layer) -> tuple[Positions, ...]:
    """For each content run the positions, relative to the run, of bytes that belong to scales, norms and minima."""
    return _scale_positions(layer.fields, layer.row_stride, layer.rows_per_block)


def block_start(layer: Layer, block: int) -> int:
    """First byte of ``block``'s first row, from the start of the engine's buffer."""
    return layer.offset + block * layer.block_stride


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose byte it is. ``token`` counts inside the whole block, ``byte`` inside the field."""

    layer: int  # position in Layout.layers
    block: int
    head: int
    token: int
    field: str
    byte: int
    cell_byte: int  # byte inside the (head, token) cell as stored: the field's bytes in the order of the layer's fields


def locate(layout: Layout, position: int, group_of_block: dict[int, int] | None = None) -> Owner | None:
    """Return the owner of the byte at ``position`` of the engine's buffer, None for gaps.

    Where groups overlay the same bytes, ``group_of_block`` decides; blocks it does not name belong to the first that fits.
    """
    for number, layer in enumerate(layout.layers):
        for fld, start_of_field in zip(layer.fields, _field_starts(layer), strict=True):
            found = _inside(layout, layer, fld, position)
            if found is None:
                continue
            row, head, token, byte = found
            block = row // layer.rows_per_block
            if group_of_block is not None and group_of_block.get(block, layer.group) != layer.group:
                continue
            in_block = (row % layer.rows_per_block) * fld.tokens + token
            return Owner(number, block, head, in_block, fld.name, byte, start_of_field + byte)
    return None


def position_of(layout: Layout, owner: Owner) -> int:
    """Inverse of :func:`locate`."""
    layer = layout.layers[owner.layer]
    fld = next(f for f in layer.fields if f.name == owner.field)
    row, token = divmod(owner.token, fld.tokens)
    return (
        block_start(layer, owner.block)
        + row * layer.row_stride
        + fld.offset
        + owner.head * fld.head_stride
        + token * fld.token_stride
        + owner.byte
    )


@functools.lru_cache(maxsize=4096)
def _starts(fields: tuple[Field, ...]) -> tuple[int, ...]:
    starts, total = [], 0
    for fld in fields:
        starts.append(total)
        total += fld.length
    return tuple(starts)


def _field_starts(layer: Layer) -> tuple[int, ...]:
    return _starts(layer.fields)


def _inside(layout: Layout, layer: Layer, fld: Field, position: int) -> tuple[int, int, int, int] | None:
    # Strides of every placement are nested (each at least the extent of the smaller ones), so dividing by the largest first
    # is exact; a remainder beyond the field's length means another field or a gap.
    rest = position - layer.offset - fld.offset
    index = {"row": 0, "head": 0, "token": 0}
    extents = (
        ("row", layer.row_stride, layout.num_blocks * layer.rows_per_block),
        ("head", fld.head_stride, fld.heads),
        ("token", fld.token_stride, fld.tokens),
    )
    for name, stride, count in sorted(extents, key=lambda e: -e[1]):
        if count > 1:
            index[name] = min(rest // stride, count - 1)
            rest -= index[name] * stride
    if rest < 0 or rest >= fld.length or min(index.values()) < 0:
        return None
    return index["row"], index["head"], index["token"], rest


@dataclass(frozen=True, slots=True)
class Spans:
    """Content runs of equal length over the layers of one group: start = offsets[i] + block * strides[i] in the buffer.

    ``scales`` are the positions inside such a run that belong to scales; runs are put together only where these agree.
    """

    length: int
    offsets: Positions  # int64 [n]
    strides: Positions  # int64 [n]
    scales: Positions

    def starts(self, blocks: Positions) -> Positions:
        """Positions in the buffer of the runs of ``blocks``: int64 [n * blocks], runs of one layer beside each other."""
        found: Positions = (self.offsets[:, None] + self.strides[:, None] * blocks).reshape(-1)
        return found


def group_spans(layout: Layout, group: int) -> tuple[Spans, ...]:
    """All content runs of ``group``, put together by length, so that one vector operation serves many layers."""
    sorted_runs: dict[tuple[int, bytes], list[tuple[int, int]]] = {}
    scales_of: dict[tuple[int, bytes], Positions] = {}
    for number in layout.group_layers(group):
        layer = layout.layers[number]
        for (start, length), scales in zip(content_runs(layer), scale_positions(layer), strict=True):
            key = (length, scales.tobytes())
            scales_of[key] = scales
            sorted_runs.setdefault(key, []).append((layer.offset + start, layer.block_stride))
    found = []
    for key, runs in sorted_runs.items():
        offsets, strides = np.asarray(runs, np.int64).T.copy()
        found.append(Spans(key[0], offsets, strides, scales_of[key]))
    return tuple(found)
