"""Prometheus metrics of a server, and waiting until they rest."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.parser import text_string_to_metric_families

from kvverify.live.control import ServerProblem

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a scrape."""

    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A scrape. ``samples`` maps names as they stand in the text (with ``_total``, ``_sum``, ``_bucket``) to their samples."""

    samples: dict[str, tuple[Sample, ...]]

    def of(self, name: str, **labels: str) -> tuple[Sample, ...]:
        """Return the samples called ``name``, or ``name`` with ``_total``, that carry ``labels`` and maybe others."""
        found = self.samples.get(name) or self.samples.get(f"{name}_total", ())
        return tuple(s for s in found if all(s.labels.get(label) == value for label, value in labels.items()))

    def total(self, name: str, **labels: str) -> float | None:
        """Return the sum over all samples of :meth:`of`; None where there is none, or where it is not a finite number."""
        found = self.of(name, **labels)
        value = math.fsum(s.value for s in found if math.isfinite(s.value))
        return value if found and all(math.isfinite(s.value) for s in found) else None


def parse(text: str) -> Metrics:
    """Return the metrics in Prometheus' text format.

    Raises:
        ServerProblem: the text is in another format.
    """
    samples: dict[str, list[Sample]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples.setdefault(sample.name, []).append(Sample(dict(sample.labels), float(sample.value)))
    except (ValueError, IndexError, KeyError) as error:  # what the parser raises on text that is not its own
        raise ServerProblem(f"metrics: expected Prometheus' text format, got {text[:80]!r}") from error
    return Metrics({name: tuple(values) for name, values in samples.items()})


async def settled(read: Callable[[], Awaitable[T]], interval: float = 0.25, limit: float = 10.0) -> T:
    """Call ``read`` every ``interval`` seconds until two readings in a row are equal, and return that reading.

    Engines publish their counters with the next engine step, so that the first reading after an answer may be old.

    Raises:
        ServerProblem: no two readings agreed within ``limit`` seconds.
    """
    end = time.monotonic() + limit
    last = await read()
    while True:
        await asyncio.sleep(interval)
        now = await read()
        if now == last:
            return now
        if time.monotonic() > end:
            raise ServerProblem(
                f"counters did not come to rest within {limit:g} s: is another client at work? last changed from {last} to {now}"
            )
        last = now
