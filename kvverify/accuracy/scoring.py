"""From an answer to a score: the table of rules, each imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from kvverify.accuracy.sample import Sample

RULES: dict[str, str] = {}  # name -> "module:function"; binary or fractional is the rule's to say


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` is 0 to 1. ``format_error`` says why an answer that must have a form has not; ``aspects`` are further shares."""

    value: float
    binary: bool = True
    format_error: str = ""
    aspects: dict[str, float] = field(default_factory=dict)


def rule_of(metric: str) -> Callable[[Sample, str], Score]:
    """Return the rule by its name: a function of the sample and the answer's text."""
    module, _, name = RULES[metric].partition(":")
    rule: Callable[[Sample, str], Score] = getattr(importlib.import_module(module), name)
    return rule


def score(sample: Sample, text: str) -> Score:
    """Score the answer ``text`` to ``sample`` by its rule."""
    return rule_of(sample.metric)(sample, text)
