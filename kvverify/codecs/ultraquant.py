"""UltraQuant 4-bit: FP4 E2M1 in groups of 32 with power-of-two scales, keys Hadamard-rotated: ``[K][K scales][V][V scales]``.

Source: vLLM 0.32 ``attention/ops/ultraquant/format.py`` and ``triton_store.py``: scale = 2^floor(log2(0.156 absmax) +
0.5) as one byte exponent + 127 (0: a group of zeros), code = number of midpoints below x / scale, mapped to E2M1 bits;
even dimension in the low nibble; value = code * scale. Keys: fast Hadamard transform, each stage times 1/sqrt(2) in
float32. No norm, no rotation of V.

Bound. scale / absmax lies in 0.156 * [2^-0.5, 2^0.5], so absmax / scale is between 4.53 and 9.07, and the largest level
is 6: up to 3.07 scales are clipped away. Elsewhere the error is at most the reach of the level's cell (a quarter below
1.75, then up to 0.5 and 1), times the scale. A group whose exponent is below -126 loses everything. Keys: the sum over
all D rotated coordinates / sqrt(D).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, some
from kvverify.codecs.interface import Pair, SlotCodec, vector_length
from kvverify.codecs.levels import Levels, rms
from kvverify.codecs.packing import pack, unpack
from kvverify.codecs.rotation import butterflies, hadamard

GROUP, BIAS = 32, 127
CONSTANT = np.float32(0.156)
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)
LEVELS = np.array([-6, -4, -3, -2, -1.5, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
GRID = Levels(LEVELS, (LEVELS[1:] + LEVELS[:-1]) / np.float32(2))
CODE_OF_LEVEL = np.array([15, 14, 13, 12, 11, 10, 9, 0, 1, 2, 3, 4, 5, 6, 7], np.uint8)


@dataclass(frozen=True)
class UltraQuantCodec(SlotCodec):
    """ultraquant_4bit.

    Not idempotent, V neither: a group whose largest number is stored as level 4 comes back with absmax 4 scales, and
    0.156 * 4 = 0.624 rounds to half the scale, so that the second encoding clips it.
    """

    idempotent: ClassVar[bool] = False
    exponent_scales: ClassVar[bool] = True

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        fields: dict[str, Bytes] = {}
        for name, x in (("k", _rotate(k)), ("v", v)):
            groups = _grouped(x)
            exponent, zero = _exponents(groups)
            with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
                level = np.searchsorted(GRID.edges, groups / _scales(exponent))
            # A quotient 0/0 (a scale below float32's range) passes no midpoint in the kernel, so it is the lowest level.
            level = np.where(np.isnan(groups) | ((_scales(exponent) == 0) & (groups == 0)), 0, level)
            codes = CODE_OF_LEVEL[np.where(zero, 7, level)]
            fields[name] = pack(codes.reshape(x.shape), 4)
            byte = np.where(zero | (exponent < -BIAS), 0, exponent + BIAS)
            fields[f"{name}_scale"] = byte[..., 0].astype(np.uint8)
        return fields

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        k, v = (self._numbers(fields[n], fields[f"{n}_scale"]) for n in ("k", "v"))
        return (k.reshape(-1, self.head_size) @ hadamard(self.head_size)).reshape(k.shape), v

    def _numbers(self, codes: Bytes, scales: Bytes) -> Floats:
        groups = _grouped(E2M1[unpack(codes, 4, self.head_size)])
        scale = np.where(scales == 0, np.float32(0), _scales(scales.astype(np.int32) - BIAS))
        return np.asarray(groups * scale[..., None], np.float32).reshape(*codes.shape[:-1], self.head_size)

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return broken promises: no code is -0, no scale byte 254 or more, every group with a scale uses a level of 4 or 6."""
        broken: dict[str, Bools] = {}
        for name in ("k", "v"):
            codes, scales = unpack(fields[name], 4, self.head_size), fields[f"{name}_scale"]
            what = name.upper()
            broken[f"{what} code of minus zero"] = some(codes == 8)
            broken[f"{what} scale byte above 253"] = some(scales > 253)
            largest = np.abs(_grouped(E2M1[codes])).max(-1)
            broken[f"a {what} group uses no level of 4 or 6"] = some((scales != 0) & (largest < 4))
        return broken

    def _step(self, k: Floats, v: Floats) -> Pair:
        """Return the cell width at each element of V; for K the root mean square over the rotated coordinates."""
        return Pair(np.broadcast_to(rms(_per_element(GRID.width, _rotate(k))), k.shape), _per_element(GRID.width, v))

    def _bound(self, k: Floats, v: Floats) -> Pair:
        miss = _miss(_rotate(k)).sum(-1, keepdims=True) / np.float32(self.head_size**0.5)
        return Pair(np.broadcast_to(miss, k.shape), _miss(v))

    def _vector_bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(vector_length(_miss(_rotate(k))), vector_length(_miss(v)))


def _miss(x: Floats) -> Floats:
    """Return the bound of each number as it is stored: the reach of its cell, and float32's rounding before and after."""
    return np.asarray(_per_element(GRID.reach, x) + np.abs(x) * np.float32(2.0**-18), np.float32)


def _rotate(k: Floats) -> Floats:
    return butterflies(k, scale=0.7071067811865476)


def _grouped(x: Floats) -> Floats:
    return x.reshape(*x.shape[:-1], -1, GROUP)


def _exponents(groups: Floats) -> tuple[np.ndarray[tuple[int, ...], np.dtype[np.int32]], Bools]:
    """Return the scale's exponent and whether the group is all zeros, [..., groups, 1] each."""
    largest = np.abs(groups).max(-1, keepdims=True)
    zero = largest == 0
    raw = np.where(zero, np.float32(1), largest * CONSTANT)
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(raw, dtype=np.float32) + np.float32(0.5))
    return np.maximum(exponent, -200).astype(np.int32), zero


def _scales(exponent: np.ndarray[tuple[int, ...], np.dtype[np.int32]]) -> Floats:
    return np.asarray(np.ldexp(np.float32(1), exponent), np.float32)


def _per_element(measure: Callable[[Floats], Floats], x: Floats) -> Floats:
    """Return a measure of the grid (reach or width) at each element, in units of x; groups too small for a scale lose all."""
    groups = _grouped(x)
    exponent, zero = _exponents(groups)
    lost = zero | (exponent <= -BIAS)
    scale = _scales(np.where(lost, 0, exponent))
    return np.asarray(np.where(lost, np.abs(groups), measure(groups / scale) * scale), np.float32).reshape(x.shape)
