"""RULER's metrics against upstream's definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.accuracy.ruler.scoring import prepared
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score, score

words = st.text("abcXYZ 12", min_size=1, max_size=4)


def sample(metric: str, *references: str) -> Sample:
    return Sample(task="t", length=0, index=0, metric=metric, references=references, max_tokens=1)


@given(references=st.lists(words, min_size=1, max_size=5), answer=st.text("abcXYZ 12\n\t", max_size=30))
def test_all_is_the_share_and_part_the_best(references: list[str], answer: str) -> None:
    text = answer.strip().replace("\t", "\n").strip().lower()
    found = [reference.lower() in text for reference in references]
    every, part = score(sample("ruler-all", *references), answer), score(sample("ruler-part", *references), answer)
    assert every == Score(sum(found) / len(found), binary=len(references) == 1)
    assert part == Score(float(max(found)), binary=True)


def test_part_is_the_maximum_over_spellings_and_not_their_mean() -> None:
    # lm-eval: one right answer of four spellings scored 0.25
    spellings = sample("ruler-part", "France", "french", "the Republic", "Gaul")
    assert score(spellings, " It was FRANCE.") == Score(1.0)
    assert score(spellings, "Spain") == Score(0.0)


def test_several_values_are_fractional_and_one_is_binary() -> None:
    assert score(sample("ruler-all", "1", "2", "3", "4"), "4 and 2") == Score(0.5, binary=False)
    assert score(sample("ruler-all", "1"), "21") == Score(1.0, binary=True)


def test_control_characters_become_line_breaks_and_are_not_deleted() -> None:
    # kvpress deletes them, so that "12\x0034" would hold 1234
    assert prepared(" \x0012\x0034\t5 \n") == "12\n34\n5"
    assert score(sample("ruler-all", "1234"), "12\x0034").value == 0.0


def test_a_sample_without_references_has_no_score() -> None:
    with pytest.raises(ValueError, match="t 0: a sample without references has no score"):
        score(sample("ruler-all"), "anything")
