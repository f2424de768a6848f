"""Two arrays of bytes that should be equal: how many differ, and a line that says in which field, token and head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.compare import FieldDifference
from kvverify.codecs.compare import compare_slots as field_differences
from kvverify.codecs.interface import SlotCodec

Bytes = NDArray[np.uint8]
SHOWN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """What a comparison found; ``headline`` is empty where nothing differs."""

    compared_bytes: int
    different_bytes: int
    headline: str


def compare_slots(
    codec: SlotCodec, expected: Bytes, found: Bytes, names: Sequence[str], *, left_out: Sequence[str] = ()
) -> Difference:
    """Compare slots uint8 [tokens, heads, slot bytes] field by field; ``left_out`` fields are not compared.

    ``names`` says what each token is.
    """
    assert expected.shape == found.shape and expected.dtype == found.dtype == np.uint8  # noqa: PT018
    assert len(names) == expected.shape[0]
    found, compared = found.copy(), expected.size
    for name in left_out:
        where = codec.slices[name]
        found[..., where] = expected[..., where]
        compared -= expected[..., where].size
    fields = field_differences(expected, found, codec.fields, codec=codec)
    return Difference(compared, sum(f.wrong_bytes for f in fields), _headline(fields, names))


def _headline(fields: Sequence[FieldDifference], names: Sequence[str]) -> str:
    """Name the first wrong field with its first wrong cell and what explains it, and the others with their counts."""
    if not fields:
        return ""
    first, *others = fields
    bytes_ = [x[:SHOWN_BYTES].hex(" ") for x in (first.found, first.expected)]
    hint = f" ({first.hints[0]})" if first.hints else ""
    more = "".join(f"; {f.wrong_bytes:,} in {f.field}" for f in others)
    return (
        f"field {first.field}: token {first.token} ({names[first.token]}), head {first.head}, begins {bytes_[0]}, "
        f"expected {bytes_[1]}; {first.wrong_bytes:,} of {first.compared_bytes:,} bytes differ{hint}{more}"
    )


def compare_numbers(
    expected: NDArray[np.generic], found: NDArray[np.generic], what: str, names: Sequence[str]
) -> Difference:
    """Compare numbers [tokens, heads, head_size] of one dtype bit by bit; a NaN equals the same NaN."""
    assert expected.shape == found.shape and expected.dtype == found.dtype  # noqa: PT018
    bits = np.dtype(f"u{expected.dtype.itemsize}")
    wanted, got = np.ascontiguousarray(expected).view(bits), np.ascontiguousarray(found).view(bits)
    different = wanted != got
    count = int(different.sum())
    if not count:
        return Difference(expected.nbytes, 0, "")
    token, head, dim = (int(i[0]) for i in np.nonzero(different))
    headline = (
        f"decoded {what}: token {token} ({names[token]}), head {head}, dimension {dim} is {found[token, head, dim]}, "
        f"expected {expected[token, head, dim]}; {count:,} of {expected.size:,} numbers differ"
    )
    return Difference(expected.nbytes, count * expected.dtype.itemsize, headline)


def compare_plain(expected: bytes, found: bytes, what: str) -> Difference:
    """Compare two runs of bytes; different lengths are a difference."""
    length = min(len(expected), len(found))
    wanted, got = np.frombuffer(expected, np.uint8), np.frombuffer(found, np.uint8)
    wrong = np.flatnonzero(wanted[:length] != got[:length])
    count = len(wrong) + abs(len(expected) - len(found))
    if not count:
        return Difference(len(expected), 0, "")
    if len(expected) != len(found):
        return Difference(length, count, f"{what} has {len(found):,} bytes, expected {len(expected):,}")
    first = int(wrong[0])
    here = found[first : first + SHOWN_BYTES].hex(" "), expected[first : first + SHOWN_BYTES].hex(" ")
    return Difference(
        length, count, f"{what}: byte {first:,} on is {here[0]}, expected {here[1]}; {count:,} bytes differ"
    )


def joined(*parts: Difference) -> Difference:
    """Return several comparisons as one; the first headline is kept."""
    return Difference(
        sum(p.compared_bytes for p in parts),
        sum(p.different_bytes for p in parts),
        next((p.headline for p in parts if p.headline), ""),
    )
