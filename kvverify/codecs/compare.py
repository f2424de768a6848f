"""Which field of which slot differs, and what it looks like: a planted or a real fault gets the name of its field.

:func:`compare_slots` needs the field map only; with the ``codec`` it also reads indices and numbers. A hint is stated
when it explains every wrong cell of a field, never on a majority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvverify.codecs.arrays import Bytes, Floats
from kvverify.codecs.interface import SlotCodec
from kvverify.codecs.packing import floats_of, unpack
from kvverify.errors import CodecError
from kvverify.layout.formats import Part
from kvverify.layout.placement import Role


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """One field that differs: in how many (token, head) cells and bytes, the first of them, and what explains all of them."""

    field: str
    role: Role
    wrong_cells: int
    wrong_bytes: int
    compared_bytes: int
    token: int
    head: int
    expected: bytes
    found: bytes
    hints: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Say it in one line."""
        text = (
            f"{self.field} ({self.role}): {self.wrong_cells} cells, {self.wrong_bytes} of {self.compared_bytes} bytes; first at "
            f"token {self.token}, head {self.head}: expected {self.expected.hex(' ')}, found {self.found.hex(' ')}"
        )
        return text + "".join(f"; {hint}" for hint in self.hints)


def compare_slots(
    expected: Bytes, found: Bytes, fields: Sequence[Part], *, codec: SlotCodec | None = None
) -> list[FieldDifference]:
    """Return the fields in which ``found`` differs from ``expected``, uint8 [tokens, heads, slot bytes], in byte order.

    Padding is compared too. The order of the hints is from the most to the least specific.

    Raises:
        CodecError: shapes differ, or are not the size of the fields.
    """
    size = sum(part.length for part in fields)
    if expected.shape != found.shape or expected.ndim != 3 or expected.shape[-1] != size:
        raise CodecError(
            f"slots of shape {list(expected.shape)} and {list(found.shape)}; expected twice [tokens, heads, {size}], the "
            f"{size} bytes of the fields {', '.join(part.name for part in fields)}"
        )
    left, right = _cut(expected, fields), _cut(found, fields)
    return [
        _difference(part, left, right, codec)
        for part in fields
        if not np.array_equal(left[part.name], right[part.name])
    ]


def _cut(slots: Bytes, fields: Sequence[Part]) -> dict[str, Bytes]:
    cells, offset = {}, 0
    for part in fields:
        cells[part.name] = np.ascontiguousarray(slots[:, :, offset : offset + part.length])
        offset += part.length
    return cells


def _difference(
    part: Part, left: Mapping[str, Bytes], right: Mapping[str, Bytes], codec: SlotCodec | None
) -> FieldDifference:
    expected, found = left[part.name], right[part.name]
    wrong = expected != found
    cells = wrong.any(-1)
    token, head = (int(i[0]) for i in np.nonzero(cells))
    hints = [*_places(part, left, right), *_bytewise(expected, found)]
    if part.role is Role.SCALE:
        exponents = part.length not in (2, 4) or (codec is not None and codec.exponent_scales)
        hints += _exponents(expected, found) if exponents else _numbers(expected, found, part.length)
    if codec is not None and part.role is Role.DATA:
        hints += _indices(expected, found, _bits(part, codec.head_size), codec.head_size)
    return FieldDifference(
        part.name,
        part.role,
        int(cells.sum()),
        int(wrong.sum()),
        expected.size,
        token,
        head,
        expected[token, head].tobytes(),
        found[token, head].tobytes(),
        tuple(dict.fromkeys(hints)),
    )


def _places(part: Part, left: Mapping[str, Bytes], right: Mapping[str, Bytes]) -> Iterator[str]:
    """Explain bytes that belong elsewhere: to another field, token or head."""
    expected, found = left[part.name], right[part.name]
    for name, other in left.items():
        if name != part.name and other.shape == found.shape and np.array_equal(other, found):
            yield f"it holds {name}'s bytes"
    for axis, what in ((0, "token"), (1, "head")):
        for step in (1, -1):
            if expected.shape[axis] > 1 and np.array_equal(np.roll(expected, step, axis), found):
                yield f"each {what} holds the {'previous' if step == 1 else 'next'} {what}'s bytes"


def _bytewise(expected: Bytes, found: Bytes) -> Iterator[str]:
    """Explain fields whose bytes were moved or turned as a whole."""
    changes: dict[str, Callable[[Bytes], Bytes]] = {
        "every byte has its nibbles swapped": lambda b: b >> np.uint8(4) | b << np.uint8(4),
        "every byte has its bits reversed": lambda b: np.packbits(
            np.unpackbits(b, axis=-1, bitorder="little"), axis=-1
        ),
        "every bit is inverted": lambda b: ~b,
        "it was never written: zeros": np.zeros_like,
        "shifted by one byte to higher offsets": lambda b: np.roll(b, 1, -1),
        "shifted by one byte to lower offsets": lambda b: np.roll(b, -1, -1),
    }
    if expected.shape[-1] % 2 == 0:
        changes["bytes swapped in pairs: other byte order"] = lambda b: b.reshape(*b.shape[:-1], -1, 2)[
            ..., ::-1
        ].reshape(b.shape)
    if expected.shape[-1] == 4:
        changes["bytes in reverse: other byte order"] = lambda b: b[..., ::-1]
    for hint, change in changes.items():
        changed = change(expected)
        # Two shifted bytes look like swapped ones; in fields that short the swap is the name.
        if np.array_equal(changed, found) and not (hint.startswith("shifted") and expected.shape[-1] <= 2):
            yield hint


def _numbers(expected: Bytes, found: Bytes, length: int) -> Iterator[str]:
    """Explain fp16 and fp32 fields by arithmetic."""
    dtype, unsigned = ("<f2", "<u2") if length == 2 else ("<f4", "<u4")
    before, after = floats_of(expected, dtype), floats_of(found, dtype)
    wrong = (expected != found).any(-1)
    steps = (found.view(unsigned).astype(np.int64) - expected.view(unsigned).astype(np.int64))[..., 0][wrong]
    sign_bit = 1 << (8 * length - 1)
    if (np.abs(steps) == sign_bit).all():
        yield "every wrong one has its sign flipped"
    elif len(set(steps.tolist())) == 1 and abs(int(steps[0])) <= 16:
        yield f"every wrong one is {int(steps[0]):+d} in the last place"
    elif (np.abs(steps) == 1).all():
        yield "every wrong one is one unit beside it in the last place: rounded another way"
    if length == 4 and ((found.view("<u4") ^ expected.view("<u4")) < 16).all():
        yield "only the low four mantissa bits differ: the zero points hidden there, moved through arithmetic or lost"
    yield from _ratio(before[wrong], after[wrong], 2.0**-9 if length == 2 else 2.0**-20)


def _ratio(before: Floats, after: Floats, tolerance: float) -> Iterator[str]:
    usable = (before != 0) & np.isfinite(before) & np.isfinite(after)
    if usable.sum() < 2 or not usable.all():
        return
    ratio = after / before
    middle = float(np.median(ratio))
    if middle > 0 and (np.abs(ratio / middle - 1) < tolerance).all() and abs(middle - 1) > tolerance:
        yield f"every wrong one is {middle:.4g} times the expected"
    elif (np.abs(ratio - 1) < 0.25).all() and abs(middle - 1) > tolerance:
        yield f"between {ratio.min():.4g} and {ratio.max():.4g} times the expected: another normalisation"


def _exponents(expected: Bytes, found: Bytes) -> Iterator[str]:
    """Explain one-byte exponents."""
    steps = found.astype(np.int64) - expected
    wrong = steps[steps != 0]
    if len(set(wrong.tolist())) == 1:
        yield f"every wrong exponent is {int(wrong[0]):+d}: the scale is 2^{int(wrong[0])} times the expected"


def _bits(part: Part, head_size: int) -> int:
    bits = part.length * 8 / head_size
    return int(bits) if bits in (2, 3, 4, 8) else 0


def _indices(expected: Bytes, found: Bytes, bits: int, count: int) -> Iterator[str]:
    """Explain packed indices: moved by one, mirrored, exchanged, or of a narrower table."""
    if not bits:
        return
    before, after = (unpack(data, bits, count).astype(np.int64) for data in (expected, found))
    wrong = before != after
    top = (1 << bits) - 1
    steps = (after - before)[wrong]
    if bits == 8:
        if (np.abs(steps) == 128).all():
            yield "every wrong code has its sign bit flipped"
        elif (np.abs(steps) == 1).all():
            yield "every wrong code is the neighbouring one"
        return
    if np.array_equal(after, top - before):
        yield f"every index is mirrored ({top} - index): the sign is flipped"
    elif np.array_equal(after, before ^ (1 << (bits - 1))):
        yield "every index has its top bit flipped: the sign"
    elif (steps == 1).all() or (steps == -1).all():
        yield f"{int(wrong.sum())} indices are {'one too high' if steps[0] == 1 else 'one too low'}"
    elif (np.abs(steps) == 1).all():
        yield f"{int(wrong.sum())} indices are off by one: a rounding or midpoints other than expected"
    even = np.arange(count) ^ 1
    if count % 2 == 0 and np.array_equal(before[..., even], after):
        yield "even and odd dimensions are exchanged"
    for width in range(1, bits):
        if before.max() >= 1 << width and after.max() < 1 << width:
            yield f"no index above {(1 << width) - 1}: those of a {width}-bit table"
            break


def explain(codec: SlotCodec, k: Any, v: Any, found: Bytes, suspects: Mapping[str, SlotCodec]) -> dict[str, list[str]]:
    """Return, for each field that differs from ``codec``'s, which suspects would have written exactly the found bytes.

    ``suspects`` are codecs with the same field names (another number of signs, the SoA norm, a table of another width),
    by the words that describe them.
    """
    expected = codec.encode(k, v)
    answers: dict[str, list[str]] = {}
    written = {words: _named(suspect, k, v) for words, suspect in suspects.items()}
    cells = _cut(found, codec.fields)
    for difference in compare_slots(expected, found, codec.fields, codec=codec):
        name = difference.field
        answers[name] = [
            words for words, named in written.items() if name in named and np.array_equal(named[name], cells[name])
        ]
    return answers


def turboquant_suspects(codec: Any, layers: int = 4) -> dict[str, SlotCodec]:
    """Return what a TurboQuant slot is most often mistaken for: signs or none, AoS or SoA norms, fp8 keys."""
    from kvverify.codecs.turboquant import PRESETS, TurboQuantCodec

    base = codec.name.removesuffix("_soa")
    other = base if codec.name.endswith("_soa") else f"{base}_soa"
    suspects: dict[str, SlotCodec] = {
        f"the slots of {other}": TurboQuantCodec(other, codec.head_size, signs_layer=codec.signs_layer, strict=False)
    }
    for layer in (None, *range(layers)):
        if layer != codec.signs_layer:
            words = (
                "keys rotated without signs, as vLLM does"
                if layer is None
                else f"keys with LMCache's signs of layer {layer}"
            )
            suspects[words] = TurboQuantCodec(codec.name, codec.head_size, signs_layer=layer, strict=False)
    for name in PRESETS:
        if not name.endswith("_soa") and name != base:
            suspects[f"the field of {name}"] = TurboQuantCodec(name, codec.head_size, strict=False)
    return suspects


def _named(codec: SlotCodec, k: Any, v: Any) -> dict[str, Bytes]:
    return _cut(codec.encode(k, v), codec.fields)
