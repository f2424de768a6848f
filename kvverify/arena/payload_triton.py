"""Payloads in device memory: written, checked and digested by Triton kernels, which CUDA and ROCm share.

They compute what :mod:`kvverify.arena.payload` and :mod:`kvverify.arena.contents` define, word by word, so that memory is read or
written once and nothing is moved to the host. A tile (:mod:`kvverify.arena.tiles`) is one program. Units are words of 8 bytes, or
bytes where a run does not begin or end with a word.

Every kernel takes for the block at position j of a launch: its number, and for each kind of history the key and the block that
the bytes were first written for. ``kind_step`` is the distance between the kinds in these arrays, 0 where all kinds share them.
``special`` int64 [17] holds the special values of contents, and the key of the reset.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kvverify.arena.contents import STEP
from kvverify.arena.payload import FACTOR, GOLDEN

_GOLDEN = tl.constexpr(GOLDEN)
_FACTOR = tl.constexpr(FACTOR)
_STEP = tl.constexpr(int(STEP))
_LOW7 = tl.constexpr(0x7F7F7F7F7F7F7F7F)
_ONES = tl.constexpr(0x0101010101010101)
_ALL = tl.constexpr(0xFFFFFFFFFFFFFFFF)


@triton.jit
def _mixed(x):
    x = (x ^ (x >> 32)) * _FACTOR
    return x ^ (x >> 29)


@triton.jit
def _words(first, lane, key, base_key, special):
    """Words ``first + lane`` of the allocation under ``key``: plain under the key of the reset, else with special values and zeros.

    ``lane`` int32 [lanes] is at most 1,024. What the words of a program share is computed once: a product, and which of its
    stretches of 64 words are zero; few programs have one that is.
    """
    word = _mixed((first + 1) * _GOLDEN + lane.to(tl.uint64) * _GOLDEN) ^ key
    if key != base_key:
        value = word.to(tl.int64, bitcast=True)
        value = tl.load(special + (word & 15).to(tl.int32), mask=((word >> 32).to(tl.uint32) >> 26) == 0, other=value)
        word = value.to(tl.uint64, bitcast=True)
        zeros = _zero_stretches((first >> 6).to(tl.uint32), key)
        if zeros != 0:
            nth = ((first & 63).to(tl.int32) + lane) >> 6
            word = tl.where(((zeros >> nth) & 1) == 0, word, 0)
    return word


@triton.jit
def _zero_stretches(first, key):
    """Return a bit for each of the 32 stretches from number ``first`` on; 32 bits of the number are enough there, and cheaper."""
    nth = tl.arange(0, 32)
    zero = (((first + nth.to(tl.uint32)) * _STEP + key.to(tl.uint32)) >> 25) == 0
    return tl.sum(tl.where(zero, 1 << nth, 0), 0)


@triton.jit
def _byte_mask(differ):
    """0x80 in each byte of ``differ`` that is zero."""
    return (((differ & _LOW7) + _LOW7) | differ | _LOW7) ^ _ALL


@triton.jit
def _place(starts, strides, lengths, kinds, tiles, blocks, HAS_BLOCKS: tl.constexpr):
    """Return tile, position of the block in the launch, block, first position, length and kind of this program."""
    program = tl.program_id(0)
    tile, nth = (program % tiles).to(tl.int64), (program // tiles).to(tl.int64)  # divided as 32 bits: much cheaper
    block = nth
    if HAS_BLOCKS:
        block = tl.load(blocks + nth)
    stride = tl.load(strides + tile)
    return (
        tile,
        nth,
        block,
        tl.load(starts + tile) + block * stride,
        tl.load(lengths + tile).to(tl.int32),
        tl.load(kinds + tile),
        stride,
    )


@triton.jit
def _record(kind, nth, block, keys, sources, kind_step, base_key):
    """Return key and original block; what no group writes has those of the reset."""
    known = kind != 0
    key = tl.load(keys + kind * kind_step + nth, mask=known, other=0).to(tl.uint64, bitcast=True)
    source = tl.load(sources + kind * kind_step + nth, mask=known, other=0)
    return tl.where(known, key, base_key), tl.where(known, source, block)


@triton.jit
def _expected(start, moved, key, base_key, special, UNIT: tl.constexpr, SIZE: tl.constexpr):
    """The units from position ``start`` on, as they were first written ``moved`` bytes away."""
    lane = tl.arange(0, SIZE)
    if UNIT == 8:
        units = _words(((start + moved) // 8).to(tl.uint64), lane, key, base_key, special)
    else:
        first = start + moved
        at = (first & 7).to(tl.int32) + lane
        word = _words((first // 8).to(tl.uint64), at >> 3, key, base_key, special)
        units = (word >> ((at & 7) * 8).to(tl.uint64)).to(tl.uint8)
    return units


@triton.jit(do_not_specialize=["tiles", "kind_step"])
def check(
    memory, starts, strides, lengths, kinds, tiles, blocks, keys, sources,
    kind_step, special, counts,
    UNIT: tl.constexpr, SIZE: tl.constexpr, HAS_BLOCKS: tl.constexpr, BYTES: tl.constexpr,
) -> None:  # fmt: skip
    """Write to ``counts`` int32 [programs] how many units, or bytes with ``BYTES``, are not what they must be."""
    base_key = tl.load(special + 16).to(tl.uint64, bitcast=True)
    _, nth, block, start, length, kind, stride = _place(starts, strides, lengths, kinds, tiles, blocks, HAS_BLOCKS)
    key, source = _record(kind, nth, block, keys, sources, kind_step, base_key)
    lane = tl.arange(0, SIZE)
    inside = lane * UNIT < length
    # asked for before it is known what must come: computing that takes as long as the memory
    found = tl.load(memory + start // UNIT + lane, mask=inside, other=0)
    expected = _expected(start, (source - block) * stride, key, base_key, special, UNIT, SIZE)
    found = found.to(expected.dtype, bitcast=True)
    if BYTES and UNIT == 8:
        same = (_byte_mask(found ^ expected) >> 7) * _ONES >> 56
        wrong = tl.where(inside, 8 - same.to(tl.int32), 0)
    else:
        wrong = (inside & (found != expected)).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(wrong, 0))


@triton.jit(do_not_specialize=["tiles", "kind_step"])
def fill(
    memory, starts, strides, lengths, kinds, tiles, blocks, keys, sources,
    kind_step, special,
    UNIT: tl.constexpr, SIZE: tl.constexpr, HAS_BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Write what must be there."""
    base_key = tl.load(special + 16).to(tl.uint64, bitcast=True)
    _, nth, block, start, length, kind, stride = _place(starts, strides, lengths, kinds, tiles, blocks, HAS_BLOCKS)
    key, source = _record(kind, nth, block, keys, sources, kind_step, base_key)
    lane = tl.arange(0, SIZE)
    expected = _expected(start, (source - block) * stride, key, base_key, special, UNIT, SIZE)
    expected = expected.to(memory.dtype.element_ty, bitcast=True)
    tl.store(memory + start // UNIT + lane, expected, mask=lane * UNIT < length)


@triton.jit(do_not_specialize=["tiles", "kind_step", "flip"])
def occupy(
    memory, starts, strides, lengths, kinds, tiles, blocks, keys, sources,
    kind_step, special, extremes, masks, flip,
    UNIT: tl.constexpr, SIZE: tl.constexpr, HAS_BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Write bytes that differ from what must come in every single one; see expectation.occupant_of."""
    base_key = tl.load(special + 16).to(tl.uint64, bitcast=True)
    tile, nth, block, start, length, kind, stride = _place(starts, strides, lengths, kinds, tiles, blocks, HAS_BLOCKS)
    key, source = _record(kind, nth, block, keys, sources, kind_step, base_key)
    lane = tl.arange(0, SIZE)
    inside = lane * UNIT < length
    expected = _expected(start, (source - block) * stride, key, base_key, special, UNIT, SIZE)
    extreme = tl.load(extremes + tile * SIZE + lane).to(expected.dtype, bitcast=True)
    scale = tl.load(masks + tile * SIZE + lane).to(expected.dtype, bitcast=True)
    if UNIT == 8:
        other = extreme ^ _byte_mask(expected ^ extreme)
        flips = flip.to(tl.uint64) * _ONES
    else:
        other = tl.where(expected == extreme, extreme ^ 0x80, extreme)
        flips = flip.to(tl.uint8)
    flipped = expected ^ flips
    occupant = flipped ^ ((flipped ^ other) & scale)
    tl.store(memory + start // UNIT + lane, occupant.to(memory.dtype.element_ty, bitcast=True), mask=inside)


@triton.jit(do_not_specialize=["tiles", "kind_step"])
def settle(
    memory, starts, strides, lengths, kinds, tiles, blocks, keys, sources,
    kind_step, special, own_keys, own_sources,
    UNIT: tl.constexpr, SIZE: tl.constexpr, HAS_BLOCKS: tl.constexpr,
) -> None:  # fmt: skip
    """Put what a block's padding was back where a load brought the source's along, byte by byte. ``UNIT`` is 1."""
    base_key = tl.load(special + 16).to(tl.uint64, bitcast=True)
    _, nth, block, start, length, kind, stride = _place(starts, strides, lengths, kinds, tiles, blocks, HAS_BLOCKS)
    key, source = _record(kind, nth, block, keys, sources, kind_step, base_key)
    # what nobody wrote differs between blocks too: carried padding is that of the block the contents came from
    source = tl.load(sources + kind * kind_step + nth)
    own_key, own_source = _record(kind, nth, block, own_keys, own_sources, kind_step, base_key)
    lane = tl.arange(0, SIZE)
    inside = lane < length
    carried = _expected(start, (source - block) * stride, key, base_key, special, UNIT, SIZE)
    own = _expected(start, (own_source - block) * stride, own_key, base_key, special, UNIT, SIZE)
    found = tl.load(memory + start + lane, mask=inside, other=0)
    tl.store(memory + start + lane, own, mask=inside & (found == carried))


@triton.jit(do_not_specialize=["count"])
def digest(memory, starts, count, sums, SIZE: tl.constexpr) -> None:
    """Write to ``sums`` int64 [programs] the digest of the ``count`` words from word ``starts[program]`` of ``memory`` on."""
    program = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    words = tl.load(memory + tl.load(starts + program) + lane, mask=lane < count, other=0).to(tl.uint64, bitcast=True)
    mixed = tl.where(lane < count, _mixed(words ^ ((lane.to(tl.uint64) + 1) * _GOLDEN)), 0)
    tl.store(sums + program, tl.sum(mixed.to(tl.int64, bitcast=True), 0))


@triton.jit
def write(memory, starts, key, first, sums, SIZE: tl.constexpr) -> None:
    """Write plain payload to the ``SIZE`` words from word ``starts[program]`` of ``memory`` on, and to ``sums`` their digests.

    ``key`` and ``first`` int64 [1]: the key, and which word of its region word 0 of ``memory`` is.
    """
    program = tl.program_id(0)
    lane = tl.arange(0, SIZE)
    at = tl.load(starts + program)
    nth = (lane.to(tl.uint64) + 1) * _GOLDEN
    word = _mixed((tl.load(first) + at).to(tl.uint64) * _GOLDEN + nth) ^ tl.load(key).to(tl.uint64, bitcast=True)
    tl.store(memory + at + lane, word.to(tl.int64, bitcast=True))
    tl.store(sums + program, tl.sum(_mixed(word ^ nth).to(tl.int64, bitcast=True), 0))


_TABLES = {"starts": "*i64", "strides": "*i64", "lengths": "*i64", "kinds": "*i64", "tiles": "i32", "blocks": "*i64"}
_RECORDS = {"keys": "*i64", "sources": "*i64", "kind_step": "i32", "special": "*i64"}
_CHOICES: dict[str, str | int] = {"UNIT": 8, "SIZE": 1024, "HAS_BLOCKS": True}
_COMMON: dict[str, str | int] = {"memory": "*i64", **_TABLES, **_RECORDS}

# Argument types of every kernel, for compilers without a GPU; UNIT 1 has memory, extremes and masks of type *u8.
SIGNATURES: dict[str, dict[str, str | int]] = {
    "check": {**_COMMON, "counts": "*i32", **_CHOICES, "BYTES": False},
    "fill": {**_COMMON, **_CHOICES},
    "occupy": {**_COMMON, "extremes": "*i64", "masks": "*i64", "flip": "i32", **_CHOICES},
    "settle": {**_COMMON, "own_keys": "*i64", "own_sources": "*i64", **_CHOICES, "UNIT": 1, "memory": "*u8"},
    "digest": {"memory": "*i64", "starts": "*i64", "count": "i32", "sums": "*i64", "SIZE": 512},
    "write": {"memory": "*i64", "starts": "*i64", "key": "*i64", "first": "*i64", "sums": "*i64", "SIZE": 512},
}
