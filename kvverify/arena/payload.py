"""Payloads that name their own address.

The 8-byte word at word index i of a region is ``mix(key + (i + 1) * GOLDEN)``: a Weyl sequence through one xorshift-multiply
round, the building block of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). ``mix``
is a bijection: eight wrong bytes that were copied from an aligned word can be turned back into the place they came from. Words
hold every NaN and infinity pattern of the 8-, 16- and 32-bit types within a few kilobytes, so bytes that pass through float
arithmetic do not survive.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvverify.arena.memory import Bytes

Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_FACTOR = 0xBF58476D1CE4E5B9
_GOLDEN_INVERSE = pow(_GOLDEN, -1, 1 << 64)
_FACTOR_INVERSE = pow(_FACTOR, -1, 1 << 64)
_CHUNK_WORDS = 1 << 15  # 256 KiB a round: scratch stays in the second-level cache
_RAMP: Words = np.arange(1, _CHUNK_WORDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)


def derive_key(seed: int, *names: int) -> int:
    """Return a 64-bit key from a seed and the numbers of what it is for (epoch, region, ...)."""
    state = seed & _MASK
    for name in names:
        state = mix(mix((state + (name + 1) * _GOLDEN) & _MASK))
    return state


def mix(word: int) -> int:
    """One xorshift-multiply round on a Python integer below 2^64."""
    word = ((word ^ (word >> 32)) * _FACTOR) & _MASK
    return word ^ (word >> 29)


def unmix(word: int) -> int:
    """Inverse of :func:`mix`."""
    word = word ^ (word >> 29) ^ (word >> 58)
    word = (word * _FACTOR_INVERSE) & _MASK
    return word ^ (word >> 32)


def word_index(word: int, key: int) -> int:
    """Return the word index that holds ``word`` under ``key``; a huge number when none of a real region does."""
    return ((unmix(word) - key) * _GOLDEN_INVERSE - 1) & _MASK


def fill(out: Bytes, key: int, start: int) -> None:
    """Write the payload of bytes [start, start + len(out)) of a region into ``out``."""
    head = min(-start % 8, len(out))
    if head:
        out[:head] = rows([key], [start], head)[0]
        out, start = out[head:], start + head
    whole = len(out) // 8 * 8
    if whole < len(out):
        out[whole:] = rows([key], [start + whole], len(out) - whole)[0]
    words = out[:whole].view(np.uint64)
    scratch = np.empty(min(_CHUNK_WORDS, len(words)), np.uint64)
    for first in range(0, len(words), _CHUNK_WORDS):
        part = words[first : first + _CHUNK_WORDS]
        base = (key + (start // 8 + first) * _GOLDEN) & _MASK
        np.add(_RAMP[: len(part)], np.uint64(base), out=part)
        _mix_in_place(part, scratch[: len(part)])


def rows(keys: npt.ArrayLike, starts: npt.ArrayLike, length: int) -> Bytes:
    """Return the payload of ``length`` bytes from each of ``starts`` under the key of the same position: uint8 [n, length]."""
    first = np.asarray(starts, np.int64)
    if not len(first):
        return np.empty((0, length), np.uint8)
    width = (length + 14) // 8  # words that cover the run at any phase
    index = (first // 8)[:, None].astype(np.uint64) + np.arange(1, width + 1, dtype=np.uint64)
    words = index * np.uint64(_GOLDEN) + np.atleast_1d(np.asarray(keys, np.uint64))[:, None]
    _mix_in_place(words, np.empty_like(words))
    covering = words.view(np.uint8)
    phases = first % 8
    if (phases == phases[0]).all():
        return covering[:, phases[0] : phases[0] + length]
    out = np.empty((len(first), length), np.uint8)
    for row, phase in enumerate(phases):
        out[row] = covering[row, phase : phase + length]
    return out


def _mix_in_place(words: Words, scratch: Words) -> None:
    np.right_shift(words, np.uint64(32), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
    np.multiply(words, np.uint64(_FACTOR), out=words)
    np.right_shift(words, np.uint64(29), out=scratch)
    np.bitwise_xor(words, scratch, out=words)
