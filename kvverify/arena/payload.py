"""Payloads that name their own address.

The 8-byte word at word index i of a region is ``key ^ mix((i + 1) * GOLDEN)``: a Weyl sequence through one xorshift-multiply
round, the building block of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014). ``mix``
is a bijection: eight wrong bytes that were copied from an aligned word can be turned back into the place they came from. Words
hold every NaN and infinity pattern of the 8-, 16- and 32-bit types within a few kilobytes, so bytes that pass through float
arithmetic do not survive.

The part without the key is the same for all regions and sequences; its first 16 MiB are kept once they were needed.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from kvverify.arena.memory import Bytes, sliding

Words = npt.NDArray[np.uint64]

_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
FACTOR = 0xBF58476D1CE4E5B9
_GOLDEN_INVERSE = pow(GOLDEN, -1, 1 << 64)
_FACTOR_INVERSE = pow(FACTOR, -1, 1 << 64)
_CHUNK_WORDS = 1 << 15  # 256 KiB a round: scratch stays in the second-level cache
_RAMP: Words = np.arange(1, _CHUNK_WORDS + 1, dtype=np.uint64) * np.uint64(GOLDEN)
_FIRST_TABLE_WORDS, _TABLE_WORDS = 1 << 19, 1 << 21  # 4 MiB, which most arenas need, and 16 MiB


def derive_key(seed: int, *names: int) -> int:
    """Return a 64-bit key from a seed and the numbers of what it is for (epoch, region, ...)."""
    state = seed & _MASK
    for name in names:
        state = mix(mix((state + (name + 1) * GOLDEN) & _MASK))
    return state


def signed(word: int) -> int:
    """Return the int64 with the bits of ``word``: torch has no arithmetic of uint64."""
    return int(np.uint64(word).astype(np.int64))


def mix(word: int) -> int:
    """One xorshift-multiply round on a Python integer below 2^64."""
    word = ((word ^ (word >> 32)) * FACTOR) & _MASK
    return word ^ (word >> 29)


def unmix(word: int) -> int:
    """Inverse of :func:`mix`."""
    word = word ^ (word >> 29) ^ (word >> 58)
    word = (word * _FACTOR_INVERSE) & _MASK
    return word ^ (word >> 32)


def word_index(word: int, key: int) -> int:
    """Return the word index that holds ``word`` under ``key``; a huge number when none of a real region does."""
    return (unmix(word ^ key) * _GOLDEN_INVERSE - 1) & _MASK


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
    for first in range(0, len(words), _CHUNK_WORDS):
        part = words[first : first + _CHUNK_WORDS]
        np.bitwise_xor(_keyless(start // 8 + first, len(part)), np.uint64(key), out=part)


def rows(keys: npt.ArrayLike, starts: npt.ArrayLike, length: int) -> Bytes:
    """Return the payload of ``length`` bytes from each of ``starts`` under the key of the same position: uint8 [n, length]."""
    first = np.asarray(starts, np.int64)
    width = (length + 14) // 8  # words that cover the run at any phase
    return cut_out(word_rows(keys, first // 8, width), first % 8, length)


def word_rows(keys: npt.ArrayLike, indices: npt.NDArray[np.int64], count: int) -> Words:
    """Return ``count`` payload words from each word index on, under one key a row or one for all: uint64 [n, count]."""
    words = _keyless_rows(indices, count)
    words ^= np.asarray(keys, np.uint64).reshape(-1, 1)
    return words


def cut_out(words: Words, phases: npt.NDArray[np.int64], length: int) -> Bytes:
    """Return ``length`` bytes of each row of ``words``, from the byte that ``phases`` names: uint8 [n, length]."""
    covering = words.view(np.uint8)
    if len(phases) == 0 or (phases == phases[0]).all():
        phase = int(phases[0]) if len(phases) else 0
        return covering[:, phase : phase + length]
    out = np.empty((len(phases), length), np.uint8)
    for row, whole, phase in zip(out, covering, phases.tolist(), strict=True):
        row[:] = whole[phase : phase + length]
    return out


def _keyless_rows(first: npt.NDArray[np.int64], count: int) -> Words:
    """``count`` words from each index of ``first`` on under key 0: a new array [n, count]."""
    if not len(first):
        return np.empty((0, count), np.uint64)
    if int(first.max()) + count > _TABLE_WORDS:
        return np.stack([_keyless(index, count) for index in first.tolist()])
    table = _keyless(0, int(first.max()) + count)
    found: Words = sliding(table, count)[first]
    return found


def _keyless(first: int, count: int) -> Words:
    """The words from index ``first`` on under key 0; not to be written to."""
    stop = first + count
    if stop <= _FIRST_TABLE_WORDS:
        return _table(_FIRST_TABLE_WORDS)[first:stop]
    if stop <= _TABLE_WORDS:
        return _table(_TABLE_WORDS)[first:stop]
    words = _RAMP[:count] if count <= _CHUNK_WORDS else np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    return _mixed(words + np.uint64(first * GOLDEN & _MASK))


@functools.lru_cache(maxsize=2)
def _table(words: int) -> Words:
    return _mixed(np.arange(1, words + 1, dtype=np.uint64) * np.uint64(GOLDEN))


def _mixed(words: Words) -> Words:
    words ^= words >> np.uint64(32)
    words *= np.uint64(FACTOR)
    words ^= words >> np.uint64(29)
    return words
