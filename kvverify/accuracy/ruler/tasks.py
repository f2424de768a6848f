"""The table of the thirteen tasks: how each is made, scored and what it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kvverify.accuracy.corpora import SHIPPED_HAYSTACK, haystack
from kvverify.accuracy.ruler import needles
from kvverify.accuracy.ruler.haystack import essays
from kvverify.accuracy.ruler.sizing import Counts, Draft
from kvverify.accuracy.ruler.templates import ONE_VALUE
from kvverify.accuracy.ruler.words import keys
from kvverify.errors import UsageError

ALL, PART = "ruler-all", "ruler-part"


class Maker(Protocol):
    """Writes the samples of one task and length. ``many`` is how many there are, None without a limit."""

    many: int | None

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
        corpus, parts = haystack(_label(materials.options), materials.corpora), _offsets(materials.options)
        hay = [essays(corpus, counts, words=budget, part=part, parts=parts) for part in range(parts)]
        return needles.InEssays(task, counts, hay)

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


def _offsets(options: Mapping[str, Any]) -> int:
    """Return the number of places at which haystacks begin: 1 as upstream, more as a variant with more than one cluster."""
    offsets = options.get("offsets", 1)
    if type(offsets) is not int or not 1 <= offsets <= 1000:
        raise UsageError(f"option offsets: expected 1 to 1000 places at which haystacks begin, got {offsets!r}")
    return offsets


TASKS: dict[str, RulerTask] = {name: _needle_task(task) for name, task in needles.TASKS.items()}
