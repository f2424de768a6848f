"""A planted damage like that of a bad quantisation: single characters of a right answer flip. Every exact rule must see it."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import score
from tests.accuracy.items.drawing import draw, length_of, perfect

EXACT = [
    "invoice-json",
    "ticket-json",
    "tool-text",
    "tool-chat",
    "sql-tables",
    "code-functions",
    "word-problems",
    "copies",
    "long-table",
    "full-context",
]


def flipped(text: str, rate: float, source: random.Random) -> str:
    """Return ``text`` with each character changed by one bit of its low seven with probability ``rate``."""
    return "".join(chr(ord(c) ^ (1 << source.randrange(7))) if source.random() < rate else c for c in text)


def mean(samples: list[Sample], rate: float) -> float:
    source = random.Random(1)
    return fmean(score(sample, flipped(perfect(sample), rate, source)).value for sample in samples)


@pytest.mark.parametrize("name", EXACT)
def test_flipped_characters_lower_the_score_and_more_of_them_lower_it_further(name: str) -> None:
    samples = draw(name, samples=12, length=length_of(name))
    untouched, some, most = (mean(samples, rate) for rate in (0.0, 0.03, 0.9))
    assert untouched == 1.0
    assert most < some or some < 0.2
    assert most < 0.2
    if name in ("invoice-json", "ticket-json", "sql-tables", "code-functions", "copies"):
        assert some < 1.0


def test_broken_json_is_counted_as_a_format_error_and_a_wrong_value_is_not() -> None:
    [sample] = draw("invoice-json", samples=1)
    right = perfect(sample)
    assert score(sample, right[:-1]).format_error.startswith("not JSON")
    wrong = score(sample, right.replace('"date": "2', '"date": "3'))
    assert (wrong.value, wrong.format_error) == (0.0, "")
    assert 0.7 < wrong.aspects["parameters"] < 1.0
