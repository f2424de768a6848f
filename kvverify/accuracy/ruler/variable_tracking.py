"""Variable tracking: one chain of assignments hidden in noise, after an example of the same form."""

from __future__ import annotations

import random
import string
from dataclasses import dataclass

from kvverify.accuracy.ruler.sizing import Counts, Draft, Question, largest
from kvverify.accuracy.ruler.templates import NOISE, VARIABLES, Wording

HOPS = 4
LETTERS, EXAMPLE_LETTERS = 5, 3
EXAMPLE_TOKENS = 500
LEAST_LINES = HOPS + 1  # each assignment stands before another line


@dataclass(frozen=True, slots=True)
class Chain:
    """Variables, the value that all of them have, and the assignments. All but the first end in a space, as upstream's do."""

    variables: tuple[str, ...]
    value: str

    @property
    def lines(self) -> list[str]:
        """Return the assignments."""
        first, *others = self.variables
        hops = zip(others, self.variables, strict=False)
        return [f"VAR {first} = {self.value}", *(f"VAR {name} = VAR {before} " for name, before in hops)]

    @property
    def wording(self) -> Wording:
        """Return the task's wording for this chain."""
        return VARIABLES.filled(query=self.value, number=str(len(self.variables)))


def chain(rng: random.Random, letters: int) -> Chain:
    """Draw a chain of variables with so many letters; none is VAR."""
    names: dict[str, None] = {}
    while len(names) < HOPS + 1:
        names["".join(rng.choices(string.ascii_uppercase, k=letters))] = None
        names.pop("VAR", None)
    return Chain(tuple(names), str(rng.randint(10_000, 99_998)))


class VariableTracking:
    """Writes the task's samples."""

    many = None

    def __init__(self, counts: Counts, budget: int) -> None:
        self._counts, self._budget = counts, budget

    def draft(self, rng: random.Random, index: int) -> Draft:
        """Return sample ``index``; a unit is a line of noise."""
        counts = self._counts
        example = _example(chain(rng, EXAMPLE_LETTERS), counts, rng)
        asked, places = chain(rng, LETTERS), rng.getrandbits(64)
        line = counts.of(f"{NOISE}\n")
        fixed = counts.opening(asked.wording.head) + _after_head(asked, counts)
        fixed += counts.once([f"{example.removeprefix(asked.wording.head)}\n"])[0] + counts.of(asked.wording.head)

        def write(units: int) -> Question:
            prompt = f"{example}\n{_prompt(asked, units, random.Random(places))}"
            return Question(prompt, asked.wording.answer_prefix, asked.variables)

        return Draft(lambda n: fixed + n * line, write, LEAST_LINES, lambda: self._budget // line + 1)


def _example(solved: Chain, counts: Counts, rng: random.Random) -> str:
    """Return an example with its answer, of 500 tokens where that holds five lines of noise."""
    wording, answer = solved.wording, " ".join(solved.variables)
    line = counts.of(f"{NOISE}\n")
    fixed = counts.of(wording.head) + _after_head(solved, counts)
    lines = largest(lambda n: fixed + n * line <= EXAMPLE_TOKENS, LEAST_LINES, EXAMPLE_TOKENS) or LEAST_LINES
    return f"{_prompt(solved, lines, rng)}{wording.answer_prefix} {answer}\n"


def _prompt(asked: Chain, noise: int, rng: random.Random) -> str:
    """Return the prompt: each assignment, in the chain's order, before another line of noise."""
    places = sorted(rng.sample(range(noise), len(asked.variables)))
    lines = [NOISE] * noise
    for place, (shift, assignment) in zip(places, enumerate(asked.lines), strict=True):
        lines.insert(place + shift, assignment)
    return asked.wording.head + "\n".join(lines) + asked.wording.tail


def _after_head(asked: Chain, counts: Counts) -> int:
    """Return the tokens of the assignments and of what follows the context, its answer prefix included."""
    assignments = sum(counts.once([f"{line}\n" for line in asked.lines]))
    return assignments + counts.once([asked.wording.tail[1:] + asked.wording.answer_prefix])[0]
