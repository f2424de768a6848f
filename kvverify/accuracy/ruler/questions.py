"""Questions over documents: the ones that hold the answer among as many others as fit."""

from __future__ import annotations

import random
from itertools import accumulate

from kvverify.accuracy.question_corpora import Item, Questions
from kvverify.accuracy.ruler.drawing import Order
from kvverify.accuracy.ruler.sizing import Counts, Draft, Question
from kvverify.accuracy.ruler.templates import DOCUMENT, DOCUMENTS


class QuestionsOverDocuments:
    """Writes the task's samples: question ``index`` of the corpus, in the order of its file."""

    def __init__(self, corpus: Questions, counts: Counts, budget: int) -> None:
        self._corpus, self._counts, self._budget = corpus, counts, budget
        self.many = len(corpus.items)
        self._tokens: dict[int, int] = {}  # of each document that was counted, by number
        self._headings = [0]

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a document."""
        item = self._corpus.items[index]
        chosen, places = _Chosen(item, len(self._corpus.documents), rng), rng.getrandbits(64)
        wording = DOCUMENTS.filled(query=item.query)
        counts = self._counts
        fixed = counts.opening(wording.head) + counts.once([wording.tail[2:] + wording.answer_prefix])[0]

        def tokens(units: int) -> int:
            return fixed + self._of_headings(units) + sum(self._of_documents(chosen.first(units)))

        def write(units: int) -> Question:
            numbers = chosen.first(units)
            random.Random(places).shuffle(numbers)
            texts = [self._corpus.documents[n] for n in numbers]
            context = "\n\n".join([DOCUMENT.format(number=n) + text for n, text in enumerate(texts, 1)])
            prompt = f"{wording.head}{context}{wording.tail}"
            return Question(prompt, wording.answer_prefix, item.answers, item.cluster)

        def most() -> int:
            many = max(8, len(item.gold))
            while tokens(many) <= self._budget:
                many *= 2
            return many

        return Draft(tokens, write, len(item.gold), most)

    def _of_documents(self, numbers: list[int]) -> list[int]:
        known = self._tokens
        new = [n for n in dict.fromkeys(numbers) if n not in known]
        if new:
            counted = self._counts.once([f"{self._corpus.documents[n]}\n\n" for n in new])
            known.update(zip(new, counted, strict=True))
        return [known[n] for n in numbers]

    def _of_headings(self, documents: int) -> int:
        if documents >= len(self._headings):
            each = self._counts.once([DOCUMENT.format(number=n) for n in range(1, 2 * documents + 1)])
            self._headings = list(accumulate(each, initial=0))
        return self._headings[documents]


class _Chosen:
    """The documents of a question, as many as are asked for: its own, others of the article, any; all again where there are no more."""

    def __init__(self, item: Item, documents: int, rng: random.Random) -> None:
        related = list(item.related)
        rng.shuffle(related)
        self._first = [*item.gold, *related]
        self._known = frozenset(self._first)
        self._documents, self._rng = documents, rng
        self._order = Order(documents, rng)

    def first(self, many: int) -> list[int]:
        others = max(0, many - len(self._first))
        drawn = [n for n in self._order.first(others + len(self._first)) if n not in self._known]
        once = [*self._first, *drawn][:many]
        again = range(many - len(once))
        return [*once, *(n % self._documents for n in again)]
