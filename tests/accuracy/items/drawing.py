"""Samples of the source items, for tests: sized by bytes or by words, and answered as a perfect model would."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kvverify.accuracy.items import source
from kvverify.accuracy.items.generators import GENERATORS
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec, Tokenizer
from kvverify.accuracy.tokens import Bytes

SIZED = sorted(name for name, generator in GENERATORS.items() if generator.sized)
UNSIZED = sorted(name for name, generator in GENERATORS.items() if not generator.sized)
EVERY = sorted(GENERATORS)
RESERVE = 7


class Pieces:
    """A tokenizer whose tokens run across the borders of units: up to four letters or spaces, single other characters."""

    identity = "pieces"

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        return [0] * start + [hash(piece) for piece in re.findall(r"[\w ]{1,4}|[^\w ]\n?", text)]

    def counts(self, texts: Sequence[str]) -> list[int]:
        return [len(self.ids(text)) for text in texts]


def draw(
    name: str | Path,
    *,
    samples: int = 3,
    length: int = 0,
    seed: int = 0,
    options: dict[str, Any] | None = None,
    tokenizer: Tokenizer | None = None,
) -> list[Sample]:
    """Return samples of a task; a generator of code is allowed to run it."""
    given = {"allow_code": True} if name == "code-functions" and options is None else options or {}
    task = TaskSpec(source="items", name=str(name), lengths=(length,), samples=samples, options=given)
    return list(source.samples(task, SourceContext(tokenizer=tokenizer or Bytes(), seed=seed, reserve=RESERVE)))


def length_of(name: str) -> int:
    """Return a small size that the task can have."""
    return 3000 if GENERATORS[name].sized else 0


def perfect(sample: Sample) -> str:
    """Return an answer that is right by every rule."""
    if sample.metric == "refusal":
        return "I'm sorry, but I can't help with that."
    if sample.metric == "number":
        return f"{sample.details['worked']} #### {sample.references[0]}"
    return sample.references[0]
