"""The table of the thirteen tasks: how each is made, scored and what it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from kvverify.accuracy.corpora import ENGLISH_WORDS, SHIPPED_HAYSTACK, haystack
from kvverify.accuracy.question_corpora import Questions, hotpotqa, squad
from kvverify.accuracy.ruler import needles
from kvverify.accuracy.ruler.common_words import CommonWords
from kvverify.accuracy.ruler.frequent_words import FrequentWords
from kvverify.accuracy.ruler.haystack import Essays
from kvverify.accuracy.ruler.questions import QuestionsOverDocuments
from kvverify.accuracy.ruler.sizing import Counts, Draft
from kvverify.accuracy.ruler.templates import COMMON_WORDS, DOCUMENTS, FREQUENT_WORDS, ONE_VALUE, VARIABLES
from kvverify.accuracy.ruler.variable_tracking import VariableTracking
from kvverify.accuracy.ruler.words import common, english, keys
from kvverify.errors import UsageError

ALL, PART = "ruler-all", "ruler-part"
RANDOM: Final = "random"  # of the option offsets


class Maker(Protocol):
    """Writes the samples of one task and length."""

    @property
    def many(self) -> int | None:
        """Return how many there are, None where there is no limit."""
        ...

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index`` before its size is chosen."""
        ...


@dataclass(frozen=True, slots=True)
class Materials:
    """What a task is made from: ``length`` is the size class, ``budget`` the tokens of prompt and answer prefix."""

    counts: Counts
    length: int
    budget: int
    corpora: Path | None
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RulerTask:
    """One of the thirteen. ``facts`` tells corpora and word lists, with a SHA-256 each."""

    maker: Callable[[Materials], Maker]
    facts: Callable[[Path | None, Mapping[str, Any]], dict[str, str]]
    metric: str
    max_tokens: int
    options: tuple[str, ...] = ()


def _needle_task(task: needles.NeedleTask) -> RulerTask:
    essay = task.haystack == "essay"

    def maker(materials: Materials) -> Maker:
        counts, budget = materials.counts, materials.budget
        if task.haystack == "noise":
            return needles.InNoise(task, counts, budget)
        if task.haystack == "needle":
            return needles.AmongNeedles(task, counts, budget)
        corpus, offsets = haystack(_label(materials.options), materials.corpora), _offsets(materials.options)
        essays = Essays(corpus, counts, budget)
        if offsets == RANDOM:
            return needles.InEssays(task, counts, lambda rng, _: essays.anywhere(rng))
        hay = [essays.part(part, offsets) for part in range(offsets)]
        return needles.InEssays(task, counts, lambda _, index: hay[index % offsets])

    def facts(corpora: Path | None, options: Mapping[str, Any]) -> dict[str, str]:
        told = {} if task.key == task.value == "uuids" else {"words": keys().label, "words_sha256": keys().sha256}
        if essay:
            corpus = haystack(_label(options), corpora)
            told |= {"haystack": corpus.label, "haystack_sha256": corpus.sha256, "offsets": str(_offsets(options))}
        return told

    return RulerTask(maker, facts, ALL, ONE_VALUE.max_tokens, ("haystack", "offsets") if essay else ())


def _label(options: Mapping[str, Any]) -> str:
    label = options.get("haystack", SHIPPED_HAYSTACK)
    if not isinstance(label, str):
        raise UsageError(f"option haystack: expected a corpus's label, got {label!r}")
    return label


def _offsets(options: Mapping[str, Any]) -> int | Literal["random"]:
    """Return the number of places at which haystacks begin: 1 as upstream; or RANDOM, a place of its own for each sample."""
    offsets = options.get("offsets", 1)
    if offsets == RANDOM:
        return RANDOM
    if type(offsets) is not int or not 1 <= offsets <= 1000:
        raise UsageError(
            f'option offsets: expected 1 to 1000 places at which haystacks begin, or "{RANDOM}", got {offsets!r}'
        )
    return offsets


def _no_facts(_corpora: Path | None, _options: Mapping[str, Any]) -> dict[str, str]:
    return {}


def _word_facts(corpora: Path | None, _options: Mapping[str, Any]) -> dict[str, str]:
    told = {"words": common().label, "words_sha256": common().sha256}
    if corpora is not None and any((corpora / name).is_file() for name in ENGLISH_WORDS.names):
        told |= {"more_words": english(corpora).label, "more_words_sha256": english(corpora).sha256}
    return told


def _question_task(read: Callable[[Path | None, str], Questions]) -> RulerTask:
    def maker(materials: Materials) -> Maker:
        corpus = read(materials.corpora, _dataset(materials.options))
        return QuestionsOverDocuments(corpus, materials.counts, materials.budget)

    def facts(corpora: Path | None, options: Mapping[str, Any]) -> dict[str, str]:
        corpus = read(corpora, _dataset(options))
        return {"questions": corpus.label, "questions_sha256": corpus.sha256}

    return RulerTask(maker, facts, PART, DOCUMENTS.max_tokens, ("dataset",))


def _dataset(options: Mapping[str, Any]) -> str:
    name = options.get("dataset", "")
    if not isinstance(name, str):
        raise UsageError(f"option dataset: expected a name that the package datasets loads, got {name!r}")
    return name


def _common_words(materials: Materials) -> Maker:
    m = materials
    return CommonWords(m.counts, m.budget, length=m.length, corpora=m.corpora)


TASKS: dict[str, RulerTask] = {
    **{name: _needle_task(task) for name, task in needles.TASKS.items()},
    "vt": RulerTask(lambda m: VariableTracking(m.counts, m.budget), _no_facts, ALL, VARIABLES.max_tokens),
    "cwe": RulerTask(_common_words, _word_facts, ALL, COMMON_WORDS.max_tokens),
    "fwe": RulerTask(lambda m: FrequentWords(m.counts, m.budget), _no_facts, ALL, FREQUENT_WORDS.max_tokens),
    "qa_1": _question_task(squad),
    "qa_2": _question_task(hotpotqa),
}
