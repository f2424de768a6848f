"""From a recipe to the position of every byte.

The arithmetic follows vLLM 0.32: one flat buffer, regions of layers with the same shape in order of first use
(``v1/core/kv_cache_utils.py``), six orders of the axes L (layer), B (block), N (token), H (head), C (content)
(``v1/kv_cache_layout.py``), groups that start at the same byte and overlay each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvverify.errors import LayoutError
from kvverify.layout.expand import check_recipe, expand
from kvverify.layout.naming import layout_name
from kvverify.layout.placement import Field, Group, Layer, Layout
from kvverify.layout.recipe import Recipe
from kvverify.layout.row import (
    LayerSpec,
    Strides,
    content_fields,
    dense_strides,
    tail_field,
    view_shape,
    view_strides,
)


@dataclass(frozen=True, slots=True)
class _Spot:
    """Where a layer lies: first byte, bytes between blocks, padding bytes at the end of a block, strides inside a row.

    With ``kv_block``, ``block_stride`` and ``tail`` are those of one plane.
    """

    offset: int
    block_stride: int
    tail: int
    strides: Strides


@dataclass(frozen=True, slots=True)
class _Placed:
    spots: dict[int, _Spot]  # by layer index
    end: int


def place(recipe: Recipe) -> Layout:
    """Return the layout that ``recipe`` describes.

    Raises:
        LayoutError: the recipe cannot exist; the message says what, where, and what to change.
    """
    check_recipe(recipe)
    specs = expand(recipe)
    if recipe.order in ("LHBNC", "BHLNC"):
        placed = _place_heads_outside(recipe, specs)
    elif recipe.order.startswith("B"):
        placed = _place_blocks_outside(recipe, specs)
    elif len(recipe.groups) > 1:
        placed = _place_overlaid_layers(recipe, specs)
    else:
        placed = _place_regions(recipe, specs)
    return Layout(
        name=layout_name(recipe),
        order=recipe.order,
        num_blocks=recipe.num_blocks,
        block_tokens=recipe.block_tokens,
        size_bytes=placed.end,
        layers=tuple(_layer(spec, placed.spots[spec.index]) for spec in specs),
        groups=tuple(
            Group(i, group.kind, group.block_tokens or recipe.block_tokens) for i, group in enumerate(recipe.groups)
        ),
        usable_blocks=recipe.usable_blocks,
    )


def _padded(bytes_: int, recipe: Recipe) -> int:
    step = recipe.block_stride_alignment
    return -(-(bytes_ + recipe.page_padding) // step) * step


def _regions(specs: list[LayerSpec]) -> list[list[LayerSpec]]:
    """Return the layers of equal shape together, in order of first use."""
    regions: dict[tuple[object, ...], list[LayerSpec]] = {}
    for spec in specs:
        regions.setdefault(spec.shape_key, []).append(spec)
    return list(regions.values())


def _compact_spot(spec: LayerSpec, recipe: Recipe, offset: int, stride: int) -> _Spot:
    """Return the spot of a layer whose blocks follow each other, ``stride`` bytes apart (K and V planes together)."""
    if spec.split != "kv_block":
        return _Spot(offset, stride, stride - spec.page_bytes, dense_strides(spec, recipe.order))
    half = stride // 2
    plane = recipe.num_blocks * half
    return _Spot(offset, half, half - spec.page_bytes // 2, dense_strides(spec, recipe.order, plane))


def _own_stride(spec: LayerSpec, recipe: Recipe) -> int:
    if spec.split == "kv_block":
        return 2 * _padded(spec.page_bytes // 2, recipe)
    return _padded(spec.page_bytes, recipe)


def _place_regions(recipe: Recipe, specs: list[LayerSpec]) -> _Placed:
    """LBNHC and LBHNC, one group: region after region, in each layer after layer."""
    spots: dict[int, _Spot] = {}
    offset = end = recipe.storage_offset
    for region in _regions(specs):
        for spec in region:
            stride = _own_stride(spec, recipe)
            spots[spec.index] = _compact_spot(spec, recipe, offset, stride)
            offset += recipe.num_blocks * stride
        end = offset
        offset += recipe.region_gap
    return _Placed(spots, end)


def _place_overlaid_layers(recipe: Recipe, specs: list[LayerSpec]) -> _Placed:
    """LBNHC and LBHNC, several groups: the i-th layer of each group shares bytes, all pages are as large as the largest."""
    stride = max(_own_stride(spec, recipe) for spec in specs)
    spots: dict[int, _Spot] = {}
    places = 0
    for group in range(len(recipe.groups)):
        ordered = [spec for region in _regions([s for s in specs if s.group == group]) for spec in region]
        for position, spec in enumerate(ordered):
            if spec.split == "kv_block" and _own_stride(spec, recipe) != stride:
                raise LayoutError(
                    f"layer {spec.index}: split 'kv_block' with a page of {spec.page_bytes} bytes in groups whose largest "
                    f"page is {stride}; the K plane and the V plane cannot be padded together, use 'block_kv' or 'fused'"
                )
            offset = recipe.storage_offset + position * recipe.num_blocks * stride
            spots[spec.index] = _compact_spot(spec, recipe, offset, stride)
        places = max(places, len(ordered))
    return _Placed(spots, recipe.storage_offset + places * recipe.num_blocks * stride)


def _place_blocks_outside(recipe: Recipe, specs: list[LayerSpec]) -> _Placed:
    """BLNHC and BLHNC: inside a block the pages of all layers, region after region; each group packs from the block's start."""
    ordered = {
        group: [spec for region in _regions([s for s in specs if s.group == group]) for spec in region]
        for group in range(len(recipe.groups))
    }
    used = {group: sum(s.page_bytes + recipe.page_padding for s in layers) for group, layers in ordered.items()}
    step = recipe.block_stride_alignment
    stride = -(-max(used.values()) // step) * step
    spots: dict[int, _Spot] = {}
    for group, layers in ordered.items():
        offset = recipe.storage_offset
        for spec in layers:
            # what is left of the block belongs to the group's last layer
            tail = recipe.page_padding + (stride - used[group] if spec is layers[-1] else 0)
            spots[spec.index] = _Spot(offset, stride, tail, dense_strides(spec, recipe.order))
            offset += spec.page_bytes + recipe.page_padding
    return _Placed(spots, recipe.storage_offset + recipe.num_blocks * stride)


def _place_heads_outside(recipe: Recipe, specs: list[LayerSpec]) -> _Placed:
    """LHBNC and BHLNC: the heads of one block are not adjacent, so all layers must have the same shape."""
    first = specs[0]
    run = first.row_tokens * first.slot_bytes  # one head of one block
    counts = [sum(s.group == g for s in specs) for g in range(len(recipe.groups))]
    layers = max(counts)
    page = run * first.head_slots
    if recipe.order == "LHBNC":
        layer_stride, block_stride, head_stride = recipe.num_blocks * page, run, recipe.num_blocks * run
        size = layers * layer_stride
    else:
        layer_stride, head_stride = run, layers * run
        block_stride = layers * page
        size = recipe.num_blocks * block_stride
    strides = Strides(head=head_stride, token=first.slot_bytes)
    spots: dict[int, _Spot] = {}
    position = [0] * len(recipe.groups)
    for spec in specs:
        offset = recipe.storage_offset + position[spec.group] * layer_stride
        spots[spec.index] = _Spot(offset, block_stride, 0, strides)
        position[spec.group] += 1
    return _Placed(spots, recipe.storage_offset + size)


def _layer(spec: LayerSpec, spot: _Spot) -> Layer:
    split_kernel = spec.rows_per_block > 1
    content = spec.page_bytes // 2 if spec.split == "kv_block" else spec.page_bytes
    if split_kernel and spot.block_stride != content:
        raise LayoutError(
            f"layer {spec.index}: a block of {spec.block_tokens} tokens cannot be split into kernel blocks of "
            f"{spec.row_tokens}, since it is not one dense page (block stride {spot.block_stride}, page {content}); "
            f"use order LBNHC or LBHNC without padding, or kernel_block_tokens={spec.block_tokens}"
        )
    fields: tuple[Field, ...] = content_fields(spec, spot.strides)
    if spot.tail:
        planes = 2 if spec.split == "kv_block" else 1
        fields = (*fields, tail_field(content, spot.tail, planes, spot.strides.plane))
    layer = Layer(
        index=spec.index,
        name=f"layers.{spec.index}",
        group=spec.group,
        kv_format=spec.kv_format,
        element=spec.format.element,
        element_bytes=spec.format.element_bytes,
        offset=spot.offset,
        row_stride=spot.block_stride // spec.rows_per_block,
        rows_per_block=spec.rows_per_block,
        shape=view_shape(spec),
        strides=view_strides(spec, spot.strides),
        fields=fields,
        aliases=spec.aliases,
    )
    _refuse_misaligned(layer)
    return layer


def _refuse_misaligned(layer: Layer) -> None:
    size = layer.element_bytes
    for what, value in (("offset", layer.offset), ("row stride", layer.row_stride), ("strides", min(layer.strides))):
        odd = any(s % size for s in layer.strides) if what == "strides" else value % size
        if odd:
            raise LayoutError(
                f"layer {layer.index} ({layer.kv_format}): {what} {value} is not a multiple of its element size {size}; "
                f"change storage_offset, region_gap, page_padding or block_stride_alignment"
            )
