"""Where the slots of one block lie in its page: numerics apart, bytes moved only.

The places come from :mod:`kvverify.layout.row`: cells one after another in token-major (NHC) or head-major (HNC) order,
or vLLM's structure of arrays on gfx950 (the ``..._soa`` formats: data of all cells first, then norms, scales and minima
in arrays over the tokens).

The SoA presets store another norm (see :mod:`kvverify.codecs.turboquant`): an AoS slot put into a SoA page keeps the
right size and the wrong norm. Encode with the ``_soa`` codec instead; dividing a stored fp16 norm rounds twice and is
not byte-exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvverify.codecs.arrays import Bytes, as_slots
from kvverify.codecs.interface import SlotCodec
from kvverify.errors import CodecError
from kvverify.layout.placement import Field
from kvverify.layout.row import LayerSpec, content_fields, dense_strides


def page_of(codec: SlotCodec, slots: Any, *, order: str = "LBNHC") -> Bytes:
    """Return the page of one block, uint8 [page bytes], from its slots, uint8 [block tokens, heads, slot bytes].

    Raises:
        CodecError: slots that are not this codec's.
    """
    raw = as_slots(slots, codec.bytes_per_token_and_head, f"{codec.name} at head size {codec.head_size}")
    tokens, heads, _ = raw.shape
    page = np.zeros(raw.size, np.uint8)
    for field, where in _fields(codec, tokens, heads, order):
        _view(page, field)[:] = raw[:, :, where].transpose(1, 0, 2)
    return page


def slots_of(codec: SlotCodec, page: Any, *, tokens: int, heads: int, order: str = "LBNHC") -> Bytes:
    """Return the slots, uint8 [tokens, heads, slot bytes], of one block's page.

    Raises:
        CodecError: a page that is truncated, over-long or not uint8.
    """
    expected = tokens * heads * codec.bytes_per_token_and_head
    array = np.asarray(page)
    if array.dtype != np.uint8 or array.size != expected:
        raise CodecError(
            f"{codec.name} at head size {codec.head_size}: the page is {array.size} elements of {array.dtype}; expected "
            f"{tokens} tokens x {heads} heads x {codec.bytes_per_token_and_head} = {expected} bytes"
        )
    flat = np.ascontiguousarray(array).reshape(-1)
    slots = np.empty((tokens, heads, codec.bytes_per_token_and_head), np.uint8)
    for field, where in _fields(codec, tokens, heads, order):
        slots[:, :, where] = _view(flat, field).transpose(1, 0, 2)
    return slots


def _fields(codec: SlotCodec, tokens: int, heads: int, order: str) -> list[tuple[Field, slice]]:
    spec = LayerSpec(0, 0, codec.name, heads, codec.head_size, "fused", tokens, tokens)
    slices = codec.slices
    return [(field, slices[field.name]) for field in content_fields(spec, dense_strides(spec, order))]


def _view(page: Bytes, field: Field) -> Bytes:
    """Return a view [heads, tokens, length] of one field's bytes in a page."""
    shape, strides = (field.heads, field.tokens, field.length), (field.head_stride, field.token_stride, 1)
    return np.lib.stride_tricks.as_strided(page[field.offset :], shape, strides)
