"""Stop strings: where an answer ends, and which of its text may be shown already."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvverify.lab.tokens import Tokenizer


@dataclass(frozen=True)
class Stops:
    """``texts`` end an answer, whose text holds none of them, as OpenAI's interface has it."""

    texts: tuple[str, ...] = ()

    @classmethod
    def of(cls, given: Any) -> Stops:
        """Return the stops that a request names: a text, a list of texts, or None.

        Raises:
            ValueError: anything else, or an empty text.
        """
        texts = [given] if isinstance(given, str) else given or []
        if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
            raise ValueError(f"got stop {given!r}; expected a text or a list of texts, none of them empty")
        return cls(tuple(texts))

    def ended(self, tokens: Sequence[int], tokenizer: Tokenizer) -> bool:
        """Do the generated tokens hold a stop?"""
        return bool(self.texts) and self._first(tokenizer.decode(tokens)) is not None

    def shown(self, text: str, *, last: bool) -> str:
        """Return what may be shown of an answer so far: nothing of a stop, nor of what may become one unless it is the ``last`` part."""
        if (place := self._first(text)) is not None:
            return text[:place]
        return text if last else text[: len(text) - self._begun(text)]

    def _first(self, text: str) -> int | None:
        places = [place for stop in self.texts if (place := text.find(stop)) >= 0]
        return min(places, default=None)

    def _begun(self, text: str) -> int:
        """Return how many characters at the end may be the beginning of a stop."""
        ends = (
            n for stop in self.texts for n in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:n])
        )
        return max(ends, default=0)
