"""Registering a layout with LMCache as vLLM's connector does: layer groups, and what LMCache says it cannot represent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from kvverify.kernels.lmcache_library import Library
    from kvverify.layout.placement import Layer, Layout

_MOST_WORDS = 240  # characters of LMCache's own words that a refusal quotes
_ENDLESS_WINDOW = 1 << 40  # tokens; wider than any request, so that nothing is ever skipped for it


@dataclass(frozen=True, slots=True)
class Registration:
    """LMCache's own view of the layers: normalised tensors, one format a layer, kernel groups in object groups."""

    tensors: Sequence[torch.Tensor]
    hints: dict[str, str]
    infos: list[Any]  # EngineGroupInfo, one a kernel group
    manager: Any  # KVLayerGroupsManager


def register(lib: Library, layout: Layout, views: Sequence[torch.Tensor], blocks_per_slot: int) -> Registration:
    """Let LMCache detect formats and groups of ``views`` (one a layer).

    Every block table becomes an object group of its own, since a host slot holds the block of one group. LMCache makes one
    object group for each width of sliding window, so every further block table gets an endless window of its own width.

    Raises:
        ValueError, NotImplementedError: LMCache cannot represent the layout; its own words.
    """
    hints = {"kv_layout": lib.vllm_order(layout.order)}
    by_group = [list(layout.group_layers(g.index)) for g in layout.groups]
    tensors, formats = lib.connector.normalize_and_discover_per_layer_formats(list(views), by_group, lib.vllm, hints)
    engine_groups = [layer.group for layer in layout.layers]
    infos = [
        lib.group_info(
            engine_group_id=identity.engine_group_idx,
            layer_indices=tuple(indices),
            tokens_per_block=layout.groups[identity.engine_group_idx].block_tokens,
            sw_size_tokens=_ENDLESS_WINDOW * identity.engine_group_idx or -1,
        )
        for identity, indices in lib.groups.group_layers_by_identity(tensors, formats, engine_groups)
    ]
    manager = lib.groups.KVLayerGroupsManager(
        tensors,
        engine_kv_formats=formats,
        engine_group_infos=infos,
        lmcache_tokens_per_chunk=chunk_tokens(layout, blocks_per_slot),
        separate_object_groups=True,
    )
    return Registration(tensors, hints, infos, manager)


def chunk_tokens(layout: Layout, blocks_per_slot: int) -> int:
    """Tokens of the LMCache chunk that holds ``blocks_per_slot`` blocks."""
    return blocks_per_slot * layout.groups[0].block_tokens


def unsupported(
    lib: Library, layout: Layout, blocks_per_slot: int, limits: Callable[[Registration], str | None]
) -> str | None:
    """Return why LMCache does not take ``layout``, in its own words at the end, or None.

    ``limits`` says what the path in question documents beyond what LMCache checks when layers are registered.
    """
    sizes = {g.block_tokens for g in layout.groups}
    if len(sizes) > 1:
        return f"groups with {sorted(sizes)} tokens a block share a chunk, so one slot would hold a different number of blocks"
    split = [layer for layer in layout.layers if layer.rows_per_block > 1]
    if split:
        return (
            f"kernel blocks ({split[0].rows_per_block} rows a block): LMCache takes one row for one block id; its vLLM "
            f"connector views the tensor anew before registering, for Mamba hybrids only (kv_cache_group_edits.py)"
        )
    try:
        registration = register(lib, layout, [_meta_view(x, layout.num_blocks) for x in layout.layers], blocks_per_slot)
    except (ValueError, NotImplementedError) as error:
        return f"LMCache refuses it at registration: {_short(str(error))}"
    except RuntimeError:
        return None  # it stumbles rather than refuses; prepare meets the same error, and that is a finding
    return limits(registration)


def known_defect(layout: Layout) -> str | None:
    """Return what LMCache 0.5.6 was found to do wrong with ``layout`` although it takes it, or None.

    It tells [K/V, block] from [block, K/V] by which dimension is 2, one answer for all layers of a shape.
    """
    split = [layer for layer in layout.layers if len(layer.shape) == 4 and layer.shape[0] == 2]
    block_first = [layer for layer in split if layer.row_stride > layer.strides[0]]
    if block_first and layout.num_blocks == 2:
        return "[2 blocks, K/V, ...] is read as [K/V, 2 blocks, ...]: wrong bytes"
    by_shape: dict[tuple[int, ...], set[bool]] = {}
    for layer in split:
        by_shape.setdefault(layer.shape, set()).add(layer.row_stride > layer.strides[0])
    if any(len(kinds) > 1 for kinds in by_shape.values()):
        return "[K/V, block] and [block, K/V] layers of one shape are read alike: wrong bytes"
    if layout.num_blocks == 1 and any(layer.row_stride > layer.page_bytes for layer in layout.layers):
        return "one block with a stride beyond its page becomes a shape of no blocks: registration raises RuntimeError"
    return None


def _short(text: str) -> str:
    line = text.splitlines()[0]
    return line if len(line) <= _MOST_WORDS else f"{line[:_MOST_WORDS].rsplit(' ', 1)[0]} ..."


def refused_by_fallback(registration: Registration) -> str | None:
    """Return why the fallback cannot serve it, or None.

    The torch fallback builds its tensors from bare pointers and says that it then needs tight blocks.
    """
    for group in registration.manager.kernel_groups:
        desc = group.shape_desc
        tight = desc.bs * desc.nh * desc.hs
        if desc.block_stride_elems not in (0, tight):
            return (
                f"a block stride of {desc.block_stride_elems} elements for {tight} of content: LMCache's torch fallback says "
                f"that non-tight per-block strides are not supported (mp_mem_kernels.py)"
            )
    return None


def _meta_view(layer: Layer, num_blocks: int) -> torch.Tensor:
    """Return the layer's view without memory, for LMCache's own detection."""
    size = layer.element_bytes
    return torch.empty(0, dtype=getattr(torch, layer.element), device="meta").as_strided(
        (num_blocks * layer.rows_per_block, *layer.shape),
        (layer.row_stride // size, *(stride // size for stride in layer.strides)),
    )
