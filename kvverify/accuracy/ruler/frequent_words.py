"""Frequent words: coded words whose frequencies follow a zeta distribution; the most frequent one is noise."""

from __future__ import annotations

import math
import random
import string
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kvverify.accuracy.ruler.drawing import shuffled
from kvverify.accuracy.ruler.needles import distinct
from kvverify.accuracy.ruler.sizing import Counts, Draft, Question, TooShort
from kvverify.accuracy.ruler.templates import FREQUENT_WORDS as ASKED

LETTERS = 6
WORDS_ASKED = 3
NOISE_WORD = "..."
ALPHA = 2.0
ZETA = math.pi**2 / 6  # zeta(2)
TOKENS_PER_WORD = 50  # of the budget, for each word of the vocabulary
LEAST_WORDS = 100  # in the whole text: with fewer, third and fourth come equally often


def frequencies(vocabulary: int, words: int) -> NDArray[np.int64]:
    """Return how often each rank comes among ``words``: words · k^-2 / zeta(2), rounded down."""
    ranks = np.arange(1, vocabulary + 1)
    shares: NDArray[np.int64] = (words * ranks**-ALPHA / ZETA).astype(np.int64)
    return shares


class FrequentWords:
    """Writes the task's samples."""

    many = None

    def __init__(self, counts: Counts, budget: int) -> None:
        self._counts, self._budget = counts, budget
        self._vocabulary = budget // TOKENS_PER_WORD
        if self._vocabulary <= WORDS_ASKED + 1:
            raise TooShort((WORDS_ASKED + 2) * TOKENS_PER_WORD)

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a word of the text, in a distribution that is rounded down."""
        names = distinct(lambda: "".join(rng.choices(string.ascii_lowercase, k=LETTERS)), self._vocabulary)
        names[0] = NOISE_WORD
        places = rng.getrandbits(32)
        each = np.array(self._counts.once([f" {name}" for name in names]))
        opening, tail = ASKED.head.rstrip(), ASKED.tail[1:] + ASKED.answer_prefix  # a part begins with a space
        fixed = self._counts.opening(opening) + self._counts.of(tail)

        @lru_cache(maxsize=1)
        def listed(units: int) -> list[str]:
            often = frequencies(len(names), units).tolist()
            words = [name for name, times in zip(names, often, strict=True) for _ in range(times)]
            return shuffled(words, places)

        def tokens(units: int) -> int:
            return fixed + int(frequencies(len(names), units) @ each)

        def ending(units: int) -> int:
            last = listed(units)[-1]
            with_break, without = self._counts.once([f" {last}\n", f" {last}"])
            return with_break - without

        def write(units: int) -> Question:
            prompt = f"{ASKED.head}{' '.join(listed(units))}{ASKED.tail}"
            return Question(prompt, ASKED.answer_prefix, tuple(names[1 : 1 + WORDS_ASKED]))

        return Draft(tokens, write, LEAST_WORDS, lambda: 2 * self._budget, ending)
