from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.arena.contents import SPECIAL, ZERO_BYTES, contents
from kvverify.arena.payload import rows

KEYS = st.integers(0, 2**64 - 1)


@given(KEYS, st.integers(0, 2**34), st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 1200))
def test_a_run_is_the_same_whatever_it_is_read_with(key: int, start: int, before: int, after: int, length: int) -> None:
    whole = contents([key], [start], before + length + after)[0]
    part = contents([key], [start + before], length)[0]
    assert part.tobytes() == whole[before : before + length].tobytes()


@given(st.lists(st.tuples(KEYS, st.integers(0, 2**33)), min_size=1, max_size=6), st.integers(1, 900))
def test_each_row_has_its_own_key_and_phase(sources: list[tuple[int, int]], length: int) -> None:
    together = contents([k for k, _ in sources], [s for _, s in sources], length)
    assert together.shape == (len(sources), length)
    for row, (key, start) in zip(together, sources, strict=True):
        assert row.tobytes() == contents([key], [start], length)[0].tobytes()


def test_no_contents_of_nothing() -> None:
    assert contents([], [], 5).shape == (0, 5)


@pytest.mark.parametrize("key", [1, 2**63, 0x1234_5678_9ABC_DEF0])
def test_a_page_holds_what_copies_mistreat_and_still_names_its_address(key: int) -> None:
    page = contents([key], [4096], 1 << 20)[0]
    plain = rows([key], [4096], 1 << 20)[0]
    words = set(page.view(np.uint64).tolist())
    assert set(SPECIAL.tolist()) <= words
    zeros = (page.reshape(-1, ZERO_BYTES) == 0).all(1).mean()
    assert 1 / 256 < zeros < 1 / 64
    assert (page != plain).mean() < 0.05
