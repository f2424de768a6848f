"""Essays as a haystack: words of a text from a place of it on, repeated as often as needed, and where its sentences begin."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kvverify.accuracy.corpora import Corpus
from kvverify.accuracy.ruler.sizing import Counts

_ENDS = re.compile(r"""[.?!]["'”’)\]]*$""")
_BEGINS = re.compile(r"""["'“‘(\[]*[A-Z0-9]""")
_ABBREVIATIONS = frozenset(
    [
        "Mr.",
        "Mrs.",
        "Ms.",
        "Dr.",
        "St.",
        "Jr.",
        "Sr.",
        "vs.",
        "e.g.",
        "i.e.",
        "etc.",
        "cf.",
        "No.",
        "Vol.",
        "Prof.",
        "Gen.",
        "Rev.",
        "Hon.",
        "Inc.",
        "Co.",
        "Ltd.",
        "viz.",
        "al.",
    ]
)
_INITIAL = re.compile(r"[\"'“‘(\[]*[A-Z]\.$")


def sentence_starts(words: list[str]) -> list[int]:
    """Return the positions of the words that begin a sentence.

    A word ends one if it ends in . ? or !, quotes aside, is no abbreviation or initial, and the next begins with a capital or a digit.
    """
    starts = [0] if words else []
    for position, (word, following) in enumerate(zip(words, islice(words, 1, None), strict=False), 1):
        if not _ENDS.search(word) or word in _ABBREVIATIONS or _INITIAL.match(word):
            continue
        if _BEGINS.match(following):
            starts.append(position)
    return starts


@dataclass(frozen=True, slots=True)
class Haystack:
    """``words`` as many as the largest sample wants; ``starts`` of sentences. ``sums[n]`` are the tokens of n words, each with a space before it."""

    cluster: str
    words: list[str]
    starts: NDArray[np.int64]
    sums: NDArray[np.int64]

    def sentences(self, words: int) -> int:
        """Return the number of sentences in the first ``words``, an unfinished one included."""
        return int(np.searchsorted(self.starts, words, side="left"))


class Essays:
    """A text as the place of many haystacks, each of ``length`` words, that begin at its sentences."""

    def __init__(self, corpus: Corpus, counts: Counts, length: int) -> None:
        text = corpus.text.split()
        self._label, self._length, self._own = corpus.label, length, len(text)
        self._sentences = sentence_starts(text)
        times = -(-length // len(text)) + 1  # a haystack may begin in the last sentence
        starts = np.array(self._sentences, dtype=np.int64)
        each = np.array(counts.each([f" {w}" for w in text]), dtype=np.int64)
        self._words = text * times
        self._starts = np.concatenate([starts + k * len(text) for k in range(times)])
        self._sums = np.concatenate([[0], np.cumsum(np.tile(each, times))])

    def part(self, part: int, parts: int) -> Haystack:
        """Return the haystack of offset ``part`` of ``parts``, which lie evenly. Its samples share it: they are one cluster."""
        nearest = int(np.searchsorted(self._starts, self._own * part // parts))
        first = self._sentences[min(len(self._sentences) - 1, nearest)]
        return self._beginning(first, self._label if parts == 1 else f"{self._label}@{first}")

    def anywhere(self, rng: random.Random) -> Haystack:
        """Return a haystack that begins at any sentence. Drawn for each sample by itself, samples are independent: it is no cluster."""
        return self._beginning(rng.choice(self._sentences), "")

    def _beginning(self, first: int, cluster: str) -> Haystack:
        last = first + self._length
        low, high = np.searchsorted(self._starts, (first, last))
        sums = self._sums[first : last + 1] - self._sums[first]
        return Haystack(cluster, self._words[first:last], self._starts[low:high] - first, sums)
