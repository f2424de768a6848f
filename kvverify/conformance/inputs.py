"""K and V that hurt: zeros, constants, spikes, outlier channels, subnormals, norms just below fp16's limit, exact ties.

Every number is one that fp16 holds, or bf16 where that is asked for, so that a kernel can be given the very same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.floats import bf16_bytes, bf16_floats
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.conformance.exact import clear_of_boundaries

Floats = NDArray[np.float32]
MOST_DRAWS = 100


@dataclass(frozen=True, slots=True)
class Rows:
    """``k`` and ``v``, float32 [tokens, heads, head_size]; ``names`` one for each token.

    ``cancelling`` marks tokens whose rotated keys are sums that cancel: the order of additions alone decides on which side of a
    midpoint near zero they come out.
    """

    k: Floats
    v: Floats
    names: tuple[str, ...]
    cancelling: tuple[bool, ...]


def rows_that_hurt(
    codec: TurboQuantCodec, seed: int, *, dtype: str = "fp16", heads: int = 2, clear: bool = True
) -> Rows:
    """Return one token for each case, and some ordinary ones.

    With ``clear``, random rows are drawn until no number to be stored lies within float32 error of a decision point, so that
    byte equality may be demanded of any order of additions.
    """
    random = np.random.default_rng([seed, codec.head_size, codec.preset.key_bits, codec.preset.value_bits])
    size = codec.head_size
    largest_key = 448.0 if codec.preset.key_bits == 8 else 60000.0 / size**0.5
    names, keys, values, cancelling = [], [], [], []
    for name, draw, cancels in _cases(random, heads, codec, largest_key):
        k, v = _drawn(codec, _rounding(draw, dtype), clear=clear and not cancels)
        names.append(name)
        keys.append(k)
        values.append(v)
        cancelling.append(cancels)
    return Rows(np.stack(keys), np.stack(values), tuple(names), tuple(cancelling))


Draw = Callable[[], tuple[Floats, Floats]]


def _cases(
    random: np.random.Generator, heads: int, codec: TurboQuantCodec, largest_key: float
) -> list[tuple[str, Draw, bool]]:
    size, top = codec.head_size, (1 << codec.preset.value_bits) - 1
    shape = (heads, size)

    def normal(scale: float = 1.0) -> Floats:
        return _fp16(random.normal(0, scale, shape))

    def outlier_channels() -> Floats:
        x = random.normal(0, 1, shape)
        x[:, random.choice(size, 3, replace=False)] *= 40
        return _fp16(x)

    def signs() -> Floats:
        return random.choice(np.array([-1.0, 1.0], np.float32), shape)

    def spike(height: float) -> Floats:
        x = np.zeros(shape, np.float32)
        x[:, random.integers(size)] = height
        return x

    def ties() -> Floats:
        """Minimum 0 and the highest index as maximum: a scale of exactly 1, and values on n + 1/2."""
        x = np.float32(0.5) + random.integers(0, top, shape).astype(np.float32)
        x[:, 0], x[:, 1] = 0, top
        return x

    zeros = np.zeros(shape, np.float32)
    subnormal = 6e-8  # the smallest fp16 number
    return [
        ("zeros", lambda: (zeros, zeros), True),
        ("constant", lambda: (np.full(shape, 1.5, np.float32), np.full(shape, -0.75, np.float32)), True),
        ("one spike in zeros", lambda: (spike(3.0), spike(-5.0)), False),
        ("alternating signs", lambda: (signs() * np.float32(0.25), signs()), True),
        ("subnormals", lambda: (_fp16(normal(40) * subnormal), _fp16(normal(40) * subnormal)), False),
        ("just above the subnormals", lambda: (normal(2e-4), normal(2e-4)), False),
        ("outlier channels", lambda: (outlier_channels(), outlier_channels()), False),
        (
            "norm below the fp16 limit",
            lambda: (_fp16(signs() * random.uniform(0.9, 1.0, shape) * largest_key), normal(9000)),
            False,
        ),
        (
            "one huge number",
            lambda: (_fp16(normal() + spike(min(400.0, largest_key))), _fp16(normal() + spike(30000.0))),
            False,
        ),
        ("ties of values", lambda: (normal(), ties()), False),
        ("large offset", lambda: (_fp16(normal() + 20), _fp16(normal(0.01) + 500)), False),
        *(
            (f"ordinary {i}", lambda s=scale: (normal(s), normal(s)), False)
            for i, scale in enumerate((1, 1, 0.1, 8, 30))
        ),
    ]


def _rounding(draw: Draw, dtype: str) -> Draw:
    if dtype == "fp16":
        return draw

    def rounded() -> tuple[Floats, Floats]:
        k, v = draw()
        return bf16_floats(bf16_bytes(k)), bf16_floats(bf16_bytes(v))

    return rounded


def _drawn(codec: TurboQuantCodec, draw: Draw, *, clear: bool) -> tuple[Floats, Floats]:
    k, v = draw()
    draws = 1
    while clear and draws < MOST_DRAWS:
        unclear = ~clear_of_boundaries(codec, k[None], v[None])[0]
        if not unclear.any():
            break
        again_k, again_v = draw()
        k, v = np.where(unclear[:, None], again_k, k), np.where(unclear[:, None], again_v, v)
        draws += 1
    return k, v


def _fp16(x: NDArray[np.floating]) -> Floats:
    return x.astype(np.float16).astype(np.float32)
