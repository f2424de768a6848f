"""int8 and fp8 with one float32 scale a token and head inside the slot: ``[K][K scale][V][V scale]``.

Source: vLLM 0.32 ``attention/ops/triton_reshape_and_cache_flash.py`` (``_reshape_cache_per_token_head``): scale =
max(absmax / top, 1e-6) with top = 127 or 448, y = x * (1 / scale); int8 rounds half away from zero, fp8 E4M3 to nearest
even. Value = code * scale.

Bound: int8 half a step, scale / 2; fp8 half the spacing at x / scale, times the scale. Nothing is clamped: absmax /
scale is the top. The float32 quotient, reciprocal and products err by 2^-24 each, 2^-21 |x| together; for int8 that
also moves the point of rounding. The floor of 1e-6 leaves rows below it with a step of 1e-6.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, every, some
from kvverify.codecs.floats import E4M3, fp8_bytes, fp8_finite, fp8_floats
from kvverify.codecs.interface import Pair, SlotCodec
from kvverify.codecs.packing import float_bytes, floats_of

FLOOR = np.float32(1e-6)
TOPS = {"int8_per_token_head": np.float32(127), "fp8_per_token_head": np.float32(448)}
SLACK = np.float32(2.0**-21)


@dataclass(frozen=True)
class PerTokenHeadCodec(SlotCodec):
    """int8_per_token_head or fp8_per_token_head.

    Idempotent: absmax comes back as fl(top * scale), and a scale that is itself fl(absmax / top) is found again from
    it, for every one of the 2^23 float32 mantissas and both tops (counted; it does not hold for scales that are no such
    quotient). The codes are off by 2^-22 relative before they are rounded again.
    """

    idempotent: ClassVar[bool] = True
    idempotent_fields: ClassVar[frozenset[str]] = frozenset({"k", "k_scale", "v", "v_scale"})

    @property
    def top(self) -> np.float32:
        """The largest code."""
        return TOPS[self.name]

    @property
    def _integers(self) -> bool:
        return self.name.startswith("int8")

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        fields = {}
        for name, x in (("k", k), ("v", v)):
            scale = self._scale(x)
            fields[name] = self._codes(x * (np.float32(1) / scale))
            fields[f"{name}_scale"] = float_bytes(scale[..., 0], "<f4")
        return fields

    def _codes(self, y: Floats) -> Bytes:
        if not self._integers:
            return fp8_bytes(y, E4M3)
        rounded = np.trunc(y + np.copysign(np.float32(0.5), y))
        return np.asarray(np.clip(rounded, -128, 127).astype(np.int8).view(np.uint8))

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        k, v = (self._numbers(fields[n]) * floats_of(fields[f"{n}_scale"], "<f4")[..., None] for n in ("k", "v"))
        return k, v

    def _numbers(self, codes: Bytes) -> Floats:
        if self._integers:
            return np.ascontiguousarray(codes).view(np.int8).astype(np.float32)
        return fp8_floats(codes, E4M3)

    def _scale(self, x: Floats) -> Floats:
        return np.asarray(np.maximum(np.abs(x).max(-1, keepdims=True) / self.top, FLOOR), np.float32)

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return broken promises: scales are finite and at least 1e-6, every row above the floor uses the top code, none -128.

        That tells UltraQuant, int4 and byte-swapped scales apart; codes moved by less than a row keep the promises.
        """
        broken: dict[str, Bools] = {}
        for name in ("k", "v"):
            scale = floats_of(fields[f"{name}_scale"], "<f4")
            codes = fields[name]
            what = name.upper()
            broken[f"{what} scale below 1e-6 or not finite"] = ~((scale >= FLOOR) & np.isfinite(scale))
            if self._integers:
                broken[f"{what} code -128"] = some(codes == 128)
            else:
                broken[f"{what} holds NaN"] = ~every(fp8_finite(codes, E4M3))
            unused = np.abs(self._numbers(codes)).max(-1) != self.top
            broken[f"no {what} code is {self.top:g} though the scale says so"] = (scale > FLOOR) & unused
        return broken

    def _step(self, k: Floats, v: Floats) -> Pair:
        return Pair(*(self._one_step(x) for x in (k, v)))

    def _one_step(self, x: Floats) -> Floats:
        scale = self._scale(x)
        if self._integers:
            return np.broadcast_to(scale, x.shape)
        return E4M3.spacing(x / scale) * scale

    def _bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(self._one_bound(k), self._one_bound(v))

    def _one_bound(self, x: Floats) -> Floats:
        return np.asarray(self._one_step(x) * np.float32(0.5) + np.abs(x) * SLACK, np.float32)
