"""The floating-point grids of the plain formats: rounding to them, their codes and their spacing.

bfloat16 is the upper half of float32. E4M3 is OCP FP8 (bias 7, no infinity, largest 448, NaN 0x7F/0xFF); E5M2 is OCP
FP8 (bias 15, infinity 0x7C, largest finite 57344). All rounding is to nearest, ties to even, as the hardware casts do.
Beyond the largest finite number the casts saturate, like ``cvt.rn.satfinite`` on NVIDIA GPUs and torch's E4M3 cast
since 2.13 (older ones give NaN); torch's E5M2 cast gives infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats


@dataclass(frozen=True, slots=True)
class Grid:
    """A binary floating-point format: ``mantissa`` stored bits, exponent ``bias``, the ``largest`` finite number."""

    name: str
    bits: int
    mantissa: int
    bias: int
    largest: float

    @property
    def smallest_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.bias

    def spacing(self, x: Floats) -> Floats:
        """Return the distance of neighbouring numbers of this grid in the binade of each ``x``: 2^(floor(log2 |x|) - mantissa).

        Below the smallest normal number it is the subnormal step, beyond the largest that of the top binade.
        """
        magnitude = np.clip(np.abs(x), 2.0**self.smallest_exponent, self.largest)
        _, exponent = np.frexp(magnitude)  # magnitude in [0.5, 1) * 2^exponent
        return np.asarray(np.ldexp(np.float32(1), exponent - 1 - self.mantissa), np.float32)

    def rounding_bound(self, x: Floats) -> Floats:
        """Return the largest rounding error: half the spacing, and beyond the largest number the distance to it."""
        beyond = np.maximum(np.abs(x) - np.float32(self.largest), 0)
        return np.asarray(self.spacing(x) * np.float32(0.5) + beyond, np.float32)


BF16 = Grid("bf16", 16, 7, 127, float(np.uint32(0x7F7F0000).view(np.float32)))
FP16 = Grid("fp16", 16, 10, 15, 65504.0)
E4M3 = Grid("fp8_e4m3", 8, 3, 7, 448.0)
E5M2 = Grid("fp8_e5m2", 8, 2, 15, 57344.0)


def bf16_bytes(x: Floats) -> Bytes:
    """Return ``x`` [..., n] rounded to bfloat16, uint8 [..., 2 n]."""
    bits = x.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + (bits >> 16 & 1)
    rounded = np.where(np.isinf(rounded.view(np.float32)) & np.isfinite(x), bits & np.uint32(0xFFFF0000), rounded)
    return np.ascontiguousarray((rounded >> 16).astype("<u2")).view(np.uint8)


def bf16_floats(data: Bytes) -> Floats:
    """Return the bfloat16 numbers of uint8 [..., 2 n] as float32 [..., n]."""
    upper = np.ascontiguousarray(data).view("<u2").astype(np.uint32)
    return (upper << 16).view(np.float32)


def fp8_bytes(x: Floats, grid: Grid) -> Bytes:
    """Return ``x`` rounded to an FP8 grid, one byte each, saturated at ``grid.largest``."""
    clipped = np.clip(x, -grid.largest, grid.largest).astype(np.float32)
    bits = clipped.view(np.uint32)
    magnitude = bits & np.uint32(0x7FFFFFFF)
    dropped = 23 - grid.mantissa
    half = np.uint32((1 << (dropped - 1)) - 1)
    normal = ((magnitude + half + (magnitude >> dropped & 1)) >> dropped) - np.uint32(
        (127 - grid.bias) << grid.mantissa
    )
    tiny = np.abs(clipped) < 2.0**grid.smallest_exponent
    steps = np.rint(np.where(tiny, np.abs(clipped), 0) * np.float32(2.0 ** (grid.mantissa - grid.smallest_exponent)))
    code = np.where(tiny, steps.astype(np.uint32), normal)
    return np.asarray(code | bits >> 24 & np.uint32(0x80), np.uint8)


def fp8_floats(data: Bytes, grid: Grid) -> Floats:
    """Return the float32 value of each FP8 byte; NaN and infinity where the byte says so."""
    return fp8_table(grid)[data]


def fp8_finite(data: Bytes, grid: Grid) -> Bools:
    """Say of each byte whether it is a finite number."""
    finite: Bools = np.isfinite(fp8_table(grid))[data]
    return finite


@lru_cache(maxsize=4)
def fp8_table(grid: Grid) -> Floats:
    """Return the value of each of the 256 bytes."""
    code = np.arange(256)
    exponent, fraction = (code & 127) >> grid.mantissa, code & ((1 << grid.mantissa) - 1)
    unit = 2.0**-grid.mantissa
    normal = np.ldexp(1 + fraction * unit, exponent - grid.bias)
    value = np.where(exponent == 0, np.ldexp(fraction * unit, grid.smallest_exponent), normal)
    value = np.where(value > grid.largest, np.nan, value)
    if grid is E5M2:
        value = np.where((code & 127) == 0x7C, np.inf, value)
    return np.where(code > 127, -value, value).astype(np.float32)
