"""Drawing without replacement, as far as is asked for: the first numbers of an order stay the same when more are drawn."""

from __future__ import annotations

import random


class Order:
    """A random order of the numbers below ``size``: Fisher and Yates's shuffle, done step by step."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self._size, self._rng = size, rng
        self._drawn: list[int] = []
        self._moved: dict[int, int] = {}  # place -> the number that lies there instead of its own

    def first(self, many: int) -> list[int]:
        """Return the first ``many`` numbers, all where there are fewer."""
        drawn, moved = self._drawn, self._moved
        for place in range(len(drawn), min(many, self._size)):
            other = self._rng.randrange(place, self._size)
            drawn.append(moved.get(other, other))
            moved[other] = moved.get(place, place)
        return drawn[:many]
