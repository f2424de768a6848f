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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Bools, Bytes, Floats, pair, token_chunks
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
    """Some vectors [vectors, n] of one head: range, levels and which elements are outliers."""

    x: Floats
    low: Floats  # [vectors, 1], an fp16 number
    scale: Floats  # the same
    outlier_at: NDArray[np.int64]  # [vectors, m], rising
    levels: Levels

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


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """All of K, or of V: a view of the input as vectors [heads, vectors, n], with what holds for them."""

    x: Floats
    ends: Floats  # [heads, vectors, 2]: minimum and scale, fp16 numbers
    outlier_at: NDArray[Any]  # [heads, vectors, m], in the integers that are stored
    levels: Levels

    def parts(self) -> Iterator[tuple[tuple[int, slice], _Vectors]]:
        """Yield a few vectors at a time, which bounds the temporaries, with their place."""
        for place in _places(self.x.shape):
            low, scale = self.ends[place][:, :1], self.ends[place][:, 1:]
            at = self.outlier_at[place].astype(np.int64)
            yield place, _Vectors(np.ascontiguousarray(self.x[place]), low, scale, at, self.levels)


Measure = Callable[[_Vectors], Floats]


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
        planes = {plane.name: np.empty(plane.shape, np.uint8) for plane in self._geometry(tokens, heads).planes()}
        for name, side in (("k", self._keys(keys)), ("v", self._values(values))):
            planes[f"{name}_range"] = float_bytes(side.ends, "<f2")
            planes[f"{name}_outlier_at"] = side.outlier_at[..., None].view(np.uint8)
            planes[f"{name}_levels"] = float_bytes(side.levels.levels, "<f2")
            for place, vectors in side.parts():
                planes[name][place] = self._packed_codes(vectors)
                outliers = np.take_along_axis(vectors.x, vectors.outlier_at, -1)
                planes[f"{name}_outlier"][place] = float_bytes(outliers, "<f2")
        return Encoded(self.name, tokens, heads, self.head_size, planes)

    def decode_sequence(self, encoded: Encoded) -> Pair:
        """Return K and V.

        Raises:
            CodecError: foreign planes, or an outlier outside its vector.
        """
        geometry = self._geometry(encoded.tokens, encoded.heads)
        require_own(self, encoded, {plane.name: plane.shape for plane in geometry.planes()})
        out = Pair(*(np.empty((encoded.tokens, encoded.heads, self.head_size), np.float32) for _ in range(2)))
        self._read(encoded, "k", "<u4", _key_vectors(out.k))
        self._read(encoded, "v", "<u2", _value_vectors(out.v))
        return out

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

    def _keys(self, k: Floats) -> _Side:
        return self._fitted(_key_vectors(k), self._geometry(*k.shape[:2]).key_outliers, "K", "<u4")

    def _values(self, v: Floats) -> _Side:
        return self._fitted(_value_vectors(v), self._geometry(*v.shape[:2]).value_outliers, "V", "<u2")

    def _fitted(self, x: Floats, outliers: int, what: str, index: str) -> _Side:
        largest = max(x.max(), -x.min())
        if largest >= FP16.largest + 16:
            raise CodecError(f"{self.name}: {what} holds {largest:g}; outliers and ranges are fp16, at most 65504")
        ends, at = np.empty((*x.shape[:2], 2), np.float32), np.empty((*x.shape[:2], outliers), index)
        thin = max(1, min(x.shape[-1], x.size // SAMPLE))
        inside = []
        for place in _places(x.shape):
            part = np.ascontiguousarray(x[place])
            low, scale, found = _range_and_outliers(part, outliers)
            ends[place], at[place] = np.concatenate([low, scale], -1), found
            inside.append(_Vectors(part, low, scale, found, _NO_LEVELS).sampled(thin))
        z = np.concatenate(inside)
        return _Side(x, ends, at, _levels(z if z.size else np.zeros(1, np.float32), self.bits))

    def _read(self, encoded: Encoded, name: str, index: str, out: Floats) -> None:
        """Write the numbers of K or V into ``out``, a view [heads, vectors, n]."""
        planes, count = encoded.planes, out.shape[-1]
        levels, ends = floats_of(planes[f"{name}_levels"], "<f2"), floats_of(planes[f"{name}_range"], "<f2")
        every_at = np.ascontiguousarray(planes[f"{name}_outlier_at"]).view(index)[..., 0]
        if every_at.size and every_at.max() >= count:
            raise CodecError(
                f"{self.name}: plane {name}_outlier_at points to {every_at.max()}; vectors have {count} elements"
            )
        for place in _places(out.shape):
            low, scale = ends[place][:, :1], ends[place][:, 1:]
            x = low + levels[unpack(planes[name][place], self.bits, count)] * scale
            outliers = floats_of(planes[f"{name}_outlier"][place], "<f2")
            np.put_along_axis(x, every_at[place].astype(np.int64), outliers, axis=-1)
            out[place] = x

    def _per_element(self, k: Any, v: Any, inside: Measure, outlier: Callable[[Floats], Floats]) -> Pair:
        keys, values = pair(k, v, self.head_size)
        found = Pair(np.empty_like(keys), np.empty_like(values))
        sides = ((self._keys(keys), _key_vectors(found.k)), (self._values(values), _value_vectors(found.v)))
        for side, out in sides:
            for place, vectors in side.parts():
                out[place] = np.where(vectors.is_outlier, outlier(vectors.x), inside(vectors))
        return found


def _key_vectors(k: Floats) -> Floats:
    """Return a view [heads, channels, tokens] of keys [tokens, heads, channels]."""
    return k.transpose(1, 2, 0)


def _value_vectors(v: Floats) -> Floats:
    """Return a view [heads, tokens, channels] of values [tokens, heads, channels]."""
    return v.transpose(1, 0, 2)


def _places(shape: tuple[int, ...]) -> list[tuple[int, slice]]:
    """Return where vectors [heads, vectors, n] are cut: a head and a range of vectors each."""
    heads, vectors, count = shape
    return [(head, part) for head in range(heads) for part in token_chunks(vectors, count)]


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
