"""Source "recall": a code early in a plain text, and the sentence that names it begun again at the end. The smallest retrieval there is.

A model that only continues text answers it, even the lab's; so it shows in seconds that a run works, and a wrong cache answers wrong.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext, TaskSpec
from kvverify.errors import UsageError
from kvverify.live.story import endless, sentences

TASK, VERSION = "code", "1"
SAMPLES = 20  # where the suite does not say
DIGITS, ANSWER_TOKENS = 6, 12


def samples(task: TaskSpec, context: SourceContext) -> Iterator[Sample]:
    """Yield texts of at most each length, as near to it as whole sentences allow.

    Raises:
        UsageError: no such task, or a length that holds no text.
    """
    if task.name != TASK:
        raise UsageError(f"source recall: no task {task.name!r}; it has {TASK}")
    for length in task.lengths:
        for index in range(task.samples or SAMPLES):
            yield _sample(length, index, context)


def facts(task: TaskSpec, context: SourceContext) -> dict[str, str]:
    """Return the version."""
    return {"version": VERSION}


def _sample(length: int, index: int, context: SourceContext) -> Sample:
    rng = random.Random(f"{context.seed}/{TASK}/{length}/{index}")
    code = str(rng.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    told = f"Notebook {rng.getrandbits(32):08X}. The secret code of this notebook is"
    known = sentences()
    order = tuple(rng.sample(range(len(known)), len(known)))
    most = length - context.reserve - ANSWER_TOKENS
    counts = context.tokenizer.counts(
        [told, f" {code}.", *(f" {s}" for s in known), " The secret code of this notebook is"]
    )
    fixed, each = counts[0] + counts[1] + counts[-1], counts[2:-1]
    text, used = list[str](), fixed
    for number in endless(order):
        used += each[number]
        if used > most or len(text) > most:
            break
        text.append(known[number])
    if not text:
        raise UsageError(
            f"source recall: length {length}: too short, expected at least {fixed + ANSWER_TOKENS + context.reserve + 40} tokens"
        )
    return Sample(
        task=TASK,
        length=length,
        index=index,
        prompt=f"{told} {code}. {' '.join(text)} ",
        answer_prefix="The secret code of this notebook is",
        references=(code,),
        metric="contains",
        max_tokens=ANSWER_TOKENS,
        cluster=f"{TASK}/{length}/{index}",
        tokens=used + context.reserve,
    )
