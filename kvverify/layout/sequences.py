"""The byte planes of formats that encode whole sequences: scales shared over many tokens leave no cell a token owns.

Sizes only; what the bytes mean is in :mod:`kvverify.codecs`. One layer, ``tokens`` tokens, ``heads`` KV heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvverify.errors import LayoutError
from kvverify.layout.placement import Role


@dataclass(frozen=True, slots=True)
class Plane:
    """One dense array of bytes; the last axis of ``shape`` holds the bytes of one item."""

    name: str
    role: Role
    shape: tuple[int, ...]

    @property
    def length(self) -> int:
        """Bytes."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class KiviGeometry:
    """KIVI: how many tokens are quantised and how many stay in the model's 16-bit dtype.

    Keys are quantised in whole residual windows (the last ``tokens % residual`` stay), values all but the last
    ``residual``. Source: arXiv 2402.02750, section 3 and algorithm 1.
    """

    tokens: int
    heads: int
    head_size: int
    bits: int = 2
    group: int = 32
    residual: int = 128

    def __post_init__(self) -> None:
        if self.bits not in (2, 4) or self.group < 8 or self.group % 8:
            raise LayoutError(
                f"kivi: {self.bits} bits in groups of {self.group}; expected 2 or 4 bits, groups of a multiple of 8"
            )
        if self.residual < self.group or self.residual % self.group:
            raise LayoutError(f"kivi: residual window {self.residual} is no multiple of the group {self.group}")
        if self.head_size < 1 or self.head_size % self.group:
            raise LayoutError(
                f"kivi: head size {self.head_size} is no multiple of {self.group}, the channels that share a value scale"
            )

    @property
    def key_tokens(self) -> int:
        """Quantised key tokens."""
        return self.tokens - self.tokens % self.residual

    @property
    def value_tokens(self) -> int:
        """Quantised value tokens."""
        return max(0, self.tokens - self.residual)

    def planes(self) -> tuple[Plane, ...]:
        """Return the planes: codes, fp16 scales and minima, 16-bit residuals. Keys are packed along tokens, values along channels."""
        heads, size, groups = self.heads, self.head_size, self.head_size // self.group
        keys, values = self.key_tokens, self.value_tokens
        return (
            Plane("k", Role.DATA, (heads, size, keys * self.bits // 8)),
            Plane("k_scale", Role.SCALE, (heads, size, keys // self.group, 2)),
            Plane("k_min", Role.SCALE, (heads, size, keys // self.group, 2)),
            Plane("k_residual", Role.DATA, (heads, self.tokens - keys, size * 2)),
            Plane("v", Role.DATA, (heads, values, size * self.bits // 8)),
            Plane("v_scale", Role.SCALE, (heads, values, groups, 2)),
            Plane("v_min", Role.SCALE, (heads, values, groups, 2)),
            Plane("v_residual", Role.DATA, (heads, self.tokens - values, size * 2)),
        )


@dataclass(frozen=True, slots=True)
class NonUniformGeometry:
    """KVQuant-style: codes into a table of levels, a range for each vector, and its farthest numbers kept apart as outliers.

    Key vectors run along tokens (one for each channel), value vectors along channels (one for each token).
    """

    tokens: int
    heads: int
    head_size: int
    bits: int = 4
    outliers: float = 0.01

    def __post_init__(self) -> None:
        if self.bits not in (2, 3, 4) or not 0 <= self.outliers <= 0.25:
            raise LayoutError(
                f"kvquant: {self.bits} bits, outliers {self.outliers}; expected 2, 3 or 4 bits and a share of 0 to 0.25"
            )
        if self.head_size < 2:
            raise LayoutError(f"kvquant: head size {self.head_size}; expected at least 2")

    @property
    def key_outliers(self) -> int:
        """Outliers of each key channel."""
        return math.ceil(self.outliers * self.tokens)

    @property
    def value_outliers(self) -> int:
        """Outliers of each value token."""
        return math.ceil(self.outliers * self.head_size)

    def planes(self) -> tuple[Plane, ...]:
        """Return the planes; ranges are fp16 (minimum, scale), levels fp16, outliers fp16 with uint32 token or uint16 channel."""
        heads, size, tokens = self.heads, self.head_size, self.tokens
        return (
            Plane("k", Role.DATA, (heads, size, -(-tokens * self.bits // 8))),
            Plane("k_range", Role.SCALE, (heads, size, 2, 2)),
            Plane("k_outlier_at", Role.SCALE, (heads, size, self.key_outliers, 4)),
            Plane("k_outlier", Role.DATA, (heads, size, self.key_outliers, 2)),
            Plane("k_levels", Role.SCALE, (2**self.bits, 2)),
            Plane("v", Role.DATA, (heads, tokens, -(-size * self.bits // 8))),
            Plane("v_range", Role.SCALE, (heads, tokens, 2, 2)),
            Plane("v_outlier_at", Role.SCALE, (heads, tokens, self.value_outliers, 2)),
            Plane("v_outlier", Role.DATA, (heads, tokens, self.value_outliers, 2)),
            Plane("v_levels", Role.SCALE, (2**self.bits, 2)),
        )
