"""Prompt lengths at which both tiers hit the same."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.errors import KvverifyError
from kvverify.live.engine import Expected
from kvverify.live.engines.lengths import common_lengths


def lmcache(block: int, chunk: int, length: int) -> Expected:
    lower, hbm = min(length // chunk * chunk, length - 1), (length - 1) // block * block
    return Expected(lower, hbm, length - lower)


def test_the_lengths_of_the_gpu_runs() -> None:
    lengths = list(common_lengths(lambda n: lmcache(32, 64, n), unit=64, at_least=570, at_most=700))
    assert lengths == [*range(577, 609), *range(641, 673)]
    assert 581 in lengths
    assert 611 not in lengths


@given(st.integers(1, 6), st.sampled_from([1, 2, 16, 32]), st.integers(1, 2000))
def test_every_length_is_common_and_none_is_left_out(blocks: int, block: int, least: int) -> None:
    chunk = blocks * block

    def expected(length: int) -> Expected:
        return lmcache(block, chunk, length)

    found = list(itertools.islice(common_lengths(expected, unit=chunk, at_least=least), 20))
    wanted = (
        n
        for n in itertools.count(least)
        if expected(n).hit_tokens == expected(n).hbm_hit_tokens and expected(n).hit_tokens >= 3 * chunk
    )
    assert found == list(itertools.islice(wanted, 20))


def test_at_least_three_units() -> None:
    assert next(common_lengths(lambda n: lmcache(32, 256, n), unit=256)) == 3 * 256 + 1


def test_no_common_length_is_told() -> None:
    with pytest.raises(KvverifyError, match="multiple of the block size"):
        next(common_lengths(lambda n: Expected((n - 1) // 7 * 7 + 1, (n - 1) // 7 * 7, 1), unit=7))


def test_a_context_that_is_too_short_has_none() -> None:
    assert list(common_lengths(lambda n: lmcache(32, 256, n), unit=256, at_most=700)) == []
