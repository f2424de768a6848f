"""K, V and Q that hurt: what real caches hold and Gaussian noise does not.

All numbers are bfloat16 numbers, as engines hand them to a store kernel, so that no error of the input is booked on the
format. Magnitudes stay where fp16 norms, scales and minima do not overflow: beyond that a codec refuses, which is
tested apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kvverify.codecs.arrays import Floats
from kvverify.codecs.floats import bf16_bytes, bf16_floats
from kvverify.codecs.rotation import hadamard


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One layer's keys and values [tokens, heads, head_size] and queries [queries, heads, head_size], float32."""

    name: str
    why: str
    k: Floats
    v: Floats
    q: Floats


_KINDS: dict[str, tuple[str, Callable[[np.random.Generator, tuple[int, int, int]], tuple[Floats, Floats]]]] = {}


def input_names() -> tuple[str, ...]:
    """Return the names of all kinds of input."""
    return tuple(_KINDS)


def sample(name: str, *, head_size: int, tokens: int = 64, heads: int = 2, queries: int = 32, seed: int = 0) -> Sample:
    """Return one kind of input; the same arguments give the same numbers.

    Raises:
        KeyError: unknown name; :func:`input_names` lists them.
    """
    why, make = _KINDS[name]
    generator = np.random.default_rng([seed, list(_KINDS).index(name), head_size])
    k, v = (_bf16(x) for x in make(generator, (tokens, heads, head_size)))
    return Sample(name, why, k, v, realistic_queries(k, queries, seed=seed))


def samples(*, head_size: int, tokens: int = 64, heads: int = 2, queries: int = 32, seed: int = 0) -> list[Sample]:
    """Return one input of every kind."""
    return [
        sample(name, head_size=head_size, tokens=tokens, heads=heads, queries=queries, seed=seed)
        for name in input_names()
    ]


def realistic_queries(k: Floats, count: int, *, seed: int = 0) -> Floats:
    """Return queries [count, heads, head_size] that attend as real ones do.

    Each looks for one token: along its key, with Gaussian noise of half that length, as long as sqrt(head_size) (the
    length that makes q k / sqrt(head_size) of order |k|); keys much longer than the median are taken as of that length,
    so that logits stay below about 30.
    """
    generator = np.random.default_rng([seed, 7, count])
    tokens, heads, size = k.shape
    length = np.sqrt((k.astype(np.float64) ** 2).sum(-1, keepdims=True))
    target = generator.integers(0, tokens, count)
    direction = (k / np.where(length > 0, length, 1))[target]
    noise = generator.standard_normal((count, heads, size)) * (0.5 / size**0.5)
    typical = max(float(np.median(length)), 2.0**-100)
    sharp = np.minimum(size**0.5, 30 * size**0.5 / typical)
    return _bf16((direction + noise) * sharp)


def _kind(why: str) -> Callable[[Callable[..., tuple[Floats, Floats]]], Callable[..., tuple[Floats, Floats]]]:
    def register(make: Callable[..., tuple[Floats, Floats]]) -> Callable[..., tuple[Floats, Floats]]:
        _KINDS[make.__name__.removeprefix("_make_")] = (why, make)
        return make

    return register


def _normal(generator: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return generator.standard_normal(shape, dtype=np.float32)


def _bf16(x: Floats) -> Floats:
    return bf16_floats(bf16_bytes(np.ascontiguousarray(x, dtype=np.float32)))


@_kind("the friendly case, for comparison only")
def _make_gaussian(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    return _normal(generator, shape), _normal(generator, shape)


@_kind(
    "a few channels 10 to 100 times the others with one sign, as keys of RoPE models have; per-token scales pay for them"
)
def _make_outlier_channels(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    k, v = _normal(generator, shape), _normal(generator, shape)
    channels = generator.choice(shape[2], 3, replace=False)
    k[..., channels] = k[..., channels] * 0.5 + np.array([12, -40, 100], np.float32)
    v[..., channels[:1]] *= 20
    return k, v


@_kind("the first tokens are attention sinks: long keys, tiny values")
def _make_sink_tokens(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    k, v = _normal(generator, shape), _normal(generator, shape)
    k[:4] = k[:1] * 30
    v[:4] *= 1e-3
    return k, v


@_kind("numbers below the smallest normal float32, bf16 or fp16 number: floors and flushes show")
def _make_subnormals(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    size = np.exp2(generator.integers(-140, -8, (*shape[:2], 1)).astype(np.float64))
    return (_normal(generator, shape) * size).astype(np.float32), (_normal(generator, shape) * size[::-1]).astype(
        np.float32
    )


@_kind("every number plus or minus the largest that fp16 scale fields can serve")
def _make_largest(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    signs = generator.integers(0, 2, (2, *shape)).astype(np.float32) * 2 - 1
    largest = 40000.0  # a SoA norm is the length divided by that of the centroids, which is below 1
    return signs[0] * np.float32(largest / shape[2] ** 0.5), signs[1] * np.float32(largest / 4)


@_kind("all numbers of a row the same, some rows all zeros: ranges and norms of nothing")
def _make_constant_rows(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    rows = _normal(generator, (2, *shape[:2], 1)) * 3
    rows[:, ::5] = 0
    k, v = np.broadcast_to(rows[0], shape), np.broadcast_to(rows[1], shape)
    return k, v


@_kind("one key ten thousand times as long as the others: scales over tokens pay for it")
def _make_one_huge_norm(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    k, v = _normal(generator, shape) * 0.1, _normal(generator, shape) * 0.1
    k[shape[0] // 2] *= np.float32(20000 / shape[2] ** 0.5)
    v[shape[0] // 3] *= 1000
    return k, v


@_kind("magnitudes over six decades inside every row")
def _make_mixed_magnitudes(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    size = np.float32(10) ** generator.uniform(-4, 2, (2, *shape)).astype(np.float32)
    return _normal(generator, shape) * size[0], _normal(generator, shape) * size[1]


@_kind("keys of one single element: a rotation spreads them, a table of N(0, 1/D) cannot hold them unrotated")
def _make_one_hot(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    k, v = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    at = generator.integers(0, shape[2], (2, *shape[:2], 1))
    np.put_along_axis(k, at[0], _normal(generator, (*shape[:2], 1)) * 10, -1)
    np.put_along_axis(v, at[1], _normal(generator, (*shape[:2], 1)) * 10, -1)
    return k, v


@_kind("rows of the Hadamard matrix: one single element after the rotation, far outside the table")
def _make_hadamard_rows(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    size = shape[2]
    if size & (size - 1):
        return _make_one_hot(generator, shape)
    rows = hadamard(size)
    length = np.exp(_normal(generator, (2, *shape[:2], 1)))
    picked = generator.integers(0, size, (2, *shape[:2]))
    return rows[picked[0]] * length[0] * size**0.5, rows[picked[1]] * length[1] * size**0.5


@_kind("all values of a row on one side of zero, far from it: zero points that are clamped lose them")
def _make_one_sided(generator: np.random.Generator, shape: tuple[int, int, int]) -> tuple[Floats, Floats]:
    sign = np.where(np.arange(shape[0]) % 2, 1, -1).astype(np.float32)[:, None, None]
    return (np.abs(_normal(generator, shape)) + 20) * sign, (np.abs(_normal(generator, shape)) + 20) * sign
