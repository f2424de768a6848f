"""Small integers and floats as bytes, little-endian."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Bytes, Floats


def pack(index: NDArray[Any], bits: int) -> Bytes:
    """Pack integers [..., n] below 2^bits into a little-endian bit stream, uint8 [..., ceil(n * bits / 8)].

    For 4 bits: the even dimension in the low nibble. For 3 bits: eight indices are one 24-bit little-endian word. (vLLM
    0.32, ``attention/ops/triton_turboquant_store.py``.)
    """
    codes = index.astype(np.uint8)
    if bits == 8:
        return codes
    per_group = {1: 8, 2: 4, 3: 8, 4: 2}[bits]
    missing = -codes.shape[-1] % per_group
    if missing:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], missing), np.uint8)], -1)
    groups = codes.reshape(*codes.shape[:-1], codes.shape[-1] // per_group, per_group)
    size = -(-index.shape[-1] * bits // 8)
    if bits == 3:
        word = sum(groups[..., i].astype(np.uint32) << (3 * i) for i in range(8))
        octets = np.stack([word & 255, word >> 8 & 255, word >> 16], -1).astype(np.uint8)
        return np.ascontiguousarray(octets.reshape(*codes.shape[:-1], 3 * groups.shape[-2])[..., :size])
    packed = groups[..., 0].copy()
    for i in range(1, per_group):
        packed |= groups[..., i] << np.uint8(bits * i)
    return packed[..., :size]


def unpack(data: Bytes, bits: int, count: int) -> Bytes:
    """Return the ``count`` integers of a little-endian bit stream, uint8 [..., count]."""
    if bits == 8:
        return np.ascontiguousarray(data[..., :count])
    out: Bytes
    if bits == 3:
        missing = -data.shape[-1] % 3
        if missing:
            data = np.concatenate([data, np.zeros((*data.shape[:-1], missing), np.uint8)], -1)
        octets = data.reshape(*data.shape[:-1], data.shape[-1] // 3, 3).astype(np.uint32)
        word = octets[..., 0] | octets[..., 1] << 8 | octets[..., 2] << 16
        out = np.stack([(word >> (3 * i)) & 7 for i in range(8)], -1).astype(np.uint8)
    else:
        mask = np.uint8((1 << bits) - 1)
        out = np.stack([(data >> np.uint8(shift)) & mask for shift in range(0, 8, bits)], -1)
    return out.reshape(*data.shape[:-1], out.shape[-2] * out.shape[-1])[..., :count]


def float_bytes(x: Floats, dtype: str) -> Bytes:
    """Return ``x`` [...] as the bytes of ``dtype`` ("<f2" or "<f4"), uint8 [..., itemsize]. Overflow becomes infinity."""
    with np.errstate(over="ignore"):
        cast = np.ascontiguousarray(x.astype(dtype))
    return cast[..., None].view(np.uint8)


def floats_of(data: Bytes, dtype: str) -> Floats:
    """Return the floats of bytes [..., itemsize] as float32 [...]."""
    return np.ascontiguousarray(data).view(dtype)[..., 0].astype(np.float32)
