"""From an answer to a score: the table of rules, each imported when it is used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field

from kvverify.accuracy.sample import Sample
from kvverify.errors import UsageError, nearest

RULES: dict[str, str] = {}  # name -> "module:function"; binary or fractional is the rule's to say
RULES |= {
    "ruler-all": "kvverify.accuracy.ruler.scoring:every",
    "ruler-part": "kvverify.accuracy.ruler.scoring:part",
    "exact": "kvverify.accuracy.checkers.plain:exact",
    "contains": "kvverify.accuracy.checkers.plain:contains",
    "number": "kvverify.accuracy.checkers.plain:number",
    "choice": "kvverify.accuracy.checkers.plain:choice",
    "json-schema": "kvverify.accuracy.checkers.json_rules:json_schema",
    "json-fields": "kvverify.accuracy.checkers.json_rules:json_fields",
    "tool-call": "kvverify.accuracy.checkers.tool_call:tool_call",
    "sql": "kvverify.accuracy.checkers.sql:sql",
    "code": "kvverify.accuracy.checkers.code:code",
    "refusal": "kvverify.accuracy.checkers.refusal:refusal",
    "answered": "kvverify.accuracy.checkers.refusal:answered",
    "lm-eval": "kvverify.accuracy.lm_eval.rule:score",
    "lm-eval-likelihood": "kvverify.accuracy.lm_eval.likelihood:score",
}
JUDGED = frozenset({"rubrics"})  # no rule of ours: a judge scores these after the answer came (kvverify.accuracy.judge)
MAKERS = frozenset({"lm-eval"})  # need what the process that made the samples has loaded: scored there and nowhere else
BLOCKING = frozenset({"code", "sql"})  # may take seconds: call them outside the event loop


@dataclass(frozen=True, slots=True)
class Score:
    """``value`` is 0 to 1. ``format_error`` says why an answer that must have a form has not; ``aspects`` are further shares."""

    value: float
    binary: bool = True
    format_error: str = ""
    aspects: dict[str, float] = field(default_factory=dict)


def rule_of(metric: str) -> Callable[[Sample, str], Score]:
    """Return the rule by its name: a function of the sample and the answer's text.

    Raises:
        UsageError: no rule of this name, or one that needs a judge.
    """
    if metric in JUDGED:
        raise UsageError(f"metric {metric} is scored by a judge: name its endpoint")
    if metric not in RULES:
        raise UsageError(f"metric {metric!r}: no such rule; {nearest(metric, RULES.keys() | JUDGED)}")
    module, _, name = RULES[metric].partition(":")
    rule: Callable[[Sample, str], Score] = getattr(importlib.import_module(module), name)
    return rule


def score(sample: Sample, text: str) -> Score:
    """Score the answer ``text`` to ``sample`` by its rule."""
    return rule_of(sample.metric)(sample, text)
