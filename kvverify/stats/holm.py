"""Holm's adjustment of several p values, so that all of their tests together err as seldom as one."""

from __future__ import annotations

from collections.abc import Sequence


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the adjusted p values in the order given: one of them below alpha is significant among all.

    The k-th smallest of m is multiplied by m - k + 1, and none may be below that of a smaller one (Holm, Scandinavian Journal
    of Statistics 6:65-70, 1979). Tests may depend on each other in any way.

    Raises:
        ValueError: a value that is no probability.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    if wrong := [p for p in p_values if not 0 <= p <= 1]:
        raise ValueError(f"p values of {wrong}: expected numbers from 0 to 1")
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = largest
    return adjusted
