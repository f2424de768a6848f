"""bf16, fp16, and fp8 with scales that live outside the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, every, pair
from kvverify.codecs.floats import (
    BF16,
    E4M3,
    E5M2,
    FP16,
    Grid,
    bf16_bytes,
    bf16_floats,
    fp8_bytes,
    fp8_finite,
    fp8_floats,
)
from kvverify.codecs.interface import Pair, SlotCodec
from kvverify.errors import CodecError

GRIDS = {grid.name: grid for grid in (BF16, FP16, E4M3, E5M2)}


@dataclass(frozen=True)
class HalfCodec(SlotCodec):
    """bf16 or fp16: ``[K][V]``, two bytes an element.

    Bound: round to nearest errs by at most half the spacing of the element's binade. Idempotent: a number of the grid
    rounds to itself. fp16 refuses numbers that would become infinite (|x| >= 65520).
    """

    idempotent: ClassVar[bool] = True
    idempotent_fields: ClassVar[frozenset[str]] = frozenset({"k", "v"})

    @property
    def grid(self) -> Grid:
        """The floating-point grid."""
        return GRIDS[self.name]

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        return {"k": self._bytes(k, "K", first_token), "v": self._bytes(v, "V", first_token)}

    def _bytes(self, x: Floats, what: str, first_token: int) -> Bytes:
        if self.grid is BF16:
            return bf16_bytes(x)
        over = np.abs(x) >= FP16.largest + 16
        if over.any():
            token, head, dim = (int(i[0]) for i in np.nonzero(over))
            raise CodecError(
                f"{what} is {x[token, head, dim]:g} at token {first_token + token}, head {head}, dimension {dim}; "
                f"fp16 holds at most 65504"
            )
        return np.ascontiguousarray(x.astype("<f2")).view(np.uint8)

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        return self._floats(fields["k"]), self._floats(fields["v"])

    def _floats(self, data: Bytes) -> Floats:
        if self.grid is BF16:
            return bf16_floats(data)
        return np.ascontiguousarray(data).view("<f2").astype(np.float32)

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return cells with NaN or infinity; bytes of the other half format cannot be told apart otherwise."""
        return {f"{n.upper()} is not finite": ~every(np.isfinite(self._floats(d))) for n, d in fields.items()}

    def _step(self, k: Floats, v: Floats) -> Pair:
        return Pair(self.grid.spacing(k), self.grid.spacing(v))

    def _bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(self.grid.rounding_bound(k), self.grid.rounding_bound(v))


@dataclass(frozen=True)
class Fp8Codec(SlotCodec):
    """fp8 per tensor or per head: ``[K][V]``, one byte an element, code = fp8(x / scale), value = fp8 * scale.

    ``k_scale`` and ``v_scale`` are one number (per tensor) or one a head (per head), and are no part of the slot:
    decoding with other scales than those of encoding cannot be detected. :func:`fp8_scales` calibrates them.

    Source: vLLM 0.32 ``attention/ops/triton_reshape_and_cache_flash.py`` (``key_load / tl.load(k_scale)``).

    Bound: half the spacing of the grid at x / scale, times the scale; numbers beyond the largest are clamped and err by
    the distance to it. The float32 division and product add at most 2 * 2^-24 relative each, taken as 2^-22 |x|.
    Idempotent: a code times its scale divided by it differs from the code by 2^-22 relative, a thousandth of half its
    spacing.
    """

    k_scale: float | tuple[float, ...] = 1.0
    v_scale: float | tuple[float, ...] = 1.0

    idempotent: ClassVar[bool] = True
    idempotent_fields: ClassVar[frozenset[str]] = frozenset({"k", "v"})

    def __post_init__(self) -> None:
        super().__post_init__()
        for what, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            array = np.asarray(scale, np.float32)
            if array.ndim > 1 or array.size == 0 or not (np.isfinite(array) & (array >= 2.0**-100)).all():
                raise CodecError(f"{self.name}: {what} is {scale!r}; expected a positive number, or one for each head")

    @property
    def grid(self) -> Grid:
        """The floating-point grid."""
        return GRIDS[self.name]

    def _check_heads(self, heads: int) -> None:
        for what, scale in (("k_scale", self.k_scale), ("v_scale", self.v_scale)):
            if isinstance(scale, tuple) and len(scale) != heads:
                raise CodecError(
                    f"{self.name}: {what} has {len(scale)} scales, got {heads} heads; expected one for each"
                )

    def _scales(self) -> tuple[Floats, Floats]:
        """Return both scales, broadcastable over [tokens, heads, head_size]."""
        return tuple(np.asarray(s, np.float32).reshape(-1, 1) for s in (self.k_scale, self.v_scale))  # type: ignore[return-value]

    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        scales = self._scales()
        return {"k": fp8_bytes(k / scales[0], self.grid), "v": fp8_bytes(v / scales[1], self.grid)}

    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        scales = self._scales()
        return fp8_floats(fields["k"], self.grid) * scales[0], fp8_floats(fields["v"], self.grid) * scales[1]

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return cells with a code that is no finite number; other fp8 bytes, of whatever scale, are all valid."""
        return {f"{n.upper()} holds NaN or infinity": ~every(fp8_finite(d, self.grid)) for n, d in fields.items()}

    def _step(self, k: Floats, v: Floats) -> Pair:
        scales = self._scales()
        return Pair(self.grid.spacing(k / scales[0]) * scales[0], self.grid.spacing(v / scales[1]) * scales[1])

    def _bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(*(self._one_bound(x, s) for x, s in zip((k, v), self._scales(), strict=True)))

    def _one_bound(self, x: Floats, scale: Floats) -> Floats:
        rounding = self.grid.rounding_bound(x / scale) * scale
        return np.asarray(rounding + np.abs(x) * np.float32(2.0**-22), np.float32)


def fp8_scales(
    name: str, k: Any, v: Any, head_size: int, *, per: str = "tensor"
) -> dict[str, float | tuple[float, ...]]:
    """Return ``k_scale`` and ``v_scale`` that map the largest magnitude to the largest fp8 number; options for :class:`Fp8Codec`.

    ``per`` is "tensor" or "head". A head of zeros gets scale 1.

    Raises:
        CodecError: another ``per``; shapes as for encoding.
    """
    if per not in ("tensor", "head"):
        raise CodecError(
            f"fp8 scales per {per!r}; expected 'tensor' or 'head' (per token and head: fp8_per_token_head)"
        )
    scales: dict[str, float | tuple[float, ...]] = {}
    for what, x in zip(("k_scale", "v_scale"), pair(k, v, head_size), strict=True):
        largest = np.abs(x).max(axis=(0, 2)) if per == "head" else np.abs(x).max(keepdims=True).reshape(1)
        found = np.where(largest > 0, np.maximum(largest / GRIDS[name].largest, 2.0**-100), 1.0).astype(np.float32)
        scales[what] = tuple(float(s) for s in found) if per == "head" else float(found[0])
    return scales
