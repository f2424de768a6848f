"""Prompt lengths at which HBM and the lower tier hit the same number of tokens; only at those are the two comparable.

With unequal hit lengths the suffix is computed by other kernels with another rounding, and a sound cache looks broken.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

from kvverify.errors import KvverifyError
from kvverify.live.engine import Expected

LEAST_UNITS = 3  # with fewer a prefix may legitimately not be hit


def common_lengths(
    expected: Callable[[int], Expected], *, unit: int, at_least: int = 1, at_most: int | None = None
) -> Iterator[int]:
    """Yield rising prompt lengths at which both tiers hit the same, at least three units of the larger one.

    Args:
        expected: an engine's ``expected``.
        unit: the larger of block and hit unit, in tokens.
        at_least: the first length that may be yielded.
        at_most: the last one (the context less what is generated); None: no end.

    Raises:
        KvverifyError: there is none within four units, so there never is.
    """
    misses = 0
    start = max(at_least, LEAST_UNITS * unit + 1)
    for length in itertools.count(start) if at_most is None else range(start, at_most + 1):
        wanted = expected(length)
        if wanted.hit_tokens == wanted.hbm_hit_tokens >= LEAST_UNITS * unit:
            misses = 0
            yield length
            continue
        misses += 1
        if misses > 4 * unit:
            raise KvverifyError(
                f"no prompt length near {length} at which HBM ({wanted.hbm_hit_tokens}) and the lower tier "
                f"({wanted.hit_tokens}) hit the same number of tokens; is the chunk size a multiple of the block size?"
            )
