"""Hadamard rotations and the pseudo-random signs that some formats put before them.

Source: Sylvester's construction; signs as drawn by torch's CPU generator (a Mersenne Twister seeded with 32 bits),
which numpy's MT19937 reproduces word for word. ``tests/codecs`` holds both against torch.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Floats

RHT_SEED = 0x9E3779B9  # vLLM 0.32 attention/ops/int4_per_token_head.py
LMCACHE_SEED, LMCACHE_STRIDE = 42, 1337  # LMCache 0.5.6 distributed/serde/turboquant/turboquant.py


@lru_cache(maxsize=16)
def hadamard(size: int) -> Floats:
    """Return Sylvester's Hadamard matrix / sqrt(size), float32 [size, size], symmetric and orthogonal."""
    matrix: NDArray[np.float64] = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return np.asarray(matrix / np.sqrt(size), np.float32)


def butterflies(x: Floats, *, scale: float = 1.0) -> Floats:
    """Return the fast Hadamard transform over the last axis, each of its log2(n) stages times ``scale``, in float32.

    The order of additions is that of both vLLM's int4 (scale 1) and UltraQuant (scale 1/sqrt(2)) kernels: strides 1, 2,
    4, ...
    """
    size = x.shape[-1]
    # Long inner loops: a stage works on whole rows of [size, vectors]. A copy, since one vector alone is its own transpose.
    columns = x.reshape(-1, size).T.copy(order="C")
    spare = np.empty_like(columns)
    stride = 1
    while stride < size:
        halves, out = (a.reshape(size // (2 * stride), 2, stride, -1) for a in (columns, spare))
        np.add(halves[:, 0], halves[:, 1], out=out[:, 0])
        np.subtract(halves[:, 0], halves[:, 1], out=out[:, 1])
        if scale != 1.0:
            spare *= np.float32(scale)
        columns, spare = spare, columns
        stride *= 2
    return np.ascontiguousarray(columns.T).reshape(x.shape)


@lru_cache(maxsize=64)
def lmcache_signs(size: int, layer: int) -> Floats:
    """Return the +-1 signs of LMCache's TurboQuant serde for a layer's number inside the object, float32 [size].

    As ``torch.randint(0, 2, (size,))`` * 2 - 1 from a CPU generator seeded with 42 + 1337 * layer: the lowest bit of
    each word.
    """
    words = _mersenne_words(LMCACHE_SEED + LMCACHE_STRIDE * layer, size)
    return (words & 1).astype(np.float32) * 2 - 1


@lru_cache(maxsize=16)
def rht_signs(size: int) -> Floats:
    """Return the +-1 signs of vLLM's randomised Hadamard transform (int4_per_token_head), float32 [size].

    As ``torch.bernoulli`` of one half from a CPU generator: 1 where the lowest 24 bits of a word are below 2^23.
    """
    words = _mersenne_words(RHT_SEED, size)
    return np.where((words & 0xFFFFFF) < 1 << 23, np.float32(1), np.float32(-1))


def rht(x: Floats) -> Floats:
    """Return vLLM's randomised Hadamard transform of the last axis: signs, then the unnormalised transform.

    A size that is no power of two is cut into blocks of its largest power-of-two divisor b; lengths grow by sqrt(b).
    """
    blocks = x.reshape(*x.shape[:-1], -1, rht_block(x.shape[-1]))
    return butterflies(blocks * rht_signs(blocks.shape[-1])).reshape(x.shape)


def inverse_rht(x: Floats) -> Floats:
    """Undo :func:`rht`, the factor b included."""
    blocks = x.reshape(*x.shape[:-1], -1, rht_block(x.shape[-1]))
    size = blocks.shape[-1]
    return (butterflies(blocks) * rht_signs(size) / np.float32(size)).reshape(x.shape)


def rht_block(size: int) -> int:
    """Return the largest power of two that divides ``size``."""
    return size & -size


def _mersenne_words(seed: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
    generator = np.random.RandomState(seed & 0xFFFFFFFF)._bit_generator
    return np.asarray(generator.random_raw(count))
