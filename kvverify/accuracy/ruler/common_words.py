"""Common words: ten words that come more often than others in a numbered list, after an example of the same form."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path

from kvverify.accuracy.ruler.drawing import Order, shuffled
from kvverify.accuracy.ruler.sizing import Counts, Draft, Question
from kvverify.accuracy.ruler.templates import COMMON_WORDS as ASKED
from kvverify.accuracy.ruler.words import WordList, common, english

COMMON = 10
LEAST_WORDS = COMMON + 1
SHORT = 4096  # below, words come less often
LONG_FORM, SHORT_FORM = (30, 3), (6, 1)  # how often common and other words come
LONG_EXAMPLE, SHORT_EXAMPLE = (40, 10, 3), (20, 3, 1)  # words of the example, and how often they come


def numbered(words: Sequence[str]) -> str:
    """Return words as a numbered list in one line.

    >>> numbered(["gold", "tree"])
    '1. gold 2. tree'
    """
    return " ".join([f"{n}. {word}" for n, word in enumerate(words, 1)])


class CommonWords:
    """Writes the task's samples."""

    many = None

    def __init__(self, counts: Counts, budget: int, *, length: int, corpora: Path | None) -> None:
        self._counts, self._budget, self._corpora = counts, budget, corpora
        self._often, self._seldom = LONG_FORM if length >= SHORT else SHORT_FORM
        self._example = LONG_EXAMPLE if length >= SHORT else SHORT_EXAMPLE
        self._few = _Pool(common(), counts)
        self._numbers = [0]

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a word of the list, however often it comes."""
        example, order, places = self._solved(rng), rng.getrandbits(64), rng.getrandbits(32)
        counts = self._counts
        fixed = counts.opening(ASKED.head) + counts.of(ASKED.head, ASKED.tail[1:] + ASKED.answer_prefix)
        fixed += counts.once([example.removeprefix(ASKED.head)])[0]
        few = _Drawn(self._few, order)

        @lru_cache(maxsize=1)
        def many() -> _Drawn:
            return _Drawn(self._many, order)

        def drawn(units: int) -> _Drawn:
            return few if units <= len(self._few.words) else many()

        @lru_cache(maxsize=1)
        def listed(units: int) -> list[str]:
            words = drawn(units).words(units)
            return mixed(words, self._often, self._seldom, places)

        def tokens(units: int) -> int:
            sums = drawn(units).sums(units)
            words = self._often * sums[COMMON] + self._seldom * (sums[units] - sums[COMMON])
            return fixed + words + self._of_numbers(self._often * COMMON + self._seldom * (units - COMMON))

        def ending(units: int) -> int:
            last = listed(units)[-1]
            return counts.of(f" {last}\n") - counts.of(f" {last}")

        def write(units: int) -> Question:
            prompt = f"{example}{ASKED.head}{numbered(listed(units))}{ASKED.tail}"
            return Question(prompt, ASKED.answer_prefix, tuple(drawn(units).words(COMMON)))

        return Draft(tokens, write, LEAST_WORDS, lambda: self._most(tokens), ending)

    def _solved(self, rng: random.Random) -> str:
        words, often, seldom = self._example
        drawn = [self._few.words[n] for n in Order(len(self._few.words), rng).first(words)]
        text = numbered(mixed(drawn, often, seldom, rng.getrandbits(32)))
        return f"{ASKED.head}{text}{ASKED.tail}{ASKED.answer_prefix} {numbered(drawn[:COMMON])}\n"

    @cached_property
    def _many(self) -> _Pool:
        return _Pool(english(self._corpora), self._counts)

    def _most(self, tokens: Callable[[int], int]) -> int:
        """Return a number of words that is too many, or all there are: of the English ones if all of wonderwords' fit, as upstream."""
        most, limit = 4 * LEAST_WORDS, len(self._few.words)
        while most < limit and tokens(most) <= self._budget:
            most *= 2
        if most < limit or tokens(limit) > self._budget:
            return min(most, limit)
        most = limit = len(self._many.words)
        return min(limit, self._budget)

    def _of_numbers(self, items: int) -> int:
        """Return the tokens of the numbers of so many items; the first follows a line break."""
        if items >= len(self._numbers):
            each = self._counts.once(["1.", *(f" {n}." for n in range(2, 2 * items + 1))])
            self._numbers = list(accumulate(each, initial=0))
        return self._numbers[items]


class _Pool:
    """A word list with the tokens of its words, each behind a space."""

    def __init__(self, words: WordList, counts: Counts) -> None:
        self.words = words.words
        self.tokens = counts.each([f" {word}" for word in words.words])


class _Drawn:
    """Words of a pool in an order of their own."""

    def __init__(self, pool: _Pool, order: int) -> None:
        self._pool, self._order = pool, Order(len(pool.words), random.Random(order))

    def words(self, many: int) -> list[str]:
        return [self._pool.words[n] for n in self._order.first(many)]

    def sums(self, many: int) -> list[int]:
        return list(accumulate([self._pool.tokens[n] for n in self._order.first(many)], initial=0))


def mixed(words: Sequence[str], often: int, seldom: int, seed: int) -> list[str]:
    """Return the first ten words ``often`` times and the others ``seldom`` times, in random order."""
    return shuffled(list(words[:COMMON]) * often + list(words[COMMON:]) * seldom, seed)
