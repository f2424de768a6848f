"""Programs as a list, made ahead: the same ones for a planted fault and for the clean control beside it."""

from __future__ import annotations

from functools import lru_cache
from threading import Lock

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import seed as seeded

from kvverify.arena.payload import derive_key
from kvverify.roundtrip.program import Program
from kvverify.roundtrip.strategies import Shape, programs

_ONE_AT_A_TIME = Lock()  # Hypothesis keeps state of its own; older ones share it between threads


def collected(shape: Shape, seed: int, count: int) -> tuple[Program, ...]:
    """Return up to ``count`` programs for ``shape``, decided by ``seed``; the first ones are the plainest."""
    with _ONE_AT_A_TIME:
        return _collected(shape, seed, count)


@lru_cache(maxsize=256)
def _collected(shape: Shape, seed: int, count: int) -> tuple[Program, ...]:
    found: list[Program] = []

    @seeded(derive_key(seed, 1))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
        verbosity=Verbosity.quiet,
    )
    @given(programs(shape, derive_key(seed, 2) & 0xFFFFFFFF))
    def collect(program: Program) -> None:
        found.append(program)

    collect()
    return tuple(found)
