"""The interface that all codecs share.

Formats come in two kinds. In a *slot format* every (token, KV head) owns bytes of its own, so tokens may come one at a
time and in any order: :class:`SlotCodec`, ``encode(k, v) -> uint8 [tokens, heads, slot_bytes]``. Others share scales
over many tokens (KIVI's keys) or wrap whole layers (LMCache's serde) and can only encode a sequence. Every codec can do
that: ``encode_sequence(k, v) -> Encoded``, named byte planes whose sum is what the sequence costs.

Shapes: K and V are float16, bfloat16 or float32 ``[tokens, heads, head_size]``, decoded ones float32 of the same shape.
Keys are *cached* keys: after RoPE, as a cache holds them.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kvverify.codecs.arrays import Bools, Bytes, Floats, as_slots, pair, token_chunks
from kvverify.errors import CodecError
from kvverify.layout.formats import FORMATS, Part, slot_format


class Pair(NamedTuple):
    """K and V, float32 [tokens, heads, head_size] each."""

    k: Floats
    v: Floats


@dataclass(frozen=True, slots=True)
class Encoded:
    """One sequence of one layer in one format: named planes of bytes, C-contiguous uint8 of any shape."""

    codec: str
    tokens: int
    heads: int
    head_size: int
    planes: Mapping[str, Bytes]

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes.values())

    @property
    def bytes_per_token_and_head(self) -> float:
        """Bytes that K and V of one token and head cost, everything shared counted."""
        return self.nbytes / (self.tokens * self.heads)


@dataclass(frozen=True)
class Codec(abc.ABC):
    """One KV format at one head size.

    ``idempotent`` says whether encode(decode(encode(x))) gives the same bytes for every x.
    """

    name: str
    head_size: int

    idempotent: ClassVar[bool] = False

    @abc.abstractmethod
    def encode_sequence(self, k: Any, v: Any) -> Encoded:
        """Encode K and V [tokens, heads, head_size].

        Raises:
            CodecError: shape, dtype or numbers that the format cannot take.
        """

    @abc.abstractmethod
    def decode_sequence(self, encoded: Encoded) -> Pair:
        """Return what the bytes mean.

        Raises:
            CodecError: planes of another codec, geometry or size, or bytes this codec never writes.
        """

    @abc.abstractmethod
    def step(self, k: Any, v: Any) -> Pair:
        """Return the format's own step at each element: the distance of two neighbouring values it can hold there."""

    @abc.abstractmethod
    def bound(self, k: Any, v: Any) -> Pair:
        """Return the largest error the format allows for each element; derived in the docstring of each codec."""

    def vector_bound(self, k: Any, v: Any) -> Pair:
        """Return the largest length of each vector's error, float32 [tokens, heads, 1].

        Rotated formats have a far sharper one than the length of :meth:`bound`: a rotation keeps lengths.
        """
        return Pair(*(vector_length(x) for x in self.bound(k, v)))

    def round_trip(self, k: Any, v: Any) -> Pair:
        """Return K and V as they come back."""
        return self.decode_sequence(self.encode_sequence(k, v))


@dataclass(frozen=True)
class SlotCodec(Codec):
    """A format in which every (token, KV head) owns the bytes ``fields``, in that order.

    ``idempotent_fields`` are those that a second encoding writes again bit by bit.
    """

    idempotent_fields: ClassVar[frozenset[str]] = frozenset()
    exponent_scales: ClassVar[bool] = False  # scale fields are one-byte exponents, not floats

    def __post_init__(self) -> None:
        slot_format(self.name).parts(1, self.head_size)  # raises LayoutError for a geometry no engine stores

    @property
    def fields(self) -> tuple[Part, ...]:
        """The parts of one slot in byte order, from :mod:`kvverify.layout.formats`."""
        return slot_format(self.name).parts(1, self.head_size)

    @property
    def bytes_per_token_and_head(self) -> int:
        """Bytes of one slot: K and V of one token and KV head, padding included."""
        return slot_format(self.name).cell_bytes(1, self.head_size)

    @property
    def slices(self) -> dict[str, slice]:
        """The byte range of each field inside a slot."""
        ranges, offset = {}, 0
        for part in self.fields:
            ranges[part.name] = slice(offset, offset + part.length)
            offset += part.length
        return ranges

    def encode(self, k: Any, v: Any) -> Bytes:
        """Return the slots, uint8 [tokens, heads, bytes_per_token_and_head].

        Raises:
            CodecError: shape, dtype or numbers that the format cannot take.
        """
        keys, values = pair(k, v, self.head_size)
        tokens, heads, _ = keys.shape
        self._check_heads(heads)
        slots = np.zeros((tokens, heads, self.bytes_per_token_and_head), np.uint8)  # padding bytes are zeros
        slices = self.slices
        for chunk in token_chunks(tokens, heads * self.head_size):
            for name, data in self._encode(keys[chunk], values[chunk], first_token=chunk.start).items():
                slots[chunk, :, slices[name]] = data
        return slots

    def decode(self, slots: Any, *, check: bool = True) -> Pair:
        """Return K and V, float32 [tokens, heads, head_size], from uint8 slots [tokens, heads, slot bytes].

        With ``check`` the invariants of the format are tested first, so that bytes of another preset, head size or byte
        order raise where they can be told apart (:meth:`invalid` of each codec says which can). Without, damaged slots
        are decoded as an engine would.

        Raises:
            CodecError: dtype, rank or size of the slots; bytes this codec never writes.
        """
        raw = as_slots(slots, self.bytes_per_token_and_head, self._owner(slots))
        tokens, heads, _ = raw.shape
        self._check_heads(heads)
        out = Pair(
            np.empty((tokens, heads, self.head_size), np.float32), np.empty((tokens, heads, self.head_size), np.float32)
        )
        for chunk in token_chunks(tokens, heads * self.head_size):
            fields = {name: raw[chunk, :, where] for name, where in self.slices.items()}
            if check:
                self._refuse(self.invalid(fields), chunk.start)
            with np.errstate(over="ignore", invalid="ignore"):  # damaged scales, infinite norms
                out.k[chunk], out.v[chunk] = self._decode(fields)
        return out

    def slots_from_bytes(self, data: bytes | bytearray | memoryview, heads: int) -> Bytes:
        """Return a buffer of whole slots as uint8 [tokens, heads, slot bytes].

        Raises:
            CodecError: the buffer is truncated or over-long.
        """
        row = heads * self.bytes_per_token_and_head
        size = memoryview(data).nbytes
        if size == 0 or size % row:
            raise CodecError(
                f"{self.name} at head size {self.head_size}: {size} bytes are no whole number of tokens; expected a multiple of "
                f"{heads} heads x {self.bytes_per_token_and_head} = {row} bytes ({size % row} left over)"
            )
        return np.frombuffer(data, np.uint8).reshape(-1, heads, self.bytes_per_token_and_head)

    def encode_sequence(self, k: Any, v: Any) -> Encoded:
        """Return the slots as one plane."""
        slots = self.encode(k, v)
        return Encoded(self.name, slots.shape[0], slots.shape[1], self.head_size, {"slots": slots})

    def decode_sequence(self, encoded: Encoded) -> Pair:
        """Decode the plane of slots."""
        require_own(self, encoded, {"slots": (encoded.tokens, encoded.heads, self.bytes_per_token_and_head)})
        return self.decode(encoded.planes["slots"])

    def step(self, k: Any, v: Any) -> Pair:
        """Return the format's step at each element."""
        return self._over_chunks(self._step, k, v)

    def bound(self, k: Any, v: Any) -> Pair:
        """Return the largest error the format allows for each element."""
        return self._over_chunks(self._bound, k, v)

    def vector_bound(self, k: Any, v: Any) -> Pair:
        """Return the largest length of each vector's error, float32 [tokens, heads, 1]."""
        return self._over_chunks(self._vector_bound, k, v, width=1)

    def invalid(self, fields: Mapping[str, Bytes]) -> dict[str, Bools]:
        """Return, for each broken promise in words, the cells [tokens, heads] that break it."""
        return {}

    @abc.abstractmethod
    def _encode(self, k: Floats, v: Floats, *, first_token: int = 0) -> dict[str, Bytes]:
        """Return each field's bytes [tokens, heads, length]."""

    @abc.abstractmethod
    def _decode(self, fields: Mapping[str, Bytes]) -> tuple[Floats, Floats]:
        """Return K and V of the fields' bytes [tokens, heads, length]."""

    @abc.abstractmethod
    def _step(self, k: Floats, v: Floats) -> Pair: ...

    @abc.abstractmethod
    def _bound(self, k: Floats, v: Floats) -> Pair: ...

    def _vector_bound(self, k: Floats, v: Floats) -> Pair:
        return Pair(*(vector_length(x) for x in self._bound(k, v)))

    def _check_heads(self, heads: int) -> None:
        """Refuse a number of heads the options do not fit."""

    def _over_chunks(self, function: Any, k: Any, v: Any, width: int = 0) -> Pair:
        keys, values = pair(k, v, self.head_size)
        self._check_heads(keys.shape[1])
        shape = (*keys.shape[:2], width or self.head_size)
        out = Pair(np.empty(shape, np.float32), np.empty(shape, np.float32))
        for chunk in token_chunks(keys.shape[0], keys.shape[1] * self.head_size):
            out.k[chunk], out.v[chunk] = function(keys[chunk], values[chunk])
        return out

    def _owner(self, slots: Any) -> str:
        shape: tuple[int, ...] = tuple(getattr(slots, "shape", ()))
        size = int(shape[2]) if len(shape) == 3 else 0
        if size == self.bytes_per_token_and_head:
            return f"{self.name} at head size {self.head_size}"
        others = formats_with(size)
        hint = f" ({size} bytes are {' or '.join(others)})" if others else ""
        return f"{self.name} at head size {self.head_size}{hint}"

    def _refuse(self, broken: Mapping[str, Bools], first_token: int) -> None:
        for promise, cells in broken.items():
            if not cells.any():
                continue
            token, head = (int(i[0]) for i in np.nonzero(cells))
            raise CodecError(
                f"{self.name} at head size {self.head_size} never writes these bytes: {promise} at token {first_token + token}, "
                f"head {head} ({int(cells.sum())} of {cells.size} slots); expected slots of this preset, head size and byte order"
            )


def vector_length(x: Floats) -> Floats:
    """Return the Euclidean length over the last axis, float32 [..., 1], of numbers of any size."""
    largest = np.maximum(np.abs(x).max(-1, keepdims=True), np.float32(2.0**-126))
    return np.asarray(np.sqrt(((x / largest) ** 2).sum(-1, keepdims=True)) * largest, np.float32)


def formats_with(slot_bytes: int, head_sizes: tuple[int, ...] = (64, 96, 128, 256)) -> list[str]:
    """Return the formats, with the head size, whose slots have ``slot_bytes`` bytes."""
    found = []
    for name, fmt in FORMATS.items():
        for head_size in head_sizes:
            possible = fmt.fixed_head_size is None and not (fmt.power_of_two and head_size & (head_size - 1))
            if possible and head_size % fmt.multiple_of == 0 and fmt.cell_bytes(1, head_size) == slot_bytes:
                found.append(f"{name} at head size {head_size}")
    return found


def require_own(codec: Codec, encoded: Encoded, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse planes of another codec, or of other shapes than the geometry asks for.

    Raises:
        CodecError: names the plane, its shape and the expected one.
    """
    if encoded.codec != codec.name or encoded.head_size != codec.head_size:
        raise CodecError(
            f"planes of {encoded.codec} at head size {encoded.head_size} given to {codec.name} at {codec.head_size}; "
            f"decode them with their own codec"
        )
    if set(encoded.planes) != set(shapes):
        raise CodecError(f"{codec.name}: got the planes {sorted(encoded.planes)}; expected {sorted(shapes)}")
    for name, shape in shapes.items():
        plane = encoded.planes[name]
        if plane.dtype != np.uint8 or plane.shape != shape:
            raise CodecError(
                f"{codec.name}: plane {name!r} is {plane.dtype} of shape {list(plane.shape)} ({plane.nbytes} bytes); "
                f"expected uint8 of shape {list(shape)}"
            )
