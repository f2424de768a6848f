"""Essays as a haystack: words of a text from one of several offsets, repeated as often as needed, and where its sentences begin."""

from __future__ import annotations

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
    """``words`` as long as the largest sample wants; ``starts`` of sentences. ``sums[n]`` are the tokens of n words, each with a space before it."""

    cluster: str
    words: list[str]
    starts: NDArray[np.int64]
    sums: NDArray[np.int64]

    def sentences(self, words: int) -> int:
        """Return the number of sentences in the first ``words``, an unfinished one included."""
        return int(np.searchsorted(self.starts, words, side="left"))


def essays(corpus: Corpus, counts: Counts, *, words: int, part: int = 0, parts: int = 1) -> Haystack:
    """Return at least ``words`` words of the text, from offset ``part`` of ``parts``, which lie evenly and begin a sentence."""
    text = corpus.text.split()
    starts = sentence_starts(text)
    first = starts[min(len(starts) - 1, int(np.searchsorted(starts, len(text) * part // parts)))]
    turned = text[first:] + text[:first]
    turned_starts = np.array(sorted((s - first) % len(text) for s in starts), dtype=np.int64)
    times = max(1, -(-words // len(text)))
    each = np.array(counts.each([f" {w}" for w in turned]), dtype=np.int64)
    return Haystack(
        cluster=corpus.label if parts == 1 else f"{corpus.label}@{first}",
        words=turned * times,
        starts=np.concatenate([turned_starts + k * len(text) for k in range(times)]),
        sums=np.concatenate([[0], np.cumsum(np.tile(each, times))]),
    )
