"""KIVI: keys asymmetric per channel over groups of tokens, values per token over groups of channels, recent tokens unquantised.

Source: arXiv 2402.02750 (section 3, algorithm 1): scale = (max - min) / (2^bits - 1), q = round((x - min) / scale), x'
= q * scale + min. Scale and minimum are stored as fp16. KIVI's own kernels do this arithmetic in half precision; here
it is float32 with the *stored* scale and minimum, so that the codes are the best for what will be read. No
byte-exactness against KIVI's kernels is claimed.

A token's bytes depend on its neighbours: a group of keys is quantised when its residual window is full. So KIVI encodes
sequences only.

Bound: half a stored scale, plus what the fp16 rounding of minimum and scale cuts off at the two ends: (2^bits - 1)
times that of the scale, plus that of the minimum; residual tokens: half the spacing of the model's dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from kvverify.codecs.arrays import Bytes, Floats, pair
from kvverify.codecs.floats import BF16, FP16, Grid, bf16_bytes, bf16_floats
from kvverify.codecs.interface import Codec, Encoded, Pair, require_own
from kvverify.codecs.packing import float_bytes, floats_of, pack, unpack
from kvverify.errors import CodecError
from kvverify.layout.sequences import KiviGeometry

FP16_LIMIT = 65520.0


@dataclass(frozen=True)
class KiviCodec(Codec):
    """KIVI with ``bits`` (2 or 4), ``group`` tokens or channels a scale, ``residual`` tokens in ``residual_dtype`` (bf16 or fp16).

    Not idempotent: scales are computed anew from decoded numbers.
    """

    bits: int = 2
    group: int = 32
    residual: int = 128
    residual_dtype: str = "bf16"

    def __post_init__(self) -> None:
        self._geometry(1, 1)  # raises LayoutError
        if self.residual_dtype not in ("bf16", "fp16"):
            raise CodecError(f"{self.name}: residual_dtype {self.residual_dtype!r}; expected bf16 or fp16")

    def encode_sequence(self, k: Any, v: Any) -> Encoded:
        """Encode one layer's sequence; see :class:`kvverify.layout.sequences.KiviGeometry` for the planes."""
        keys, values = pair(k, v, self.head_size)
        tokens, heads, _ = keys.shape
        planes = {plane.name: np.empty(plane.shape, np.uint8) for plane in self._geometry(tokens, heads).planes()}
        for head in range(heads):  # a head at a time bounds the temporaries; all planes begin with the heads
            for name, data in self._head_planes(keys[:, head : head + 1], values[:, head : head + 1]).items():
                planes[name][head] = data.reshape(planes[name].shape[1:])
        return Encoded(self.name, tokens, heads, self.head_size, planes)

    def _head_planes(self, keys: Floats, values: Floats) -> dict[str, Bytes]:
        """Return the planes of one head, K and V [tokens, 1, head_size]."""
        geometry = self._geometry(len(keys), 1)
        key_codes, key_scale, key_low = self._quantise(self._key_groups(keys, geometry), "K")
        value_codes, value_scale, value_low = self._quantise(self._value_groups(values, geometry), "V")
        return {
            "k": pack(key_codes.reshape(self.head_size, geometry.key_tokens), self.bits),
            "k_scale": float_bytes(key_scale[..., 0], "<f2"),
            "k_min": float_bytes(key_low[..., 0], "<f2"),
            "k_residual": self._halves(keys[geometry.key_tokens :, 0], "K"),
            "v": pack(value_codes.reshape(geometry.value_tokens, self.head_size), self.bits),
            "v_scale": float_bytes(value_scale[..., 0], "<f2"),
            "v_min": float_bytes(value_low[..., 0], "<f2"),
            "v_residual": self._halves(values[geometry.value_tokens :, 0], "V"),
        }

    def decode_sequence(self, encoded: Encoded) -> Pair:
        """Return K and V."""
        geometry = self._geometry(encoded.tokens, encoded.heads)
        require_own(self, encoded, {plane.name: plane.shape for plane in geometry.planes()})
        out = Pair(*(np.empty((encoded.tokens, encoded.heads, self.head_size), np.float32) for _ in range(2)))
        keys = self._numbers(encoded, "k", geometry.key_tokens)  # [heads, channels, tokens]
        out.k[: geometry.key_tokens] = keys.transpose(2, 0, 1)
        out.v[: geometry.value_tokens] = self._numbers(encoded, "v", self.head_size).transpose(1, 0, 2)
        out.k[geometry.key_tokens :] = self._unhalved(encoded.planes["k_residual"]).transpose(1, 0, 2)
        out.v[geometry.value_tokens :] = self._unhalved(encoded.planes["v_residual"]).transpose(1, 0, 2)
        return out

    def step(self, k: Any, v: Any) -> Pair:
        """Return each group's scale; for residual tokens the spacing of their dtype."""
        return self._per_element(k, v, lambda groups, _, scale: np.broadcast_to(scale, groups.shape), 1.0)

    def bound(self, k: Any, v: Any) -> Pair:
        """Return the module's bound."""

        def miss(groups: Floats, low: Floats, scale: Floats) -> Floats:
            top = np.float32((1 << self.bits) - 1)
            cut = np.maximum(np.maximum(low - groups, groups - (low + top * scale)), 0)
            # float32: the quotient and the two operations of decoding
            slack = (np.abs(groups) + np.abs(low)) * np.float32(2.0**-21) + scale * np.float32(2.0**-20)
            return np.asarray(scale * np.float32(0.5) + cut + slack, np.float32)

        return self._per_element(k, v, miss, 0.5)

    def _geometry(self, tokens: int, heads: int) -> KiviGeometry:
        return KiviGeometry(tokens, heads, self.head_size, self.bits, self.group, self.residual)

    @property
    def _grid(self) -> Grid:
        return BF16 if self.residual_dtype == "bf16" else FP16

    def _key_groups(self, k: Floats, geometry: KiviGeometry) -> Floats:
        """Return quantised keys as [heads, channels, groups, tokens of a group]."""
        keys = np.ascontiguousarray(k[: geometry.key_tokens].transpose(1, 2, 0))
        return keys.reshape(geometry.heads, self.head_size, geometry.key_tokens // self.group, self.group)

    def _value_groups(self, v: Floats, geometry: KiviGeometry) -> Floats:
        """Return quantised values as [heads, tokens, groups, channels of a group]."""
        values = np.ascontiguousarray(v[: geometry.value_tokens].transpose(1, 0, 2))
        return values.reshape(geometry.heads, geometry.value_tokens, self.head_size // self.group, self.group)

    def _quantise(self, groups: Floats, what: str) -> tuple[Bytes, Floats, Floats]:
        low, scale = self._range(groups, what)
        safe = np.where(scale > 0, scale, np.float32(1))
        codes = np.clip(np.rint((groups - low) / safe), 0, (1 << self.bits) - 1)
        return np.where(scale > 0, codes, 0).astype(np.uint8), scale, low

    def _range(self, groups: Floats, what: str) -> tuple[Floats, Floats]:
        """Return minimum and scale as they are stored: fp16 numbers [..., 1]."""
        if groups.size == 0:
            empty = np.empty((*groups.shape[:-1], 1), np.float32)
            return empty, empty
        low = groups.min(-1, keepdims=True)
        scale = (groups.max(-1, keepdims=True) - low) / np.float32((1 << self.bits) - 1)
        largest = max(float(np.abs(low).max()), float(scale.max()))
        if largest >= FP16_LIMIT:
            raise CodecError(
                f"{self.name}: a minimum or scale of {what} is {largest:g}; its fp16 field holds at most 65504"
            )
        return low.astype(np.float16).astype(np.float32), scale.astype(np.float16).astype(np.float32)

    def _numbers(self, encoded: Encoded, name: str, count: int) -> Floats:
        codes = unpack(encoded.planes[name], self.bits, count)
        scale, low = (floats_of(encoded.planes[f"{name}_{part}"], "<f2")[..., None] for part in ("scale", "min"))
        groups = (
            codes.reshape(*codes.shape[:-1], -1, self.group)
            if codes.size
            else np.empty((*scale.shape[:-1], self.group))
        )
        return np.asarray(groups.astype(np.float32) * scale + low, np.float32).reshape(codes.shape)

    def _halves(self, x: Floats, what: str) -> Bytes:
        x = np.ascontiguousarray(x)
        if self.residual_dtype == "bf16":
            return bf16_bytes(x)
        if x.size and np.abs(x).max() >= FP16_LIMIT:
            raise CodecError(f"{self.name}: {what} holds {np.abs(x).max():g}; an fp16 residual holds at most 65504")
        return np.ascontiguousarray(x.astype("<f2")).view(np.uint8)

    def _unhalved(self, data: Bytes) -> Floats:
        if self.residual_dtype == "bf16":
            return bf16_floats(data)
        return np.ascontiguousarray(data).view("<f2").astype(np.float32)

    def _per_element(self, k: Any, v: Any, measure: Any, residual_factor: float) -> Pair:
        """Return a measure of each group, and ``residual_factor`` times the spacing for residual tokens, at each element."""
        keys, values = pair(k, v, self.head_size)
        geometry = self._geometry(*keys.shape[:2])
        factor = np.float32(residual_factor)
        out = Pair(self._grid.spacing(keys) * factor, self._grid.spacing(values) * factor)
        groups = self._key_groups(keys, geometry)
        if groups.size:
            found = measure(groups, *self._range(groups, "K"))
            out.k[: geometry.key_tokens] = found.reshape(*groups.shape[:2], -1).transpose(2, 0, 1)
        groups = self._value_groups(values, geometry)
        if groups.size:
            found = measure(groups, *self._range(groups, "V"))
            out.v[: geometry.value_tokens] = found.reshape(*groups.shape[:2], -1).transpose(1, 0, 2)
        return out
