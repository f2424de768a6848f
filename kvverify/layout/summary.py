"""What a layout costs: bytes per token and head, page sizes, tokens per GiB, ratio to a cache that is all bf16."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from kvverify.layout.expand import expand
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.recipe import Recipe
from kvverify.layout.row import LayerSpec

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class FormatSummary:
    """The layers of one format and shape. ``bytes_per_token_head`` counts K and V; 0 for states, which no token adds to."""

    kv_format: str
    layers: int
    heads: int
    head_size: int
    block_tokens: int
    bytes_per_token_head: int
    page_bytes: int
    padding_bytes: int


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """One block table: its layers by number and the bytes of one of its blocks, padding included."""

    index: int
    kind: str
    block_tokens: int
    layers: tuple[int, ...]
    block_bytes: int


@dataclass(frozen=True, slots=True)
class Summary:
    """Sizes of one rank's cache.

    ``bytes_per_token`` is the content that one token adds over all layers (a window that slides keeps it only for a while);
    ``bf16_bytes_per_token`` the same with every layer in bf16, ``ratio_to_bf16`` their quotient. ``tokens_per_gib`` counts
    padding too.
    """

    name: str
    order: str
    block_tokens: int
    kernel_block_tokens: int
    layers: int
    formats: tuple[FormatSummary, ...]
    groups: tuple[GroupSummary, ...]
    bytes_per_token: int
    bf16_bytes_per_token: int
    ratio_to_bf16: float | None
    tokens_per_gib: int | None
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return the summary as a JSON object; the ratio has two decimals."""
        data = asdict(self)
        if self.ratio_to_bf16 is not None:
            data["ratio_to_bf16"] = round(self.ratio_to_bf16, 2)
        return data


def summarise(recipe: Recipe) -> Summary:
    """Return the sizes of ``recipe``.

    Raises:
        LayoutError: the recipe cannot be placed.
    """
    layout = place(recipe)
    tokens = [spec for spec in expand(recipe) if spec.kv_format != "mamba_state"]
    content = sum(_token_bytes(spec) for spec in tokens)
    plain = sum(_bf16_bytes(spec) for spec in tokens)
    occupied = _occupied_bytes_per_token(layout)
    return Summary(
        name=layout.name,
        order=layout.order,
        block_tokens=layout.block_tokens,
        kernel_block_tokens=recipe.kernel_block_tokens or layout.block_tokens,
        layers=len(layout.layers),
        formats=_formats(recipe, layout),
        groups=_groups(layout),
        bytes_per_token=content,
        bf16_bytes_per_token=plain,
        ratio_to_bf16=plain / content if content else None,
        tokens_per_gib=int(GIB / occupied) if occupied else None,
        size_bytes=layout.size_bytes,
    )


def _token_bytes(spec: LayerSpec) -> int:
    return spec.cell_bytes * spec.heads


def _bf16_bytes(spec: LayerSpec) -> int:
    """One token of the layer in bf16; records of MLA and the indexer hold one vector, not K and V."""
    vectors = 1 if spec.format.one_head else 2
    return vectors * 2 * spec.head_size * spec.heads


def _occupied_bytes_per_token(layout: Layout) -> float:
    """Return the bytes one token takes over all layers, padding included, states not."""
    return sum(
        (layer.page_bytes + layer.padding_bytes) / layout.groups[layer.group].block_tokens
        for layer in layout.layers
        if layer.kv_format != "mamba_state"
    )


def _formats(recipe: Recipe, layout: Layout) -> tuple[FormatSummary, ...]:
    found: dict[tuple[object, ...], list[FormatSummary]] = {}
    for spec, layer in zip(expand(recipe), layout.layers, strict=True):
        one = FormatSummary(
            spec.kv_format,
            1,
            spec.heads,
            spec.head_size,
            spec.block_tokens,
            0 if spec.kv_format == "mamba_state" else spec.cell_bytes,
            layer.page_bytes,
            layer.padding_bytes,
        )
        found.setdefault(spec.shape_key, []).append(one)
    return tuple(_merged(same) for same in found.values())


def _merged(same: list[FormatSummary]) -> FormatSummary:
    values = asdict(same[-1])  # the last layer of a block may carry its tail
    values.update(layers=len(same), padding_bytes=min(s.padding_bytes for s in same))
    return FormatSummary(**values)


def _groups(layout: Layout) -> tuple[GroupSummary, ...]:
    result = []
    for group in layout.groups:
        layers = [layout.layers[i] for i in layout.group_layers(group.index)]
        block_bytes = sum(layer.page_bytes + layer.padding_bytes for layer in layers)
        numbers = tuple(layer.index for layer in layers)
        result.append(GroupSummary(group.index, group.kind, group.block_tokens, numbers, block_bytes))
    return tuple(result)
