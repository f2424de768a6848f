"""The total of a rubric-judged set: the mean over contexts of the mean over each context's tasks."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import fmean

from kvverify.events_accuracy import ContextsScored, SampleAnswered


def contexts_scored(task: str, answers: Iterable[SampleAnswered]) -> ContextsScored:
    """Return the scores of contexts (``cluster`` names a sample's; one without is a context of its own) and their mean.

    A task without a score is counted as missing and in no mean; a context of which nothing has a score is in no total.
    """
    scores: dict[str, list[float]] = {}
    seen, missing = set[str](), 0
    for answer in answers:
        context = answer.cluster or f"sample {answer.index}"
        seen.add(context)
        if answer.error:
            missing += 1
        else:
            scores.setdefault(context, []).append(answer.score)
    means = {context: fmean(own) for context, own in sorted(scores.items())}
    return ContextsScored(
        task=task,
        total=fmean(means.values()) if means else 0.0,
        contexts=means,
        samples=sum(map(len, scores.values())),
        missing=missing,
        empty=len(seen) - len(means),
        undefined="" if means else "no sample has a score",
    )
