"""RULER's two metrics, and what is done to an answer before.

all = share of the references that are in the answer; part = 1 if any of them is. Case is ignored, nothing else is (NVIDIA/RULER,
scripts/eval/synthetic/constants.py; the answer's preparation is in scripts/eval/evaluate.py).
"""

from __future__ import annotations

import re

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import Score

_CONTROL = re.compile(r"[\x00-\x1f]")


def prepared(text: str) -> str:
    """Return the answer as it is scored: stripped, each control character a line break, and stripped again."""
    return _CONTROL.sub("\n", text.strip()).strip()


def every(sample: Sample, text: str) -> Score:
    """Return the share of the references that ``text`` holds; binary where there is one reference."""
    found = _found(sample, text)
    return Score(sum(found) / len(found), binary=len(found) == 1)


def part(sample: Sample, text: str) -> Score:
    """Return 1 if ``text`` holds any reference: they are spellings of one answer, so the best counts and not the mean."""
    return Score(float(any(_found(sample, text))))


def _found(sample: Sample, text: str) -> list[bool]:
    if not sample.references:
        raise ValueError(f"{sample.task} {sample.index}: a sample without references has no score")
    answer = prepared(text).lower()
    return [reference.lower() in answer for reference in sample.references]
