"""LMCache's TurboQuant serde: the blob it writes to L2 for one object, ``[2, layers, tokens, heads * head_size]``.

Source: LMCache 0.5.6 ``lmcache/v1/distributed/serde/turboquant/turboquant.py``. The blob is, with no header::

    raw first layers   [2, skip_first, tokens, hidden]                        the source dtype
    compressed         [layers between, blocks, block_tokens, heads, slot]    uint8, TurboQuant slots
    raw last layers    [2, skip_last, tokens, hidden]                         the source dtype

Slots are those of :mod:`kvverify.codecs.turboquant`, but keys are multiplied by random signs before the rotation, drawn
for the layer's number inside the object; so slots of vLLM and of this serde are not interchangeable, though of equal
size (k8v4 slots are: it rotates nothing). Nothing in the blob tells preset, head size, dtype or version: another
configuration of the same size decodes without a word, except where a slot's own promises break
(``TurboQuantCodec.invalid``).

Slots behind the last token are uninitialised memory in LMCache; here they are zeros. Compare ``valid_bytes`` only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, as_float32
from kvverify.codecs.floats import bf16_bytes, bf16_floats
from kvverify.codecs.turboquant import PRESETS, TurboQuantCodec
from kvverify.errors import CodecError, nearest

ELEMENT_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
SERDE_PRESETS = tuple(name for name in PRESETS if not name.endswith("_soa"))


@dataclass(frozen=True)
class LmcacheTurboQuant:
    """The serde's configuration; ``dtype`` (bf16, fp16 or fp32) is that of the engine's cache."""

    preset: str = "turboquant_k8v4"
    head_size: int = 128
    block_tokens: int = 16
    skip_first: int = 2
    skip_last: int = 2
    dtype: str = "bf16"

    def __post_init__(self) -> None:
        if self.preset not in SERDE_PRESETS:
            raise CodecError(f"LMCache's serde has no preset {self.preset!r}; {nearest(self.preset, SERDE_PRESETS)}")
        if self.dtype not in ELEMENT_BYTES:
            raise CodecError(f"LMCache's serde: dtype {self.dtype!r}; {nearest(self.dtype, ELEMENT_BYTES)}")
        if self.block_tokens < 1 or self.skip_first < 0 or self.skip_last < 0:
            raise CodecError(
                f"LMCache's serde: block of {self.block_tokens} tokens, {self.skip_first} and {self.skip_last} raw layers; "
                f"expected at least 1 token and no negative counts"
            )
        if self.head_size & (self.head_size - 1):
            raise CodecError(f"LMCache's serde: head size {self.head_size}; expected a power of two, also for k8v4")
        self.layer_codec(0)  # raises LayoutError

    def layer_codec(self, layer: int) -> TurboQuantCodec:
        """Return the codec of the slots of a layer, by its number inside the object; overflow is stored as the kernel does."""
        return TurboQuantCodec(self.preset, self.head_size, signs_layer=layer, strict=False)

    def compressed_layers(self, layers: int) -> range:
        """Return the numbers of the layers between the raw ones."""
        first = min(self.skip_first, layers)
        return range(first, max(first, layers - self.skip_last))

    def blob_bytes(self, layers: int, tokens: int, heads: int) -> int:
        """Return the size of the blob, which is also LMCache's estimate."""
        return self._parts(layers, tokens, heads)[-1]

    def encode(self, kv: Any) -> Bytes:
        """Return the blob, uint8 [bytes], of K and V [2, layers, tokens, heads * head_size].

        Raises:
            CodecError: first dimension not 2 (vLLM's fused views have 1), hidden size no multiple of the head size,
            numbers.
        """
        array, layers, tokens, heads = self._checked(kv)
        first, compressed, last, size = self._parts(layers, tokens, heads)
        blob = np.zeros(size, np.uint8)
        quantised = self.compressed_layers(layers)
        blob[:first] = self._raw(array[:, : quantised.start])
        blob[last:] = self._raw(array[:, quantised.stop :])
        slots = blob[first:last].reshape(compressed)
        for place, layer in enumerate(quantised):
            k, v = (array[i, layer].reshape(tokens, heads, self.head_size) for i in range(2))
            rows = slots[place].reshape(-1, *compressed[3:])
            rows[:tokens] = self.layer_codec(layer).encode(k, v)
        return blob

    def decode(self, blob: Any, *, layers: int, tokens: int, heads: int, check: bool = True) -> Floats:
        """Return K and V, float32 [2, layers, tokens, heads * head_size], rounded to ``dtype`` as the destination holds them.

        Raises:
            CodecError: a blob of another size, or slots this preset never writes.
        """
        first, compressed, last, size = self._parts(layers, tokens, heads)
        raw = np.asarray(blob)
        if raw.dtype != np.uint8 or raw.size != size:
            raise CodecError(
                f"LMCache's serde, {self.preset} at head size {self.head_size}: the blob is {raw.size} elements of {raw.dtype}; "
                f"expected {size} bytes for {layers} layers, {tokens} tokens, {heads} heads in {self.dtype}"
            )
        raw = np.ascontiguousarray(raw).reshape(-1)
        out = np.empty((2, layers, tokens, heads * self.head_size), np.float32)
        quantised = self.compressed_layers(layers)
        out[:, : quantised.start] = self._unraw(raw[:first]).reshape(out[:, : quantised.start].shape)
        out[:, quantised.stop :] = self._unraw(raw[last:]).reshape(out[:, quantised.stop :].shape)
        slots = raw[first:last].reshape(compressed)
        for place, layer in enumerate(quantised):
            rows = slots[place].reshape(-1, *compressed[3:])[:tokens]
            for i, numbers in enumerate(self.layer_codec(layer).decode(rows, check=check)):
                half = numbers.astype(np.float16).astype(np.float32)
                out[i, layer] = self._rounded(half).reshape(tokens, -1)
        return out

    def valid_bytes(self, layers: int, tokens: int, heads: int) -> Bools:
        """Return which bytes of the blob mean something, bool [bytes]: all but the slots behind the last token."""
        first, compressed, last, size = self._parts(layers, tokens, heads)
        valid = np.ones(size, np.bool_)
        slots = valid[first:last].reshape(compressed[0], compressed[1] * compressed[2], -1)
        slots[:, tokens:] = False
        return valid

    def _parts(self, layers: int, tokens: int, heads: int) -> tuple[int, tuple[int, int, int, int, int], int, int]:
        """Return bytes of the first raw part, shape of the compressed one, where the last raw part starts, and the end."""
        quantised = self.compressed_layers(layers)
        layer = 2 * tokens * heads * self.head_size * ELEMENT_BYTES[self.dtype]
        slot = self.layer_codec(0).bytes_per_token_and_head
        shape = (len(quantised), -(-tokens // self.block_tokens), self.block_tokens, heads, slot)
        first = quantised.start * layer
        last = first + int(np.prod(shape))
        return first, shape, last, last + (layers - quantised.stop) * layer

    def _checked(self, kv: Any) -> tuple[Floats, int, int, int]:
        shape = tuple(getattr(kv, "shape", ()))
        if len(shape) != 4 or shape[0] != 2 or shape[3] % self.head_size or 0 in shape:
            raise CodecError(
                f"LMCache's serde: K and V have shape {list(shape)}; expected [2, layers, tokens, heads * {self.head_size}] "
                f"(it cannot serve fused views, whose first dimension is 1)"
            )
        flat = as_float32(kv.reshape(2 * shape[1], shape[2], shape[3]), "K and V", shape[3])
        return flat.reshape(shape), shape[1], shape[2], shape[3] // self.head_size

    def _raw(self, x: Floats) -> Bytes:
        x = np.ascontiguousarray(x)
        if self.dtype == "bf16":
            return bf16_bytes(x).reshape(-1)
        return np.ascontiguousarray(x.astype("<f2" if self.dtype == "fp16" else "<f4")).view(np.uint8).reshape(-1)

    def _unraw(self, data: Bytes) -> Floats:
        if self.dtype == "bf16":
            return bf16_floats(data)
        return data.view("<f2" if self.dtype == "fp16" else "<f4").astype(np.float32)

    def _rounded(self, x: Floats) -> Floats:
        return bf16_floats(bf16_bytes(x)) if self.dtype == "bf16" else x  # fp16 already
