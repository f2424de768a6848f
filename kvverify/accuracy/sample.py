"""One question of a suite: what is sent, what is expected, by which rule the answer is scored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One question. ``prompt`` is without the model's template; ``answer_prefix`` is what the answer already begins with.

    ``length`` is the size class in tokens (0: none), ``tokens`` the prompt's real number by the model's tokenizer, template
    and prefix included (-1: not counted). ``metric`` names a rule in :mod:`kvverify.accuracy.scoring`, ``references`` and
    ``details`` are what the rule needs. ``cluster`` names the document or haystack that samples share. ``messages`` in place of
    ``prompt``: a conversation, with ``tools`` as the OpenAI interface has them.
    """

    task: str
    length: int
    index: int
    prompt: str = ""
    answer_prefix: str = ""
    messages: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Mapping[str, Any], ...] = ()
    references: tuple[str, ...] = ()
    metric: str
    details: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int
    stop: tuple[str, ...] = ()
    cluster: str = ""
    tokens: int = -1

    @property
    def key(self) -> str:
        """Return the SHA-256 by which arms are paired: over everything that decides the question and its score, not its number."""
        parts = [self.task, self.length, self.prompt, self.answer_prefix, self.messages, self.tools, self.references]
        parts += [self.metric, self.details, self.max_tokens, self.stop]
        text = json.dumps(parts, sort_keys=True, ensure_ascii=True, default=_plain)
        return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a sample holds {type(value).__name__}, which JSON does not know")
