"""Answers compared position by position: nothing that differs is equal, nothing unlike is compared."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.events import ReplayCompared, RequestAnswered
from kvverify.tierdiff.compare import DIVERGED, LARGEST, compare, compare_blocks, measure

positions = st.lists(st.tuples(st.integers(0, 3), st.floats(-20, 0)), min_size=1, max_size=12)


def answer(arm: str, generated: list[tuple[int, float]], request: int = 0) -> RequestAnswered:
    tokens, logprobs = [t for t, _ in generated], [p for _, p in generated]
    return RequestAnswered(
        arm=arm, round=0, request=request, prompt_hash=f"p{request}", tokens=tokens, logprobs=logprobs
    )


def compared(
    a: list[tuple[int, float]], b: list[tuple[int, float]], request: int = 0, arm: str = "dram"
) -> ReplayCompared:
    return compare(answer("hbm", a, request), answer(arm, b, request), judged=True, hits=(64, 64))


@given(positions)
def test_equal_answers_are_not_different(generated: list[tuple[int, float]]) -> None:
    found = compared(generated, list(generated))
    assert not found.refused
    assert not found.different
    assert found.positions == len(generated)


@given(positions, positions)
def test_different_means_any_token_or_bit(a: list[tuple[int, float]], b: list[tuple[int, float]]) -> None:
    found = compared(a, b)
    assert found.different == (
        [t for t, _ in a] != [t for t, _ in b] or any(p != q for (_, p), (_, q) in zip(a, b, strict=False))
    )
    if found.divergence >= 0:
        same = found.divergence
        assert [t for t, _ in a[:same]] == [t for t, _ in b[:same]]
        assert a[same : same + 1] == [] or b[same : same + 1] == [] or a[same][0] != b[same][0]
        assert found.largest_difference == max((abs(a[i][1] - b[i][1]) for i in range(same)), default=0.0)


def test_an_answer_that_ends_early_diverges() -> None:
    found = compared([(1, -1.0), (2, -1.0)], [(1, -1.0)])
    assert found.divergence == 1
    assert "the end" in found.detail


@pytest.mark.parametrize("hits", [(64, 32), (64, None), (None, None)])
def test_unequal_hit_lengths_are_refused_where_it_is_judged(hits: tuple[int | None, int | None]) -> None:
    a, b = answer("hbm", [(1, -1.0)]), answer("dram", [(2, -1.0)])
    assert "hit lengths" in compare(a, b, judged=True, hits=hits).refused
    assert not compare(a, b, judged=False, hits=hits).refused


def test_what_has_no_answer_is_refused() -> None:
    a, b = answer("hbm", [(1, -1.0)]), answer("dram", [(1, -1.0)])
    hits = (64, 64)
    assert "dram" in compare(a, replace(b, error="status 500"), judged=True, hits=hits).refused
    assert compare(a, replace(b, prompt_hash="other"), judged=True, hits=hits).refused
    assert compare(a, replace(b, logprobs=[]), judged=True, hits=hits).refused
    assert compare(replace(a, tokens=[], logprobs=[]), b, judged=True, hits=hits).refused


@pytest.mark.parametrize(
    ("before", "after", "hit", "verdict"),
    [
        ("abc", "cab", 3, "equal"),
        ("abct", "xcab", 3, "equal"),  # the tails differ
        ("aab", "aab", 3, "equal"),
        ("abc", "abx", 3, "different"),
        ("aab", "abb", 3, "different"),  # a block that is there once too seldom
        ("abc", "ab", 3, "refused"),
        ("", "", 0, "refused"),
    ],
)
def test_blocks(before: str, after: str, hit: int, verdict: str) -> None:
    none = ["", ""]
    found = compare_blocks(("hbm", "dram"), 0, 0, hit=hit, before=[*before, *none], after=[*none, *after])
    assert ("refused" if found.refused else "different" if found.different else "equal") == verdict


def test_the_excess_is_paired_by_prompt() -> None:
    floor = [compared([(1, -1.0)], [(1, -1.0 - i / 100)], i, "hbm-again") for i in range(20)]
    tier = [compared([(1, -1.0)], [(1, -1.5 - i / 100)], i) for i in range(20)]
    by_name = {e.statistic: e for e in measure(tier, reversed(floor), seed=1)}
    assert by_name[LARGEST].excess == pytest.approx(0.5)
    assert by_name[LARGEST].low == pytest.approx(0.5)  # every pair has the same difference
    assert (by_name[DIVERGED].floor, by_name[DIVERGED].high) == (0, 0)
    assert measure(tier, [], seed=1) == []
