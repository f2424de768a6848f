"""Sessions of the isolation test: prompts with one shared beginning and a secret each, and what an answer gives away.

A prompt is shared prefix, own part and question. All but the question is whole units of the lower tier, hence comes from there;
the question is the same for all, so that only the cache can know the secret. A secret stands once, elsewhere in each session: a
damaged block at any place costs some session its answer.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kvverify.live.answer import Answer
from kvverify.live.prompt import Prompt

Tokenize = Callable[[str, bool], Awaitable[list[int]]]  # text, with special tokens -> ids

_KEY = "secret code:"
_CERTAIN = (
    0.6  # the runner-up then has 0.4 at most; batches moved probabilities of a 4-bit cache by up to 0.1 (results/h200)
)
_DIGITS, _TRACE = 8, 6  # digits of a secret; as many of them betray it
_WORDS = (
    "river",
    "stone",
    "garden",
    "window",
    "morning",
    "letter",
    "yellow",
    "market",
    "silver",
    "winter",
    "bridge",
    "forest",
    "candle",
    "music",
    "paper",
    "harbour",
    "kitchen",
    "summer",
    "travel",
    "doctor",
    "circle",
    "orange",
    "butter",
    "animal",
    "planet",
    "mirror",
    "island",
    "cotton",
    "ladder",
    "valley",
)
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True, slots=True)
class Session:
    """One prompt and what its answer must give. ``shared_tokens`` of its beginning are those of all others, too."""

    name: str
    prompt: Prompt
    shared_tokens: int = 0

    @property
    def secret(self) -> str:
        """What a right answer gives."""
        return self.prompt.secret


@dataclass(frozen=True, slots=True)
class Found:
    """What an answer holds: its own secret, and the names of the sessions whose secrets it holds."""

    right: bool
    foreign: tuple[str, ...]


async def secret_sessions(
    tokenize: Tokenize, count: int, *, depths: int, unit: int, shared_units: int, own_units: int, seed: int
) -> list[Session]:
    """Return ``count`` sessions of equal length.

    Args:
        tokenize: the server's tokenizer.
        count: number of sessions.
        depths: places of a secret in a session's own part, from its beginning to its end, taken in turn.
        unit: tokens in which the lower tier is hit.
        shared_units: units of the shared prefix.
        own_units: units of each session's own part; more are taken where a secret needs them.
        seed: of words and secrets.
    """
    shared = await _filled(tokenize, random.Random(f"shared {seed}"), shared_units * unit, special=True)
    question = await tokenize(f"\n{_KEY}", False)
    secrets = _secrets(random.Random(f"isolation {seed}"), count)
    statements = [await tokenize(f"\n{_KEY} {secret}\n", False) for secret in secrets]
    longest = max(len(statement) for statement in statements)
    own_tokens = max(own_units, -(-2 * longest // unit)) * unit
    found = []
    for number, (secret, statement) in enumerate(zip(secrets, statements, strict=True)):
        filler = await _filled(tokenize, random.Random(f"{seed} {number}"), own_tokens - len(statement), special=False)
        place = number % depths * len(filler) // max(1, depths - 1)
        body = [*shared, *filler[:place], *statement, *filler[place:], *question]
        prompt = Prompt(body, len(body), secret, f"session {number:02d}")
        found.append(Session(prompt.name, prompt, len(shared)))
    return found


async def early_sessions(tokenize: Tokenize, count: int, *, unit: int, units: int, seed: int) -> list[Session]:
    """Return up to ``count`` sessions of equal length that differ in one token near the beginning, which is the secret.

    Fewer, perhaps none, where the tokenizer has not so many words that differ in one token.
    """
    alike = _differing_once({word: await tokenize(f"{_KEY} {word}\n", True) for word in (*_WORDS, *_LETTERS)})
    chosen = dict(list(alike.items())[:count])
    if len(chosen) < 2:
        return []
    length = len(next(iter(chosen.values())))
    # no secret among them: a weak model that gives any word of its own prompt would look like a leak
    others = [word for word in _WORDS if word not in chosen]
    chance = random.Random(f"early {seed}")
    filler = await _filled(tokenize, chance, units * unit - length, special=False, words=others)
    question = await tokenize(f"\n{_KEY}", False)
    bodies = {word: [*ids, *filler, *question] for word, ids in chosen.items()}
    return [
        Session(f"early token {word}", Prompt(body, len(body), word, f"early token {word}"))
        for word, body in bodies.items()
    ]


def _differing_once(candidates: dict[str, list[int]]) -> dict[str, list[int]]:
    """Return the largest set of candidates of one length that differ in the token at one and the same place."""
    groups: dict[tuple[int, tuple[int, ...]], dict[str, list[int]]] = {}
    taken: set[tuple[int, tuple[int, ...], int]] = set()
    for word, ids in candidates.items():
        for place, token in enumerate(ids):
            rest = (place, tuple(ids[:place] + ids[place + 1 :]))
            if (*rest, token) not in taken:
                taken.add((*rest, token))
                groups.setdefault(rest, {})[word] = ids
    return max(groups.values(), key=len, default={})


def _secrets(chance: random.Random, count: int) -> list[str]:
    """Return ``count`` numbers of eight digits no two of which begin alike."""
    found: dict[str, str] = {}
    while len(found) < count:
        secret = str(chance.randrange(10 ** (_DIGITS - 1), 10**_DIGITS))
        found.setdefault(secret[:_TRACE], secret)
    return list(found.values())


async def _filled(
    tokenize: Tokenize, chance: random.Random, tokens: int, *, special: bool, words: Sequence[str] = _WORDS
) -> list[int]:
    """Return exactly ``tokens`` tokens of meaningless text; a word has at least one."""
    if tokens <= 0:
        return []
    ids = await tokenize("".join(f" {chance.choice(words)}" for _ in range(tokens + 8)), special)
    return ids[:tokens]


def certain(answer: Answer, secret: str) -> bool:
    """Was no token of ``secret`` at the beginning of the answer a toss-up?

    A token with more than half of the probability has no near rival. Two that are almost equal change places with whoever shares
    the batch, which is no fault of a cache.
    """
    text = ""
    for part, logprob in zip(answer.texts, answer.logprobs, strict=True):
        if secret in text:
            break
        if math.exp(logprob) < _CERTAIN:
            return False
        text += part
    return True


def examine(text: str, session: Session, others: Sequence[Session]) -> Found:
    """Return whose secrets the answer ``text`` of ``session`` holds.

    Numbers are found by their first six digits, wherever they stand: a mixture of two sessions is foreign content, too. A word is
    only the first of the answer.
    """
    words = re.findall(r"\w+", text)

    def holds(secret: str, letters: int) -> bool:
        return secret[:letters] in text if secret.isdigit() else words[:1] == [secret]

    foreign = tuple(o.name for o in others if o.secret != session.secret and holds(o.secret, _TRACE))
    return Found(holds(session.secret, _DIGITS), foreign)
