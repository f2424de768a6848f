"""The samples of a run, drawn twice: once for their keys, which arms are paired by, and once to be asked. Neither holds all of them."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, KeysView
from dataclasses import dataclass, field, replace

from kvverify.accuracy.sample import Sample
from kvverify.accuracy.source import SourceContext
from kvverify.accuracy.sources import source_named
from kvverify.accuracy.suite import Suite
from kvverify.errors import UsageError


@dataclass(frozen=True, slots=True)
class Drawn:
    """What will be asked. ``planned`` maps "task/length" to a number of samples, ``hash`` is over the keys of all of them."""

    planned: dict[str, int]
    hash: str
    keys: KeysView[str]
    rules: frozenset[str] = frozenset()  # by which answers are scored


@dataclass(slots=True)
class Draw:
    """The samples of ``suite``, the same ones in the same order each time: one of each task in turn."""

    suite: Suite
    context: SourceContext
    tell: Callable[[int], None] = field(default=lambda _: None)  # how many were drawn

    def samples(self) -> Iterator[Sample]:
        """Yield all samples.

        Raises:
            UsageError: a source refuses a task, or the corpora that it needs are missing.
        """
        turn = [
            _limited(source_named(task.source).samples(task, self.context), task.samples, task.lengths)
            for task in self.suite.tasks
        ]
        while turn:
            left = []
            for own in turn:
                sample = next(own, None)
                if sample is not None:
                    yield sample
                    left.append(own)
            turn = left

    def drawn(self) -> Drawn:
        """Return what all samples are.

        Raises:
            UsageError: as :meth:`samples`; and two samples are the same, or there are fewer than were asked for.
        """
        planned, keys, lines, rules = Counter[str](), dict[str, str](), [], set[str]()
        for sample in self.samples():
            place = f"{sample.task}/{sample.length}"
            key = sample.key
            if key in keys:
                raise UsageError(f"suite {self.suite.name}: {place} {sample.index} is the same sample as {keys[key]}")
            keys[key] = f"{place} {sample.index}"
            planned[place] += 1
            rules.add(sample.metric)
            lines.append(f"{place} {sample.index} {key}\n")
            self.tell(len(keys))
        if not keys:
            raise UsageError(f"suite {self.suite.name}: its sources gave no sample")
        digest = hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()
        return Drawn(dict(planned), digest, keys.keys(), frozenset(rules))

    def facts(self) -> dict[str, str]:
        """Return what identifies the data: the sources' facts by their name, and by the task where tasks differ."""
        found: dict[str, str] = {}
        for task in self.suite.tasks:
            for name, value in source_named(task.source).facts(replace(task), self.context).items():
                known = found.setdefault(f"{task.source} {name}", value)
                if known != value:
                    found[f"{task.source} {name} of {task.name}"] = value
        return found


def _limited(samples: Iterator[Sample], most: int, lengths: tuple[int, ...]) -> Iterator[Sample]:
    """Yield at most ``most`` samples of each length, where a source gives all it has."""
    seen = Counter[int]()
    for sample in samples:
        seen[sample.length] += 1
        if not most or seen[sample.length] <= most:
            yield sample
        elif all(seen[length] > most for length in lengths if length) and len(seen) >= len(lengths):
            return
