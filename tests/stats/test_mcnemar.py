"""McNemar's exact test against the binomial distribution and published counts."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.stats.mcnemar import mcnemar_exact

counts = st.integers(0, 400)


@given(counts, counts)
def test_it_is_twice_the_smaller_binomial_tail(b: int, c: int) -> None:
    tail = sum(comb(b + c, i) for i in range(min(b, c) + 1))
    assert mcnemar_exact(b, c) == pytest.approx(min(1.0, 2 * tail / 2 ** (b + c)), rel=1e-10)
    assert mcnemar_exact(b, c) == mcnemar_exact(c, b)


@pytest.mark.parametrize(
    ("b", "c", "p"),
    [(1, 7, 0.0703125), (6, 16, 0.0524788), (0, 0, 1.0), (5, 5, 1.0), (0, 1, 1.0), (0, 10, 2 / 1024)],
)
def test_known_values(b: int, c: int, p: float) -> None:
    # the first two: Bentur 2009 and Cavo 2012, as in Fagerland, Lydersen and Laake, Stat Med 33:2850 (2014)
    assert mcnemar_exact(b, c) == pytest.approx(p, rel=1e-5)


def test_many_discordant_pairs_overflow_nothing() -> None:
    assert mcnemar_exact(100_000, 100_000) == 1.0
    assert 0 < mcnemar_exact(3000, 3400) < 1e-6
    assert mcnemar_exact(0, 5000) == 0.0  # 2**-4999 is below the smallest float


@given(st.integers(1, 300), st.data())
def test_p_falls_as_the_counts_part(total: int, data: st.DataObject) -> None:
    fewer = data.draw(st.integers(0, total // 2))
    more = data.draw(st.integers(fewer, total // 2))
    assert mcnemar_exact(fewer, total - fewer) <= mcnemar_exact(more, total - more) * (1 + 1e-10)


def test_counts_below_0_are_refused() -> None:
    with pytest.raises(ValueError, match="McNemar's test of -1 and 3 discordant pairs: expected no negative count"):
        mcnemar_exact(-1, 3)
