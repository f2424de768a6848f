"""Numbers and names in reports read as the examples in their docstrings say."""

from __future__ import annotations

import doctest

from hypothesis import given
from hypothesis import strategies as st

from kvverify.report import words


def test_the_examples_hold() -> None:
    result = doctest.testmod(words)
    assert result.attempted >= 6
    assert result.failed == 0


@given(st.text())
def test_printable_text_is_printable_and_plain_text_stays(text: str) -> None:
    shown = words.printable(text)
    assert shown.isprintable()
    assert not text.isprintable() or shown == text


@given(st.integers(0, 2**63))
def test_sizes_keep_three_figures(count: int) -> None:
    value, unit = words.size(count).replace(",", "").split(" ")
    factor = 1024 ** ["B", "KiB", "MiB", "GiB", "TiB", "PiB"].index(unit)
    assert abs(float(value) * factor - count) <= 0.005 * factor + 1e-6 * count
