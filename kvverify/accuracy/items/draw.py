"""What a generator is given for one question, and how it makes a sample of it."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import Tokenizer


def random_of(seed: int, task: str, length: int, index: int) -> random.Random:
    """Return the random numbers of one question: whichever questions were made before, they are the same."""
    name = f"{seed}/{task}/{length}/{index}"
    return random.Random(int.from_bytes(hashlib.sha256(name.encode()).digest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """One question to be made. ``length`` is the size in tokens (0: none); ``reserve`` of them are the template's."""

    task: str
    length: int
    index: int
    random: random.Random
    tokenizer: Tokenizer
    reserve: int
    options: Mapping[str, Any]

    def tokens(self, text: str) -> int:
        """Return how long a prompt of ``text`` is, template included."""
        return self.tokenizer.counts([text])[0] + self.reserve

    def sample(self, *, metric: str, max_tokens: int, **rest: Any) -> Sample:
        """Return the sample of this question; ``rest`` are further fields of it."""
        prompt = rest.get("prompt", "") + rest.get("answer_prefix", "")
        return Sample(
            task=self.task,
            length=self.length,
            index=self.index,
            metric=metric,
            max_tokens=max_tokens,
            tokens=self.tokens(prompt) if prompt else -1,
            **rest,
        )
