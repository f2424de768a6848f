"""As many units of text as a size in tokens holds: rows, segments, sentences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate

from kvverify.accuracy.items.draw import Draw
from kvverify.errors import UsageError

_BATCH = 256
Assemble = Callable[[Sequence[str]], str]


def fitting(draw: Draw, unit: Callable[[int], str], assemble: Assemble, *, max_tokens: int, least: int) -> list[str]:
    """Return the most units whose assembled prompt, template and answer take ``draw.length`` tokens at most.

    ``unit(i)`` writes the i-th, ``assemble`` makes the prompt with question and answer prefix. Units are counted once, in
    batches; then the whole prompt is counted, since tokens run across borders, and units are taken away or added until it fits.

    Raises:
        UsageError: not even ``least`` units fit.
    """
    room = draw.length - max_tokens
    units: list[str] = [unit(i) for i in range(least)]
    needed = draw.tokens(assemble(units))
    if needed > room:
        raise UsageError(
            f"task {draw.task}: a length of {draw.length} tokens is too short: expected {needed + max_tokens} or more, "
            f"{draw.reserve} of them for the template and {max_tokens} for the answer"
        )
    counts = draw.tokenizer.counts(units)
    overhead = needed - sum(counts)
    while overhead + sum(counts) <= room:
        more = [unit(i) for i in range(len(units), len(units) + _BATCH)]
        units += more
        counts += draw.tokenizer.counts(more)
    sums = list(accumulate(counts))
    number = max(least, bisect_right(sums, room - overhead))
    while (over := draw.tokens(assemble(units[:number])) - room) > 0 and number > least:
        number = max(least, number - max(1, bisect_right(sums, over)))
    while number < len(units) and draw.tokens(assemble(units[: number + 1])) <= room:
        number += 1
    return units[:number]
