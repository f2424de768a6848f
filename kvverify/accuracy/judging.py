"""Answers to rubric tasks, judged after they came: whoever asked them, and as often as the judge fails.

An answer waits as a missing one (``NOT_JUDGED``) until its judgement replaces it in the log; a resumed run asks the judge alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import replace

from kvverify.accuracy.contexts import contexts_scored
from kvverify.accuracy.judge import ERROR, Judge
from kvverify.accuracy.options import AccuracyOptions
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import JUDGED
from kvverify.errors import UsageError
from kvverify.events import Event
from kvverify.events_accuracy import NOT_JUDGED, SampleAnswered

_WIDTH = 4  # answers under judgement; each has up to 50 questions, of which the judge takes a few at a time


def waits(answer: SampleAnswered) -> bool:
    """Is this an answer whose text is there, and whose judgement is not?"""
    return answer.error == NOT_JUDGED or answer.error.startswith(ERROR)


async def judge_of(options: AccuracyOptions, rules: Iterable[str], stack: AsyncExitStack) -> Judge | None:
    """Return the judge that the suite's rules need, checked; None where none is needed. ``stack`` closes it.

    Raises:
        UsageError: a judge is needed and none was named.
        KvverifyError: it does not answer two simple questions.
    """
    if JUDGED.isdisjoint(rules):
        return None
    if options.judge_url is None or options.judge_model is None:
        raise UsageError(f"suite {options.suite} has rubrics, which a judge scores: give --judge-url and --judge-model")
    judge = await stack.enter_async_context(Judge(options.judge_url, options.judge_model))
    await judge.check()
    return judge


async def judge_all(
    judge: Judge,
    samples: Iterable[Sample],
    answers: Mapping[str, SampleAnswered],
    tell: Callable[[SampleAnswered], None],
    emit: Callable[[Event], None],
) -> None:
    """Judge every answer that waits, and emit the scores of contexts by task; ``tell`` is given each answer anew."""
    turns, tasks = asyncio.Semaphore(_WIDTH), dict[str, None]()

    async def one(sample: Sample, answer: SampleAnswered) -> None:
        async with turns:
            judged = await judge.judge(sample, answer.text)
        emit(judged.event)
        score = judged.score
        tell(
            replace(
                answer,
                score=score.value if score else 0.0,
                binary=False,
                aspects=score.aspects if score else {},
                error=judged.error,
            )
        )

    waiting = []
    for sample in samples:
        if sample.metric in JUDGED:
            tasks[sample.task] = None
            answer = answers.get(sample.key)
            if answer is not None and waits(answer):
                waiting.append(one(sample, answer))
    await asyncio.gather(*waiting)
    for task in tasks:
        emit(contexts_scored(task, [answer for answer in answers.values() if answer.task == task]))
