"""The eight needle tasks: sentences that tell values of keys, hidden in noise, in essays, or among sentences of their own kind."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from kvverify.accuracy.ruler.haystack import Haystack
from kvverify.accuracy.ruler.sizing import Counts, Draft, Question
from kvverify.accuracy.ruler.templates import MANY_VALUES, NEEDLE, NOISE, ONE_VALUE, Wording
from kvverify.accuracy.ruler.words import adjectives, nouns

DEPTHS = tuple(round(100 * n / 39) for n in range(40))  # percent of the haystack's sentences
PROBED_LINES = 256  # whose mean tells, within half a percent, how many lines a budget may hold


@dataclass(frozen=True, slots=True)
class NeedleTask:
    """What is hidden where. ``kind`` words are upstream's: words, numbers, uuids."""

    haystack: str  # noise, essay, needle
    key: str = "words"
    value: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


TASKS = {
    "niah_single_1": NeedleTask("noise"),
    "niah_single_2": NeedleTask("essay"),
    "niah_single_3": NeedleTask("essay", value="uuids"),
    "niah_multikey_1": NeedleTask("essay", keys=4),
    "niah_multikey_2": NeedleTask("needle"),
    "niah_multikey_3": NeedleTask("needle", key="uuids", value="uuids"),
    "niah_multivalue": NeedleTask("essay", values=4),
    "niah_multiquery": NeedleTask("essay", keys=4, queries=4),
}


def number(rng: random.Random) -> str:
    """Return seven digits."""
    return str(rng.randint(1_000_000, 9_999_999))


def word(rng: random.Random) -> str:
    """Return an adjective and a noun."""
    return f"{rng.choice(adjectives())}-{rng.choice(nouns())}"


def random_uuid(rng: random.Random) -> str:
    """Return a UUID of version 4."""
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


KINDS: dict[str, Callable[[random.Random], str]] = {"numbers": number, "words": word, "uuids": random_uuid}


def distinct(draw: Callable[[], str], many: int) -> list[str]:
    """Return ``many`` different draws."""
    drawn: dict[str, None] = {}
    while len(drawn) < many:
        drawn[draw()] = None
    return list(drawn)


@dataclass(frozen=True, slots=True)
class Asked:
    """The needles in the order in which they are hidden, and what is asked of them."""

    needles: list[str]
    wanted: list[str]  # the needles that hold the answers
    wording: Wording
    references: tuple[str, ...]
    keys: frozenset[str]

    def question(self, context: str, cluster: str = "") -> Question:
        """Return the question around ``context``; its details tell the depth of each wanted needle in percent."""
        prompt = f"{self.wording.head}{context}{self.wording.tail}"
        depths = [round(100 * prompt.index(needle) / len(prompt)) for needle in self.wanted]
        return Question(prompt, self.wording.answer_prefix, self.references, cluster, {"depths": depths})


def ask(task: NeedleTask, rng: random.Random) -> Asked:
    """Draw keys, values and the query."""
    keys = distinct(lambda: KINDS[task.key](rng), task.keys)
    values = distinct(lambda: KINDS[task.value](rng), task.keys * task.values)
    of_key = {key: values[n * task.values : (n + 1) * task.values] for n, key in enumerate(keys)}
    needle = {v: NEEDLE.format(kind=task.value, key=key, value=v) for key, held in of_key.items() for v in held}
    needles = [needle[v] for v in values]
    rng.shuffle(needles)
    queries = rng.sample(keys, task.queries)
    references = tuple(v for query in queries for v in of_key[query])
    single = len(references) == 1
    wording = (ONE_VALUE if single else MANY_VALUES).filled(
        kind=task.value[:-1] if single else task.value, query=listed(queries)
    )
    return Asked(needles, [needle[r] for r in references], wording, references, frozenset(keys))


def listed(names: Sequence[str]) -> str:
    """Return names as upstream lists them.

    >>> listed(["a", "b", "c"])
    'a, b, and c'
    """
    return f"{', '.join(names[:-1])}, and {names[-1]}" if len(names) > 1 else names[0]


class InNoise:
    """Needles as lines among lines of one repeated text."""

    many = None

    def __init__(self, task: NeedleTask, counts: Counts, budget: int) -> None:
        self._task, self._counts, self._budget = task, counts, budget

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a line of noise."""
        asked, places = ask(self._task, rng), rng.getrandbits(64)
        counts = self._counts
        line = counts.of(f"{NOISE}\n")
        fixed = _ends(asked, counts) + sum(counts.once([f"{n}\n" for n in asked.needles]))

        def write(units: int) -> Question:
            return asked.question("\n".join(inserted([NOISE] * units, asked.needles, random.Random(places))))

        return Draft(lambda n: fixed + n * line, write, len(asked.needles), lambda: self._budget // line + 1)


class AmongNeedles:
    """Needles as lines among lines of the same form, with other keys."""

    many = None

    def __init__(self, task: NeedleTask, counts: Counts, budget: int) -> None:
        self._task, self._counts, self._budget = task, counts, budget

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a line."""
        asked, places = ask(self._task, rng), rng.getrandbits(64)
        counts = self._counts
        lines = _Lines(self._task, asked.keys, rng, counts)
        fixed = _ends(asked, counts) + sum(counts.once([f"{n}\n" for n in asked.needles]))

        def write(units: int) -> Question:
            return asked.question("\n".join(inserted(lines.first(units), asked.needles, random.Random(places))))

        def most() -> int:
            return int(1.02 * self._budget * PROBED_LINES / lines.tokens(PROBED_LINES)) + 8

        return Draft(lambda n: fixed + lines.tokens(n), write, len(asked.needles), most)


class _Lines:
    """As many lines with keys other than ``taken`` as are asked for, the same ones each time."""

    def __init__(self, task: NeedleTask, taken: frozenset[str], rng: random.Random, counts: Counts) -> None:
        self._task, self._taken, self._rng, self._counts = task, taken, rng, counts
        self._lines: list[str] = []
        self._sums = [0]

    def first(self, many: int) -> list[str]:
        key, value, kind = KINDS[self._task.key], KINDS[self._task.value], self._task.value
        while len(self._lines) < many:
            name, held = key(self._rng), value(self._rng)
            if name not in self._taken:
                self._lines.append(NEEDLE.format(kind=kind, key=name, value=held))
        return self._lines[:many]

    def tokens(self, many: int) -> int:
        counted = len(self._sums) - 1
        if many > counted:
            new = self._counts.once([f"{line}\n" for line in self.first(many)[counted:]])
            self._sums += list(accumulate(new, initial=self._sums[-1]))[1:]
        return self._sums[many]


class InEssays:
    """Needles between the sentences of essays. ``haystack`` gives that of sample i, and may draw it."""

    many = None

    def __init__(self, task: NeedleTask, counts: Counts, haystack: Callable[[random.Random, int], Haystack]) -> None:
        self._task, self._counts, self._haystack = task, counts, haystack

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a word of the essays."""
        asked = ask(self._task, rng)
        depths = sorted(rng.sample(DEPTHS, len(asked.needles)))
        hay = self._haystack(rng, index)

        def write(units: int) -> Question:
            return asked.question(" ".join(_pieces(hay, depths, asked.needles, units)), hay.cluster)

        one, two = (self._counts.once([f"{spaces}{n}" for n in asked.needles]) for spaces in (" ", "  "))
        fixed = _Fixed(_ends(asked, self._counts), one, two)
        return Draft(lambda n: _tokens(hay, depths, fixed, self._counts, n), write, 1, lambda: len(hay.words))


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Tokens of a question's ends, and of each needle behind one space and behind two."""

    ends: int
    behind_one: list[int]
    behind_two: list[int]


def _cuts(hay: Haystack, depths: Sequence[int], units: int) -> list[int]:
    """Return before which word each needle stands."""
    sentences = hay.sentences(units)
    positions = (int(sentences * (depth / 100)) for depth in depths)
    return [int(hay.starts[p]) if p < sentences else units for p in positions]


def _pieces(hay: Haystack, depths: Sequence[int], needles: Sequence[str], units: int) -> list[str]:
    """Return stretches of essay and needles in turn. An empty stretch is a piece, too: upstream's text has a second space there."""
    cuts = [0, *_cuts(hay, depths, units), units]
    stretches = [" ".join(hay.words[a:b]) for a, b in pairwise(cuts)]
    pieces = [piece for pair in zip(stretches, needles, strict=False) for piece in pair]
    return [*pieces, stretches[-1]]


def _tokens(hay: Haystack, depths: Sequence[int], fixed: _Fixed, counts: Counts, units: int) -> int:
    cuts = _cuts(hay, depths, units)
    before = [0, *cuts[:-1]]
    total = fixed.ends + int(hay.sums[units])
    for n, (previous, cut) in enumerate(zip(before, cuts, strict=True)):
        total += fixed.behind_two[n] if n and cut == previous else fixed.behind_one[n]
    if cuts[0] > 0:  # the first word follows a line break
        total += counts.of(hay.words[0]) - counts.of(f" {hay.words[0]}")
    if cuts[-1] == units:
        return total + counts.of(" \n")
    last = hay.words[units - 1]
    return total + counts.of(f" {last}\n") - counts.of(f" {last}")


def _ends(asked: Asked, counts: Counts) -> int:
    """Return the tokens of what stands before the context, and after its last line break."""
    return counts.opening(asked.wording.head) + counts.once([asked.wording.tail[1:] + asked.wording.answer_prefix])[0]


def inserted(lines: list[str], new: Sequence[str], rng: random.Random) -> list[str]:
    """Return ``lines`` with each of ``new`` before another random one of them."""
    places = sorted(rng.sample(range(len(lines)), len(new)), reverse=True)
    for place, line in zip(places, new, strict=True):
        lines.insert(place, line)
    return lines
