"""Where samples come from: the contract between a suite and what writes its questions (RULER, formats, rubrics, lm-eval)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kvverify.accuracy.sample import Sample


class Tokenizer(Protocol):
    """The served model's tokenizer. ``identity`` is a hash of it: prompts are sized by it, so it belongs to their identity."""

    identity: str

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        """Return the ids of ``text``; ``start`` puts before them what the model has at the start of a prompt (BOS)."""
        ...

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, nothing added."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """One task of a suite: ``samples`` questions for each of ``lengths`` (tokens; (0,) where the task has no size classes)."""

    source: str
    name: str
    lengths: tuple[int, ...] = (0,)
    samples: int = 0  # 0: all there are
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceContext:
    """What a source is given: ``reserve`` tokens of each prompt belong to the template and BOS; ``corpora`` is the user's own folder.

    ``cache`` is where made samples are kept, by content. Every sample comes from a seed of its own: (seed, task, length, index).
    """

    tokenizer: Tokenizer
    seed: int
    reserve: int = 0
    corpora: Path | None = None
    cache: Path | None = None


class Source(Protocol):
    """A module that writes samples."""

    def samples(self, task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
        """Yield the samples of a task, length by length, by index.

        Raises:
            UsageError: no such task, a corpus is missing or has another checksum, a length too short for the task.
        """
        ...

    def facts(self, task: TaskSpec, context: SourceContext) -> dict[str, str]:
        """Return what identifies the data for the arm's identity: generator version, corpus id and SHA-256."""
        ...
