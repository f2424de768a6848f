"""A KVQuant-style format for *cached* keys: non-uniform levels, per-channel keys, per-token values, outliers kept apart.

Source of the ideas: arXiv 2401.18079 (KVQuant). This is a variant under its own name, ``kvquant_cached``, for two
reasons. KVQuant quantises keys *before* RoPE, where channels keep their magnitude over all tokens; a KV cache holds
keys after RoPE, in which each pair of channels turns with the position, and the un-rotated ones are gone. And KVQuant
derives its levels from a calibration set weighted by the loss's sensitivity; here they are the one-dimensional k-means
of the very numbers that are encoded.

A vector is one channel over all tokens (K) or one token over all channels (V), of one head. Its ``outliers`` share that
lies farthest from its mean is stored exactly (as fp16); the rest is mapped to z = (x - min) / scale with scale = max -
min, both fp16, and the code is the nearest of 2^bits levels (fp16), which all vectors of K, or of V, share. Value = min
+ level * scale.

Bound: the reach of the cell of z, times the scale: z, levels and edges are those stored, so that their rounding is part
of z. An outlier errs by its fp16 rounding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Bools, Bytes, Floats, pair
from kvverify.codecs.floats import FP16
from kvverify.codecs.interface import Codec, Encoded, Pair, require_own
from kvverify.codecs.levels import Levels
from kvverify.codecs.packing import float_bytes, floats_of, pack, unpack
from kvverify.errors import CodecError
from kvverify.layout.sequences import NonUniformGeometry

ROUNDS, SAMPLE = 40, 1 << 16
_NO_LEVELS = Levels(np.empty(0, np.float32), np.empty(0, np.float32))


@dataclass(frozen=True, slots=True, eq=False)
class _Vectors:
    """One of K and V as vectors [heads, vectors, n]: range, levels and which elements are outliers."""

    x: Floats
    low: Floats  # [heads, vectors, 1], an fp16 number
    scale: Floats  # the same
    outlier_at: NDArray[np.int64]  # [heads, vectors, m], rising
    levels: Levels

    def head(self, index: int) -> _Vectors:
        """Return the vectors of one head, [vectors, n]."""
        return _Vectors(self.x[index], self.low[index], self.scale[index], self.outlier_at[index], self.levels)

    @property
    def position(self) -> Floats:
        """Return z of each element; 0 where the vector has no extent."""
        return self._positions(self.x)

    def sampled(self, every: int) -> Floats:
        """Return z of every n-th element of each vector, outliers left out, float32 [count]."""
        return self._positions(self.x[..., ::every])[~self.is_outlier[..., ::every]]

    def _positions(self, x: Floats) -> Floats:
        safe = np.where(self.scale > 0, self.scale, np.float32(1))
        return np.asarray((x - self.low) / safe, np.float32)

    @property
    def is_outlier(self) -> Bools:
        """Return which elements are stored apart."""
        mask = np.zeros(self.x.shape, np.bool_)
        np.put_along_axis(mask, self.outlier_at, values=True, axis=-1)
        return mask


@dataclass(frozen=True)
class NonUniformCodec(Codec):
    """``kvquant_cached`` with ``bits`` (2, 3 or 4) and the share of ``outliers`` of each vector, rounded up.

    Not idempotent: decoded numbers have other means, hence other outliers and levels.
    """

    bits: int = 4
    outliers: float = 0.01

    def __post_init__(self) -> None:
        self._geometry(1, 1)  # raises LayoutError

    def encode_sequence(self, k: Any, v: Any) -> Encoded:
        """Encode one layer's sequence; see :class:`kvverify.layout.sequences.NonUniformGeometry` for the planes."""
        keys, values = pair(k, v, self.head_size)
        tokens, heads, _ = keys.shape
        geometry = self._geometry(tokens, heads)
        planes: dict[str, Bytes] = {}
        for name, vectors_of, x, index in (("k", self._keys, keys, "<u4"), ("v", self._values, values, "<u2")):
            vectors = vectors_of(x)
            planes[name] = np.stack([self._packed_codes(vectors.head(h)) for h in range(heads)])
            planes[f"{name}_range"] = float_bytes(np.concatenate([vectors.low, vectors.scale], -1), "<f2")
            at = np.ascontiguousarray(vectors.outlier_at.astype(index))
            planes[f"{name}_outlier_at"] = at[..., None].view(np.uint8)
            planes[f"{name}_outlier"] = float_bytes(np.take_along_axis(vectors.x, vectors.outlier_at, -1), "<f2")
            planes[f"{name}_levels"] = float_bytes(vectors.levels.levels, "<f2")
        shaped = {plane.name: planes[plane.name].reshape(plane.shape) for plane in geometry.planes()}
        return Encoded(self.name, tokens, heads, self.head_size, shaped)

    def decode_sequence(self, encoded: Encoded) -> Pair:
        """Return K and V.

        Raises:
            CodecError: foreign planes, or an outlier outside its vector.
        """
        geometry = self._geometry(encoded.tokens, encoded.heads)
        require_own(self, encoded, {plane.name: plane.shape for plane in geometry.planes()})
        keys = self._numbers(encoded, "k", "<u4", encoded.tokens).transpose(2, 0, 1)
        values = self._numbers(encoded, "v", "<u2", self.head_size).transpose(1, 0, 2)
        return Pair(np.ascontiguousarray(keys), np.ascontiguousarray(values))

    def step(self, k: Any, v: Any) -> Pair:
        """Return the width of each element's cell; for an outlier the fp16 spacing."""
        return self._per_element(k, v, lambda s: s.levels.width(s.position) * s.scale, FP16.spacing)

    def bound(self, k: Any, v: Any) -> Pair:
        """Return the module's bound."""

        def reach(s: _Vectors) -> Floats:
            flat = np.where(s.scale > 0, s.levels.reach(s.position) * s.scale, np.abs(s.x - s.low))
            return np.asarray(flat + (np.abs(s.x) + np.abs(s.low) + s.scale) * np.float32(2.0**-20), np.float32)

        return self._per_element(k, v, reach, FP16.rounding_bound)

    def _packed_codes(self, vectors: _Vectors) -> Bytes:
        codes = np.searchsorted(vectors.levels.edges, vectors.position).astype(np.uint8)
        codes[vectors.is_outlier] = 0
        return pack(codes, self.bits)

    def _geometry(self, tokens: int, heads: int) -> NonUniformGeometry:
        return NonUniformGeometry(tokens, heads, self.head_size, self.bits, self.outliers)

    def _keys(self, k: Floats) -> _Vectors:
        return self._vectors(np.ascontiguousarray(k.transpose(1, 2, 0)), self._geometry(*k.shape[:2]).key_outliers, "K")

    def _values(self, v: Floats) -> _Vectors:
        return self._vectors(
            np.ascontiguousarray(v.transpose(1, 0, 2)), self._geometry(*v.shape[:2]).value_outliers, "V"
        )

    def _vectors(self, x: Floats, outliers: int, what: str) -> _Vectors:
        if np.abs(x).max() >= FP16.largest + 16:
            raise CodecError(
                f"{self.name}: {what} holds {np.abs(x).max():g}; outliers and ranges are fp16, at most 65504"
            )
        parts = [_range_and_outliers(head, outliers) for head in x]  # a head at a time bounds the temporaries
        low, scale = np.stack([part[0] for part in parts]), np.stack([part[1] for part in parts])
        at = np.stack([part[2] for part in parts])
        vectors = _Vectors(x, low, scale, at, _NO_LEVELS)
        thin = max(1, min(x.shape[-1], x.size // SAMPLE))
        inside = np.concatenate([vectors.head(h).sampled(thin) for h in range(len(x))])
        return replace(vectors, levels=_levels(inside if inside.size else np.zeros(1, np.float32), self.bits))

    def _numbers(self, encoded: Encoded, name: str, index: str, count: int) -> Floats:
        planes = encoded.planes
        levels = floats_of(planes[f"{name}_levels"], "<f2")
        low, scale = (floats_of(planes[f"{name}_range"], "<f2")[..., i, None] for i in range(2))
        x = low + levels[unpack(planes[name], self.bits, count)] * scale
        at = np.ascontiguousarray(planes[f"{name}_outlier_at"]).view(index)[..., 0].astype(np.int64)
        if at.size and at.max() >= count:
            raise CodecError(
                f"{self.name}: plane {name}_outlier_at points to {at.max()}; vectors have {count} elements"
            )
        np.put_along_axis(x, at, floats_of(planes[f"{name}_outlier"], "<f2"), axis=-1)
        return np.asarray(x, np.float32)

    def _per_element(self, k: Any, v: Any, inside: Any, outlier: Any) -> Pair:
        keys, values = pair(k, v, self.head_size)
        found = []
        for vectors, back in ((self._keys(keys), (2, 0, 1)), (self._values(values), (1, 0, 2))):
            measured = np.where(vectors.is_outlier, outlier(vectors.x), inside(vectors))
            found.append(np.ascontiguousarray(measured.transpose(back), dtype=np.float32))
        return Pair(*found)


def _range_and_outliers(x: Floats, outliers: int) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Return minimum and scale as stored (fp16 numbers [vectors, 1]) and the outliers' places [vectors, m] of vectors [vectors, n]."""
    count = x.shape[-1]
    mean = x.mean(-1, keepdims=True)
    if outliers:
        at = np.argpartition(np.abs(x - mean), max(0, count - outliers - 1), axis=-1)[:, count - outliers :]
        at = np.sort(at, axis=-1).astype(np.int64)
    else:
        at = np.empty((len(x), 0), np.int64)
    inner = np.ones(x.shape, np.bool_)
    np.put_along_axis(inner, at, values=False, axis=-1)
    least = x.min(-1, keepdims=True, where=inner, initial=np.inf)
    most = x.max(-1, keepdims=True, where=inner, initial=-np.inf)
    low = np.where(np.isfinite(least), least, mean).astype(np.float16).astype(np.float32)  # mean: all are outliers
    extent = np.clip(most - low, 0, np.float32(FP16.largest))
    return low, extent.astype(np.float16).astype(np.float32), at


def _levels(z: Floats, bits: int) -> Levels:
    """Return the k-means levels of ``z`` (started at its quantiles), as fp16 numbers in rising order, with their middles as edges."""
    sample = np.sort(z.astype(np.float64))
    count = 1 << bits
    levels = np.quantile(sample, (np.arange(count) + 0.5) / count)
    total = np.concatenate([[0.0], np.cumsum(sample)])
    for _ in range(ROUNDS):
        cuts = np.concatenate([[0], np.searchsorted(sample, (levels[1:] + levels[:-1]) / 2), [sample.size]])
        sizes = np.diff(cuts)
        levels = np.where(sizes > 0, np.diff(total[cuts]) / np.maximum(sizes, 1), levels)
    stored = np.sort(levels).astype(np.float16).astype(np.float32)
    return Levels(stored, (stored[1:] + stored[:-1]) / np.float32(2))
