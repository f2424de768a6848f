"""int4_per_token_head: ``[K][K scale][V][V scale]``, K and V rotated, asymmetric, the zero point hidden inside the scale.

Source: vLLM 0.32 ``attention/ops/int4_per_token_head.py``. Both K and V go through the randomised Hadamard transform
(signs, then the unnormalised transform, in blocks of the largest power of two that divides the head size) and are
rounded to the model's dtype. Then

    s = max((max - min) / 15, 1e-6);  z = clamp(round(-min / s), 0, 15);  q = clamp(round(y * (1 / s) + z), 0, 15)

with rounding half away from zero. Even dimension in the low nibble. The stored float32 is s with its low four mantissa
bits replaced by z: scales must be moved as bits. Decode: (q - z) * s' with s' = the stored scale without those bits,
rotated back and divided by the block.

On a GPU the transform runs through bfloat16 (hadacore or a Triton product), so only the order-of-addition path for
CPUs, which this codec follows in float32, is byte-exact.

Bound, in the rotated basis: s/2 where -z s <= y <= (15 - z) s, else also the distance to that range (z is clamped, so a
row that lies on one side of zero loses everything beyond 15 s); |q - z| |s - s'| <= 15 s 2^-19; the rounding to the
model's dtype. Rotating back by entries +-1/b, an element errs by at most the sum over its block divided by b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats
from kvverify.codecs.floats import BF16, FP16, bf16_bytes, bf16_floats
from kvverify.codecs.interface import Pair, SlotCodec, vector_length
from kvverify.codecs.packing import float_bytes, floats_of, pack, unpack
from kvverify.codecs.rotation import inverse_rht, rht, rht_block
from kvverify.errors import CodecError, nearest

FLOOR = np.float32(1e-6)
TOP = np.float32(15)


@dataclass(frozen=True)
class Int4Codec(SlotCodec):
    """int4_per_token_head for a model in ``model_dtype`` (bf16, fp16 or fp32), to which rotated numbers are rounded.

    Not idempotent: decoding uses the scale without its low four bits, and the rotation back and forth rounds.
    """

    model_dtype: str = "bf16"

    idempotent: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.model_dtype not in ("bf16", "fp16", "fp32"):
            raise CodecError(f"{self.name}: {nearest(self.model_dtype, ('bf16', 'fp16', 'fp32'))} model_dtype")

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        fields: dict[str, Bytes] = {}
        for name, x in (("k", k), ("v", v)):
            y = self._rotated(x)
            scale, zero = _scale_and_zero(y)
            index = np.clip(_half_away(y * (np.float32(1) / scale) + zero), 0, TOP)
            fields[name] = pack(index, 4)
            hidden = (scale.view(np.uint32) & np.uint32(0xFFFFFFF0)) | zero.astype(np.uint32)
            fields[f"{name}_scale"] = float_bytes(hidden.view(np.float32)[..., 0], "<f4")
        return fields

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        k, v = (inverse_rht(self._centred(fields[n], fields[f"{n}_scale"])) for n in ("k", "v"))
        return k, v

    def _centred(self, codes: Bytes, scales: Bytes) -> Floats:
        bits = np.ascontiguousarray(scales).view("<u4")
        zero = (bits & 15).astype(np.float32)
        scale = (bits & np.uint32(0xFFFFFFF0)).view(np.float32)
        return np.asarray((unpack(codes, 4, self.head_size).astype(np.float32) - zero) * scale, np.float32)

    def _rotated(self, x: Floats) -> Floats:
        y = rht(x)
        if self.model_dtype == "fp16":
            if np.abs(y).max() >= FP16.largest + 16:
                raise CodecError(
                    f"{self.name}: a rotated number is {np.abs(y).max():g}; an fp16 model holds at most 65504, take model_dtype='bf16'"
                )
            return y.astype(np.float16).astype(np.float32)
        return bf16_floats(bf16_bytes(y)) if self.model_dtype == "bf16" else y

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return broken promises: scales finite and at least 1e-6 (four low bits aside), and indices that span the range.

        Where the zero point was not clamped, lowest and highest index lie at least 14 apart. UltraQuant slots of the
        same size keep both promises.
        """
        broken: dict[str, Bools] = {}
        for name in ("k", "v"):
            scale = floats_of(fields[f"{name}_scale"], "<f4")
            index = unpack(fields[name], 4, self.head_size).astype(np.int16)
            zero = fields[f"{name}_scale"][..., 0] & 15
            clamped = (zero == 0) | (zero == 15) | (scale < FLOOR * np.float32(1.001))
            broken[f"{name.upper()} indices span less than 14"] = ~clamped & (index.max(-1) - index.min(-1) < 14)
            broken[f"{name.upper()} scale below 1e-6 or not finite"] = ~(
                (scale >= FLOOR * (1 - 2.0**-19)) & np.isfinite(scale)
            )
        return broken

    def _step(self, k: Floats, v: Floats) -> Pair:
        """Return s in the scale of unrotated numbers: s / sqrt(block)."""
        size = np.float32(rht_block(self.head_size) ** 0.5)
        return Pair(*(np.broadcast_to(_scale_and_zero(self._rotated(x))[0] / size, x.shape) for x in (k, v)))

    def _bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(self._one_bound(k), self._one_bound(v))

    def _vector_bound(self, k: Floats, v: Floats) -> Pair:
        size = np.float32(rht_block(self.head_size) ** 0.5)
        return Pair(*(vector_length(self._rotated_bound(x)) / size for x in (k, v)))

    def _one_bound(self, x: Floats) -> Floats:
        block = rht_block(self.head_size)
        blocks = self._rotated_bound(x).reshape(*x.shape[:-1], -1, block)
        return np.broadcast_to(blocks.sum(-1, keepdims=True) / np.float32(block), blocks.shape).reshape(x.shape)

    def _rotated_bound(self, x: Floats) -> Floats:
        """Return the bound of each rotated, unnormalised number."""
        y = self._rotated(x)
        scale, zero = _scale_and_zero(y)
        outside = np.maximum(np.maximum(y - (TOP - zero) * scale, -zero * scale - y), 0)
        grid = {"bf16": BF16, "fp16": FP16}.get(self.model_dtype)
        miss = scale * np.float32(0.5 + 15 * 2.0**-19) + outside + np.abs(y) * np.float32(2.0**-19)
        return np.asarray(miss + (grid.rounding_bound(y) if grid else 0), np.float32)


def _scale_and_zero(y: Floats) -> tuple[Floats, Floats]:
    """Return scale and zero point of each row, float32 [..., 1]."""
    low = y.min(-1, keepdims=True)
    scale = np.asarray(np.maximum((y.max(-1, keepdims=True) - low) / TOP, FLOOR), np.float32)
    return scale, np.asarray(np.clip(_half_away(-low / scale), 0, TOP), np.float32)


def _half_away(y: Floats) -> Floats:
    return np.asarray(np.trunc(y + np.copysign(np.float32(0.5), y)), np.float32)
