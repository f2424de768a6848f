"""How large a sample may be: token counts of its parts, and the largest number of units whose text stays within a budget.

Counting a whole prompt of 32k tokens takes a tokenizer 30 to 60 ms, and a search needs a dozen counts. So a text is cut where no
tokenizer joins (before a space and after a line break), each distinct part is counted once, and sums are searched. That sums are
exact is not assumed: :class:`Sizer` counts whole prompts too, and :class:`NotAdditive` says that all must be.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvverify.accuracy.source import Tokenizer

_LETTER = "A"


class NotAdditive(Exception):
    """The parts of a prompt have another number of tokens than the whole."""


class TooShort(Exception):
    """Not even the smallest sample fits; ``needed`` tokens of prompt and answer prefix would."""

    def __init__(self, needed: int) -> None:
        super().__init__(needed)
        self.needed = needed


def generator(*what: object) -> random.Random:
    """Return a random generator whose state is a function of ``what`` alone."""
    digest = hashlib.sha256("\0".join(map(str, what)).encode()).digest()
    return random.Random(int.from_bytes(digest))


class Counts:
    """Tokens of parts of a text, as they are within it.

    A part begins with a space, or follows a line break, or opens the text; it ends where a part begins. It is counted behind
    a letter or a line break, for some tokenizers put a space before what stands alone, and before a letter where it ends in line
    breaks, for these are split otherwise at the end of a text.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        letter, newline, both = tokenizer.counts([_LETTER, "\n", f"\n{_LETTER}"])
        self._before = {_LETTER: letter, "\n": newline, "": 0}
        self._after = {_LETTER: both - newline, "": 0}
        self._known: dict[str, int] = {}

    def each(self, parts: Sequence[str]) -> list[int]:
        """Return the tokens of each part, asking for each distinct part once."""
        known = self._known
        unknown = [p for p in dict.fromkeys(parts) if p not in known]
        if unknown:
            known.update(zip(unknown, self.once(unknown), strict=True))
        return [known[p] for p in parts]

    def once(self, parts: Sequence[str]) -> list[int]:
        """Return the tokens of each part, without remembering: for parts that do not come again."""
        return self._counted([(_LETTER if part[:1] == " " else "\n", part) for part in parts])

    def opening(self, part: str) -> int:
        """Return the tokens of what a text begins with."""
        return self._counted([("", part)])[0]

    def _counted(self, parts: Sequence[tuple[str, str]]) -> list[int]:
        framed = [(before, part, _LETTER if part[-1:] == "\n" else "") for before, part in parts]
        counted = self._tokenizer.counts(["".join(frame) for frame in framed])
        return [n - self._before[b] - self._after[a] for n, (b, _, a) in zip(counted, framed, strict=True)]

    def of(self, *parts: str) -> int:
        """Return the sum over remembered parts."""
        return sum(self.each(parts))

    def whole(self, text: str) -> int:
        """Return the tokens of a whole text."""
        return self._tokenizer.counts([text])[0]


@dataclass(frozen=True, slots=True)
class Question:
    """A sample's text, without the model's template."""

    prompt: str
    answer_prefix: str
    references: tuple[str, ...]
    cluster: str = ""
    details: dict[str, Any] = field(default_factory=dict)


def _nothing(_units: int) -> int:
    return 0


@dataclass(frozen=True, slots=True)
class Draft:
    """A sample before its size is chosen: ``least`` to ``most()`` units. ``tokens`` sums parts, and grows with the units but for a token or two.

    ``write`` is a pure function of the number of units. ``ending`` is what ``tokens`` leaves out because it costs time: evaluated once.
    """

    tokens: Callable[[int], int]
    write: Callable[[int], Question]
    least: int
    most: Callable[[], int]
    ending: Callable[[int], int] = _nothing


def largest(fits: Callable[[int], bool], least: int, most: int) -> int | None:
    """Return the largest number from ``least`` to ``most`` that fits, by bisection; None where none does."""
    low, high = least - 1, most
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low if low >= least else None


class Sizer:
    """Chooses the units of drafts so that prompt and answer prefix take at most ``budget`` tokens.

    ``exact`` counts the whole text of every candidate. Otherwise sums decide, and the sample is counted as a whole where asked.

    Raises:
        TooShort: not even the smallest fits.
        NotAdditive: a whole text has another number of tokens than the sum says.
    """

    def __init__(self, counts: Counts, budget: int, *, exact: bool = False) -> None:
        self._counts, self._budget, self.exact = counts, budget, exact

    def size(self, draft: Draft, *, check: bool = False) -> tuple[int, int]:
        """Return the number of units and the tokens of prompt and answer prefix."""
        units = largest(lambda n: draft.tokens(n) <= self._budget, draft.least, draft.most())
        if self.exact:
            return self._exactly(draft, draft.least if units is None else units)
        units = draft.least if units is None else units
        while (tokens := draft.tokens(units) + draft.ending(units)) > self._budget:
            if units == draft.least:
                raise TooShort(tokens)
            units -= 1
        if check and self._whole(draft, units) != tokens:
            raise NotAdditive
        return units, tokens

    def _exactly(self, draft: Draft, guess: int) -> tuple[int, int]:
        """Search near ``guess``, which sums of parts gave, by whole counts."""
        known: dict[int, int] = {}

        def fits(units: int) -> bool:
            if units not in known:
                known[units] = self._whole(draft, units)
            return known[units] <= self._budget

        low, high, step, most = guess, guess, max(1, guess // 256), draft.most()
        while low > draft.least and not fits(low):
            low, high, step = max(draft.least, low - step), low, step * 2
        while high < most and fits(high):
            low, high, step = high, min(most, high + step), step * 2
        units = largest(fits, low, high)
        if units is None:
            raise TooShort(known[draft.least])
        return units, known[units]

    def _whole(self, draft: Draft, units: int) -> int:
        question = draft.write(units)
        return self._counts.whole(question.prompt + question.answer_prefix)
