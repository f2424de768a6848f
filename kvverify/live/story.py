"""Plain text that a small model can answer a question about: sentences, one secret among them, a question at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

SENTENCES = 64  # different sentences; a long text repeats them in another order
SECRETS = 900_000  # numbers of six digits
_STRIDE = 524_287  # prime, and no divisor of SECRETS: consecutive numbers give different secrets, up to SECRETS of them

_NAMES = (
    "Ada",
    "Bruno",
    "Clara",
    "Diego",
    "Elena",
    "Felix",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Karla",
    "Leo",
    "Mina",
    "Nils",
)
_PLACES = (
    "Lisbon",
    "Oslo",
    "Vienna",
    "Prague",
    "Porto",
    "Bergen",
    "Turin",
    "Ghent",
    "Malaga",
    "Riga",
    "Dublin",
    "Zurich",
)
_PEOPLE = ("baker", "teacher", "gardener", "captain", "painter", "farmer", "doctor", "carpenter", "librarian", "tailor")
_DEEDS = (
    "sold {n} {things} at the market",
    "carried {n} {things} across the old bridge",
    "counted {n} {things} before sunset",
    "found {n} {things} behind the station",
    "sent {n} {things} to a friend by train",
    "wrote a long letter about {n} {things}",
    "lost {n} {things} during the storm",
    "painted {n} {things} on the garden wall",
)
_THINGS = (
    "apples",
    "lamps",
    "boats",
    "books",
    "chairs",
    "candles",
    "baskets",
    "clocks",
    "kites",
    "bottles",
    "maps",
    "stones",
)
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


@dataclass(frozen=True, slots=True)
class Story:
    """The parts of one prompt. ``opening`` begins with a number that no other story has."""

    opening: str
    needle: str
    question: str
    secret: str
    depth: float  # where in the text the needle stands, 0 start, 1 end
    order: tuple[int, ...]  # of the sentences


def sentences() -> list[str]:
    """Return the sentences of all stories; always the same."""
    rng = random.Random("sentences")
    return [_sentence(rng) for _ in range(SENTENCES)]


def tell(seed: int, number: int) -> Story:
    """Return story ``number``. No two stories of one ``seed`` with numbers below 900,000 share a secret or an opening."""
    rng = random.Random(f"{seed}/{number}")
    name, place = rng.choice(_NAMES), rng.choice(_PLACES)
    secret = str(100_000 + (random.Random(seed).randrange(SECRETS) + _STRIDE * number) % SECRETS)
    return Story(
        opening=f"{rng.getrandbits(40):010X}{number:05X} is the number of this notebook, which {name} keeps in {place}.",
        needle=f"The secret number of {name} is {secret}.",
        question=f"\n\nQuestion: What is the secret number of {name}?\nAnswer: The secret number of {name} is",
        secret=secret,
        depth=rng.uniform(0.1, 0.7),
        order=tuple(rng.sample(range(SENTENCES), SENTENCES)),
    )


def endless(order: tuple[int, ...]) -> Iterator[int]:
    """Yield numbers of sentences for ever: ``order``, then ``order`` shuffled again and again."""
    rng = random.Random(str(order))
    while True:
        yield from order
        order = tuple(rng.sample(order, len(order)))


def _sentence(rng: random.Random) -> str:
    deed = rng.choice(_DEEDS).format(n=rng.randrange(2, 99), things=rng.choice(_THINGS))
    return f"On {rng.choice(_DAYS)} the {rng.choice(_PEOPLE)} of {rng.choice(_PLACES)} {deed}."
