"""Where float32 arithmetic leaves a stored number open: the TurboQuant formulas in float64 beside their float32 error bounds.

The order in which a matrix product adds is nobody's promise, and a GPU divides with an error of two units in the last place. A
stored number may differ from the reference only where the exact value lies within that error of a decision point; these
functions say where that is, and never forgive anything else. Errors follow Higham, Accuracy and Stability of Numerical
Algorithms, section 3.1: a sum of n products errs by at most n u times the sum of their magnitudes, u = 2^-24.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.packing import floats_of, pack, unpack
from kvverify.codecs.turboquant import TurboQuantCodec

U = 2.0**-24
Doubles = NDArray[np.float64]
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Exact:
    """Exact values [tokens, heads, ...] and how far float32 may be off."""

    rotated: Doubles
    rotated_error: Doubles
    norm: Doubles
    norm_error: Doubles
    position: Doubles  # of a value on its scale, in steps
    position_error: Doubles
    scale: Doubles
    scale_error: Doubles


def exact(codec: TurboQuantCodec, k: NDArray[np.float32], v: NDArray[np.float32]) -> Exact:
    """Return what encoding K and V [tokens, heads, head_size] computes, in float64."""
    size, top = codec.head_size, (1 << codec.preset.value_bits) - 1
    keys, values = k.astype(np.float64), v.astype(np.float64)
    norm = np.sqrt((keys * keys).sum(-1, keepdims=True))
    unit = keys / (norm + 1e-8)
    low = values.min(-1, keepdims=True)
    scale = np.maximum((values.max(-1, keepdims=True) - low) / top, float(np.float32(1e-8)))
    position = (values - low) / scale
    magnitudes = np.abs(unit).sum(-1, keepdims=True) / size**0.5
    # decision points are float32 means of centroids: the middle one is zero up to their rounding, on either side
    of_points = U * float(np.abs(codec.centroids).max(initial=0.0))
    return Exact(
        rotated=unit @ codec.rotation.astype(np.float64),
        rotated_error=np.broadcast_to((size + 8) * U * magnitudes + of_points, k.shape),
        norm=norm,
        norm_error=(size / 2 + 4) * U * norm + 1e-30,
        position=position,
        position_error=8 * U * (position + 1),
        scale=scale,
        scale_error=4 * U * scale,
    )


def clear_of_boundaries(codec: TurboQuantCodec, k: NDArray[np.float32], v: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Say of each cell [tokens, heads] whether no number that it stores lies within float32 error of a decision point.

    Exact ties of values, whose arithmetic is exact in float32 (scale 1), count as clear.
    """
    e = exact(codec, k, v)
    clear = _far_from_half_step(e.position, e.position_error).all(-1) & _one_fp16(e.scale, e.scale_error)
    if codec.preset.key_bits == 8:
        return clear
    distance = np.abs(e.rotated[..., None] - codec.midpoints.astype(np.float64)).min(-1)
    clear &= (distance > e.rotated_error).all(-1) & _one_fp16(e.norm, e.norm_error)
    return clear


def _far_from_half_step(position: Doubles, error: Doubles) -> NDArray[np.bool_]:
    past = (position + 0.5) % 1.0
    distance = np.minimum(past, 1 - past)
    clear: NDArray[np.bool_] = (distance > error) | (distance == 0)
    return clear


def _one_fp16(x: Doubles, error: Doubles) -> NDArray[np.bool_]:
    same: NDArray[np.bool_] = (x - error).astype(np.float16) == (x + error).astype(np.float16)
    return same[..., 0]


def forgiven(
    codec: TurboQuantCodec,
    k: NDArray[np.float32],
    v: NDArray[np.float32],
    expected: Bytes,
    found: Bytes,
) -> tuple[Bytes, NDArray[np.int64]]:
    """Return ``expected`` slots with every stored number of ``found`` that float32 error explains put in, and how many a token.

    What still differs after that is wrong.
    """
    e = exact(codec, k, v)
    out, near = expected.copy(), np.zeros(expected.shape[0], np.int64)
    bits = {"k": codec.preset.key_bits, "v": codec.preset.value_bits}
    for name, where in codec.slices.items():
        want, got = expected[..., where], found[..., where]
        if name not in bits and name not in ("k_norm", "v_scale"):
            continue
        if name == "k" and codec.preset.key_bits == 8:
            continue
        if name in bits:
            indices = unpack(want, bits[name], codec.head_size), unpack(got, bits[name], codec.head_size)
            allowed = (indices[0] != indices[1]) & _index_allowed(codec, name, e, indices[1])
            out[..., where] = pack(np.where(allowed, indices[1], indices[0]), bits[name])
        else:
            exact_value, error = (e.norm, e.norm_error) if name == "k_norm" else (e.scale, e.scale_error)
            allowed = (want != got).any(-1, keepdims=True) & fp16_allowed(
                floats_of(got, "<f2")[..., None], exact_value, error
            )
            out[..., where] = np.where(allowed, got, want)
        near += allowed.sum((1, 2))
    return out, near


def _index_allowed(codec: TurboQuantCodec, name: str, e: Exact, index: Bytes) -> NDArray[np.bool_]:
    """May this index have been chosen: does the exact value lie in its cell, widened by the float32 error?"""
    if name == "v":
        return np.abs(e.position - index) <= 0.5 + e.position_error
    edges = np.concatenate([[-np.inf], codec.midpoints.astype(np.float64), [np.inf]])
    return (e.rotated >= edges[index] - e.rotated_error) & (
        e.rotated <= edges[index.astype(np.int64) + 1] + e.rotated_error
    )


def fp16_allowed(found: NDArray[np.float32], value: Doubles, error: Doubles) -> NDArray[np.bool_]:
    """May this fp16 number be the rounding of ``value``, known up to ``error``?"""
    low, high = (value - error).astype(np.float16), (value + error).astype(np.float16)
    return (found >= low.astype(np.float32)) & (found <= high.astype(np.float32))


def decoded_keys_allowed(
    codec: TurboQuantCodec, fields: Mapping[str, Bytes], found: NDArray[np.float16]
) -> NDArray[np.bool_]:
    """Say of each decoded fp16 key (still rotated) whether it may be the rounding of the exact one.

    fp8 keys and all values are never forgiven: an index times an fp16 scale is exact in float32, and the sum with the minimum
    is one correctly rounded operation, fused or not.
    """
    size, preset = codec.head_size, codec.preset
    if preset.key_bits == 8:
        return np.zeros(found.shape, np.bool_)
    chosen = codec.centroids.astype(np.float64)[unpack(fields["k"], preset.key_bits, size)]
    if preset.norm_correction:
        chosen = chosen / np.sqrt((chosen * chosen).sum(-1, keepdims=True) + 1e-16)
    key = floats_of(fields["k_norm"], "<f2").astype(np.float64)[..., None] * chosen
    return fp16_allowed(found.astype(np.float32), key, (size + 8) * U * np.abs(key))
