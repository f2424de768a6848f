"""Two arrays of bytes that should be equal: how many differ, and a line that says in which field, token and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
SHOWN_BYTES = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """What a comparison found; ``headline`` is empty where nothing differs."""

    compared_bytes: int
    different_bytes: int
    headline: str


def compare_slots(
    expected: Bytes, found: Bytes, fields: Mapping[str, slice], names: Sequence[str], *, left_out: Sequence[str] = ()
) -> Difference:
    """Compare slots uint8 [tokens, heads, slot bytes] field by field; ``left_out`` fields are not compared.

    Raises:
        AssertionError: the two have not the same shape, or no token has a name.
    """
    assert expected.shape == found.shape and expected.dtype == found.dtype == np.uint8  # noqa: PT018
    assert len(names) == expected.shape[0]
    different = expected != found
    compared, counts = 0, {}
    for name, where in fields.items():
        if name in left_out:
            different[..., where] = False
        else:
            compared += different[..., where].size
            counts[name] = int(different[..., where].sum())
    wrong = {name: count for name, count in counts.items() if count}
    return Difference(
        compared, sum(wrong.values()), _headline(expected, found, different, fields=fields, wrong=wrong, names=names)
    )


def _headline(
    expected: Bytes,
    found: Bytes,
    different: NDArray[np.bool_],
    *,
    fields: Mapping[str, slice],
    wrong: Mapping[str, int],
    names: Sequence[str],
) -> str:
    if not wrong:
        return ""
    worst = next(iter(wrong))
    where = fields[worst]
    token, head, byte = (int(i[0]) for i in np.nonzero(different[..., where]))
    first = where.start + byte
    last = min(first + SHOWN_BYTES, where.stop)
    got, want = (x[token, head, first:last].tobytes().hex(" ") for x in (found, expected))
    shares = ", ".join(f"{count:,} in {name}" for name, count in wrong.items())
    return (
        f"field {worst}: token {token} ({names[token]}), head {head}, byte {first} on is {got}, expected {want}; "
        f"bytes that differ: {shares}"
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
