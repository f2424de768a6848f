"""TurboQuant: rotated keys on a Lloyd-Max grid with a norm, values uniform with scale and minimum.

Source (formulas and byte order, vLLM 0.32): ``attention/ops/triton_turboquant_store.py``, ``attention/ops/
triton_turboquant_decode.py`` (``_tq_full_dequant_kv``), ``model_executor/layers/quantization/turboquant/``; for the
norm of the structure-of-arrays variant ``attention/ops/turboquant_soa/triton_turboquant_store.py``.

Encode, for one token and head, in float32:

* key (kb = 3 or 4 bits): n = |k|, y = (k / (n + 1e-8)) R, index = number of midpoints <= y; stored: indices, fp16(n). R
  is Sylvester's Hadamard matrix / sqrt(D), as a float32 matrix product (its summation order decides indices within
  float32 error of a midpoint). The SoA variants of norm-corrected presets store fp16(n / |c|), c being the vector of
  chosen centroids.
* key of k8v4: fp8 E4M3, saturated, no scale.
* value (vb bits): s = max((max - min) / (2^vb - 1), 1e-8), q = clip(trunc((v - min) / s + 0.5)); stored: q, fp16(s),
  fp16(min).

Decode: k = fp16(fp16(n) c / sqrt(sum c^2 + 1e-16)) R^T, v = fp16(q fp16(s) + fp16(min)).

Bound. Let y be the rotated unit key, b_j the largest distance from y_j to the centroid of its cell: for an inner cell
the larger distance to its two edges, for the outer ones |y_j| - |c_outer| if that is larger (a spike of one coordinate
is far outside). Then with c = y + e, |e_j| <= b_j, each coordinate of the rotated-back difference is at most |b|_1 /
sqrt(D), since all entries of R are +-1/sqrt(D). The norm correction adds c (1/|c| - 1), of length | 1 - |c| |. Both
ends being unit vectors the whole is at most 2. So each |error| <= n min(2, |b|_1 / sqrt(D) + | 1 - |c| |), which is
loose: the signs of e would have to follow a row of R. The length of the error vector is at most n min(2, |b|_2 + | 1 -
|c| |), and that is sharp to a small factor (``vector_bound``). To both come |fp16(n) - n| and the fp16 rounding of the
result, each 2^-11 relative or 2^-25 absolute. Value: s/2, plus (2^vb - 1) times the fp16 rounding of s, plus that of
min, plus that of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, as_slots, every
from kvverify.codecs.floats import E4M3, fp8_bytes, fp8_finite, fp8_floats
from kvverify.codecs.interface import Pair, SlotCodec
from kvverify.codecs.levels import Levels, rms
from kvverify.codecs.lloyd_max import centroids, midpoints, midpoints_from_double
from kvverify.codecs.packing import float_bytes, floats_of, pack, unpack
from kvverify.codecs.rotation import hadamard, lmcache_signs
from kvverify.errors import CodecError

FP16_LIMIT = 65520.0  # from here on fp16 rounds to infinity
EPSILON = np.float32(1e-8)


@dataclass(frozen=True, slots=True)
class Preset:
    """Bits of keys (8: fp8, no norm) and values, and whether decoding divides by the length of the centroid vector."""

    key_bits: int
    value_bits: int
    norm_correction: bool
    folded_norm: bool = False  # SoA: the length is divided out when encoding


PRESETS = {
    "turboquant_k8v4": Preset(8, 4, norm_correction=False),
    "turboquant_4bit_nc": Preset(4, 4, norm_correction=True),
    "turboquant_k3v4_nc": Preset(3, 4, norm_correction=True),
    "turboquant_3bit_nc": Preset(3, 3, norm_correction=True),
}
PRESETS |= {
    f"{name}_soa": Preset(p.key_bits, p.value_bits, p.norm_correction, folded_norm=p.norm_correction)
    for name, p in PRESETS.items()
}


@dataclass(frozen=True)
class TurboQuantCodec(SlotCodec):
    """One TurboQuant preset.

    ``signs_layer``: None for vLLM, which uses no random signs; else the layer's number inside the object whose signs
    LMCache's serde puts before the rotation. ``strict``: refuse norms, scales and minima that overflow fp16; without it
    they are stored as infinity, as the kernels do.

    Not idempotent: the rotation back and forth, the fp16 rounding of scale and minimum and of the results move them.
    The fp8 key bytes of k8v4 are: every E4M3 number is an fp16 number and rounds to itself.
    """

    signs_layer: int | None = None
    strict: bool = True

    idempotent: ClassVar[bool] = False

    @property
    def preset(self) -> Preset:
        """Bits and norm handling."""
        return PRESETS[self.name]

    @property
    def centroids(self) -> Floats:
        """The key's centroids in rising order, float32 [2^key bits]; empty for fp8 keys."""
        bits = self.preset.key_bits
        return np.empty(0, np.float32) if bits == 8 else centroids(self.head_size, bits)

    @property
    def midpoints(self) -> Floats:
        """The key's decision points, float32 [2^key bits - 1]; empty for fp8 keys."""
        bits = self.preset.key_bits
        if bits == 8:
            return np.empty(0, np.float32)
        return (midpoints if self.signs_layer is None else midpoints_from_double)(self.head_size, bits)

    @property
    def rotation(self) -> Floats:
        """R, float32 [head_size, head_size]: keys are multiplied from the right; diag(signs) R where there are signs."""
        matrix = hadamard(self.head_size)
        if self.signs_layer is None:
            return matrix
        return np.ascontiguousarray(lmcache_signs(self.head_size, self.signs_layer)[:, None] * matrix)

    @property
    def _levels(self) -> Levels:
        return Levels(self.centroids, self.midpoints)

    def decode_rotated(self, slots: Any) -> Pair:
        """Return what vLLM's dequantisation kernel writes: fp16 numbers (as float32), K still in the rotated basis."""
        raw = as_slots(slots, self.bytes_per_token_and_head, self._owner(slots))
        fields = {name: raw[:, :, where] for name, where in self.slices.items()}
        return Pair(self._rotated_keys(fields), self._values(fields))

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        return self._encode_keys(k, first_token) | self._encode_values(v, first_token)

    def _encode_keys(self, k: Floats, first_token: int) -> dict[str, Bytes]:
        if self.preset.key_bits == 8:
            return {"k": fp8_bytes(k, E4M3)}
        norm = lengths(k)
        index = np.searchsorted(self.midpoints, self._unit_rotated(k, norm), side="right").astype(np.uint8)
        if self.preset.folded_norm:
            norm = norm / self._centroid_lengths(self.centroids[index])
        self._refuse_overflow(norm, "the norm of K", first_token)
        return {"k": pack(index, self.preset.key_bits), "k_norm": float_bytes(norm[..., 0], "<f2")}

    def _encode_values(self, v: Floats, first_token: int) -> dict[str, Bytes]:
        top = (1 << self.preset.value_bits) - 1
        low, scale = value_range(v, top)
        index = np.clip(np.trunc((v - low) / scale + np.float32(0.5)), 0, top)
        self._refuse_overflow(scale, "the scale of V", first_token)
        self._refuse_overflow(low, "the minimum of V", first_token)
        return {
            "v": pack(index, self.preset.value_bits),
            "v_scale": float_bytes(scale[..., 0], "<f2"),
            "v_min": float_bytes(low[..., 0], "<f2"),
        }

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        keys = self._rotated_keys(fields)
        if self.preset.key_bits != 8:
            keys = keys @ np.ascontiguousarray(self.rotation.T)
        return keys, self._values(fields)

    def _rotated_keys(self, fields: Mapping[str, Bytes]) -> Floats:
        if self.preset.key_bits == 8:
            return fp8_floats(fields["k"], E4M3)
        chosen = self.centroids[unpack(fields["k"], self.preset.key_bits, self.head_size)]
        if self.preset.norm_correction and not self.preset.folded_norm:
            chosen = chosen * (np.float32(1) / self._centroid_lengths(chosen))
        return _half(floats_of(fields["k_norm"], "<f2")[..., None] * chosen)

    def _values(self, fields: Mapping[str, Bytes]) -> Floats:
        index = unpack(fields["v"], self.preset.value_bits, self.head_size).astype(np.float32)
        scale, low = (floats_of(fields[name], "<f2")[..., None] for name in ("v_scale", "v_min"))
        return _half(index * scale + low)

    def _unit_rotated(self, k: Floats, norm: Floats) -> Floats:
        unit = k / (norm + EPSILON)
        return (unit.reshape(-1, self.head_size) @ self.rotation).reshape(k.shape)

    @staticmethod
    def _centroid_lengths(chosen: Floats) -> Floats:
        return np.asarray(np.sqrt((chosen * chosen).sum(-1, keepdims=True) + np.float32(1e-16)), np.float32)

    def _refuse_overflow(self, x: Floats, what: str, first_token: int) -> None:
        over = np.abs(x) >= FP16_LIMIT
        if self.strict and over.any():
            token, head = (int(i[0]) for i in np.nonzero(over)[:2])
            raise CodecError(
                f"{self.name}: {what} is {x[token, head, 0]:g} at token {first_token + token}, head {head}; its fp16 field holds "
                f"at most 65504 and the engines store infinity: keep such a layer in bf16 (strict=False encodes it as they do)"
            )

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return broken promises: finite fp16 fields, no negative norm or scale, and every V row uses its lowest and highest index.

        The last one tells most foreign bytes apart (another preset of the same size, another head size, swapped V
        nibbles do not show). K indices promise nothing: 4-bit AoS bytes with SoA norms, or with LMCache's signs, decode
        without a word.
        """
        index = unpack(fields["v"], self.preset.value_bits, self.head_size)
        scale, low = floats_of(fields["v_scale"], "<f2"), floats_of(fields["v_min"], "<f2")
        written = fields["v_scale"].any(-1) | index.any(-1) | fields["v_min"].any(-1)  # a zeroed slot was never written
        top = (1 << self.preset.value_bits) - 1
        broken = {
            "V scale negative or NaN": ~(scale >= 0),
            "V minimum NaN": np.isnan(low),
            "no V index is 0": written & (index.min(-1) != 0),
            f"no V index is {top}": written & (scale >= 2.0**-14) & (index.max(-1) != top),
        }
        if self.strict:
            broken |= {"V scale infinite": np.isinf(scale), "V minimum infinite": np.isinf(low)}
        if self.preset.key_bits == 8:
            broken["K holds NaN"] = ~every(fp8_finite(fields["k"], E4M3))
        else:
            norm = floats_of(fields["k_norm"], "<f2")
            broken["K norm negative or NaN"] = ~(norm >= 0)
            if self.strict:
                broken["K norm infinite"] = np.isinf(norm)
        return broken

    def _step(self, k: Floats, v: Floats) -> Pair:
        """Return n times the root mean square of the cell widths at y for K, s for V."""
        _, scale = value_range(v, (1 << self.preset.value_bits) - 1)
        if self.preset.key_bits == 8:
            return Pair(E4M3.spacing(k), np.broadcast_to(scale, v.shape))
        norm = lengths(k)
        step = norm * rms(self._levels.width(self._unit_rotated(k, norm)))
        return Pair(np.broadcast_to(step, k.shape), np.broadcast_to(scale, v.shape))

    def _bound(self, k: Floats, v: Floats) -> Pair:
        top = (1 << self.preset.value_bits) - 1
        low, scale = value_range(v, top)
        exact = scale * np.float32(0.5 + 2.0**-15)  # float32 error of (v - min) / s, at most 2^-19 of an index near 15
        value = exact + top * _half_error(scale) + _half_error(low)
        return Pair(self._key_bound(k), value + _half_error(np.abs(v) + value))

    def _key_bound(self, k: Floats) -> Floats:
        if self.preset.key_bits == 8:
            return E4M3.rounding_bound(k)
        norm, miss, shift, rounding = self._key_miss(k)
        along = miss.sum(-1, keepdims=True) / np.float32(self.head_size**0.5)
        return np.broadcast_to(norm * np.minimum(along + shift, 2) + rounding, k.shape)

    def _vector_bound(self, k: Floats, v: Floats) -> Pair:
        if self.preset.key_bits == 8:
            return super()._vector_bound(k, v)
        norm, miss, shift, rounding = self._key_miss(k)
        value = lengths(self._bound(k, v).v)
        return Pair(norm * np.minimum(lengths(miss) + shift, 2) + rounding * np.float32(self.head_size**0.5), value)

    def _key_miss(self, k: Floats) -> tuple[Floats, Floats, Floats, Floats]:
        """Return norm, b of each rotated coordinate, what the norm correction adds, and the rounding; the last absolute."""
        norm = lengths(k)
        rotated = self._unit_rotated(k, norm)
        short = np.maximum(norm / (norm + EPSILON), np.float32(2.0**-24))  # |y|: below 1 for tiny keys
        miss = (self._levels.reach(rotated) + np.float32(1e-6)) / short  # float32 error of the rotation
        chosen = self.centroids[np.searchsorted(self.midpoints, rotated, side="right")]
        shift = np.abs(1 - self._centroid_lengths(chosen) / short)
        rounding = _half_error(norm) * 2 + np.float32(self.head_size**0.5 * 2.0**-25) + norm * np.float32(2.0**-18)
        return norm, miss, np.asarray(shift, np.float32), np.asarray(rounding, np.float32)


def lengths(x: Floats) -> Floats:
    """Return the Euclidean length over the last axis, float32 [..., 1]."""
    with np.errstate(over="ignore"):
        return np.asarray(np.sqrt((x * x).sum(-1, keepdims=True)), np.float32)


def value_range(v: Floats, top: int) -> tuple[Floats, Floats]:
    """Return minimum and scale of each row, float32 [..., 1]: scale = max((max - min) / top, 1e-8)."""
    low = v.min(-1, keepdims=True)
    with np.errstate(over="ignore"):
        return low, np.maximum((v.max(-1, keepdims=True) - low) / np.float32(top), EPSILON)


def _half(x: Floats) -> Floats:
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).astype(np.float32)


def _half_error(x: Floats) -> Floats:
    """Return the largest error of rounding ``x`` to fp16: half a step, 2^-11 relative, at least 2^-25."""
    return np.asarray(np.maximum(np.abs(x) * np.float32(2.0**-11), np.float32(2.0**-25)), np.float32)
