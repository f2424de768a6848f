"""The lists that keys and common words are drawn from: those of the package wonderwords, as upstream, and the user's English words."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from kvverify.accuracy.corpora import ENGLISH_WORDS, labelled, wanted_file
from kvverify.errors import EnvironmentProblem, UsageError


@dataclass(frozen=True, slots=True)
class WordList:
    """Words, and what identifies them."""

    label: str
    sha256: str
    words: tuple[str, ...]


@cache
def _wonderwords(kind: str) -> tuple[str, ...]:
    try:
        text = (files("wonderwords") / "assets" / f"{kind}list.txt").read_text(encoding="utf-8")
    except ModuleNotFoundError as error:
        raise EnvironmentProblem(
            "RULER's keys need the word lists of wonderwords: pip install 'kvverify[accuracy]'"
        ) from error
    return tuple(line.strip() for line in text.splitlines() if line.strip())


@cache
def adjectives() -> tuple[str, ...]:
    """Return the adjectives, sorted, once each."""
    return tuple(sorted(set(_wonderwords("adjective"))))


@cache
def nouns() -> tuple[str, ...]:
    """Return the nouns, sorted, once each."""
    return tuple(sorted(set(_wonderwords("noun"))))


@cache
def keys() -> WordList:
    """Return what keys are made of: adjectives, then nouns."""
    words = (*adjectives(), *nouns())
    return WordList("wonderwords", _digest(words), words)


@cache
def common() -> WordList:
    """Return nouns, adjectives and verbs, sorted, once each."""
    words = tuple(sorted({*nouns(), *adjectives(), *_wonderwords("verb")}))
    return WordList("wonderwords", _digest(words), words)


def english(folder: Path | None) -> WordList:
    """Return the user's english_words.json, a JSON object whose values are words: for samples that need more than :func:`common`.

    Raises:
        UsageError: the file is missing or is something else.
    """
    path = wanted_file(ENGLISH_WORDS, folder)
    content = path.read_bytes()
    label, digest = labelled(ENGLISH_WORDS, path, content)
    try:
        values = json.loads(content)
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from error
    words = tuple(dict.fromkeys(values.values())) if isinstance(values, dict) else ()
    if not words or not all(isinstance(w, str) and w for w in words):
        raise UsageError(f"{path}: expected a JSON object whose values are words")
    return WordList(label, digest, words)


def _digest(words: tuple[str, ...]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()
