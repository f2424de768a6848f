"""What the engine computes into blocks: the payload, sprinkled with values that copies are known to mistreat.

Random words name their address, but they hold no float32 minus zero in four billion and no cell of zeros ever; a copy that goes
through arithmetic, or that leaves zeros out, was invisible. So one word in 64 is replaced by a special one, and one stretch of
512 bytes in 128 by zeros, by address and key alone: contents stay a function of both.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from kvverify.arena.memory import Bytes
from kvverify.arena.payload import Words, cut_out, word_rows

ZERO_BYTES = 512  # a cell of the widest common format, all zero
_ZERO_WORDS = ZERO_BYTES // 8
_ZERO_BELOW = np.uint32(1 << 25)  # one stretch in 2^7
_SPECIAL_BELOW = np.uint64(1 << 58)  # one word in 2^6
STEP = np.uint32(0xD1B54A33)

SPECIAL: Words = np.array(
    [
        0x80000000_80000000,  # fp32 -0, twice
        0x80008000_80008000,  # fp16 and bf16 -0
        0x80000000_00000000,  # fp64 -0; fp32 0 and -0
        0xFF800000_7F800000,  # fp32 infinities
        0xFFA00001_7F800001,  # fp32 signalling NaN
        0x80000001_00000001,  # fp32 subnormals
        0xFF7FFFFF_7F7FFFFF,  # largest fp32
        0xFF807F80_FF817F81,  # bf16 infinities and signalling NaN
        0xFC007C00_FD017D01,  # fp16 infinities and signalling NaN
        0x80010001_80010001,  # fp16 and bf16 subnormals
        0x80808080_80808080,  # fp8 -0, or NaN in formats without one
        0x7F7F7F7F_7F7F7F7F,  # fp8 e4m3 NaN
        0xFFFFFFFF_FFFFFFFF,
        0x00000000_00000000,
        0x0A0D0A0D_1A0A0D0A,  # line ends and end of file, for what takes the bytes for text
        0x01010101_01010101,
    ],
    np.uint64,
)


def contents(keys: npt.ArrayLike, starts: npt.ArrayLike, length: int) -> Bytes:
    """Return ``length`` bytes of contents from each of ``starts`` under the key of the same position: uint8 [n, length]."""
    first = np.asarray(starts, np.int64)
    phases = first % 8
    indices = first // 8
    words = word_rows(keys, indices, (length + 14) // 8)  # whole words that cover the run at any phase
    flat = words.reshape(-1)
    special = np.flatnonzero(flat < _SPECIAL_BELOW)
    flat[special] = SPECIAL[(flat[special] & np.uint64(len(SPECIAL) - 1)).astype(np.intp)]
    _put_zeros(words, np.asarray(keys, np.uint64), indices)
    return cut_out(words, phases, length)


def _put_zeros(words: Words, keys: Words, first_words: npt.NDArray[np.int64]) -> None:
    stretches = words.shape[1] // _ZERO_WORDS + 2
    first = first_words // _ZERO_WORDS
    number = first[:, None].astype(np.uint32) + np.arange(stretches, dtype=np.uint32)
    # a Weyl sequence of 32 bits: evenly spread, which is all that is wanted here, and cheap on a GPU
    found = np.flatnonzero(number * STEP + keys.astype(np.uint32).reshape(-1, 1) < _ZERO_BELOW)
    for row, stretch in (divmod(place, stretches) for place in found.tolist()):
        start = (int(first[row]) + stretch) * _ZERO_WORDS - int(first_words[row])
        words[row, max(0, start) : max(0, start + _ZERO_WORDS)] = 0
