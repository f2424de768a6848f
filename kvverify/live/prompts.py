"""Prompts of an exact length in tokens, and the length at which all tiers hit the same number of tokens.

With n = k * unit + r and 1 <= r < block, HBM and the lower tier both stop at k * unit: HBM never hits a prompt's last token and
rounds down to blocks, a lower tier rounds down to its unit. Other lengths compare suffixes of different lengths, which round
differently with no fault anywhere.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from typing import Any

from kvverify.errors import UsageError
from kvverify.live.client import Client
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import EngineInfo
from kvverify.live.prompt import Prompt
from kvverify.live.story import Story, endless, sentences, tell

LEAST_UNITS = 3  # with fewer, hybrid models may rightly hit nothing
STORY_TOKENS = 320  # a story and its question, even where a token is a byte
FIRST_FILLER = 450_000  # numbers of stories from here on are fillers
TRIES = 40  # of a text whose tokens are counted by the server
_PADS = (" so", " and", " then", ".", " a", "\n", " 7")

Count = Callable[[str], Awaitable[int]]


def units_of(info: EngineInfo, tokens: int) -> int:
    """Return the hit units that hold ``tokens`` tokens, and at least as many as are needed for a hit everywhere."""
    return max(LEAST_UNITS, -(-tokens // (info.hit_tokens or info.block_tokens or 1)))


def equal_length(info: EngineInfo, units: int = LEAST_UNITS, *, tail: int | None = None, room: int = 0) -> int:
    """Return n = units * unit + r tokens, where every tier hits units * unit; r is ``tail``, by default half a block.

    ``room`` tokens are to be generated. A block of one token has no such r; its engines hit all but the last token, so r is 1.

    Raises:
        UsageError: the server does not tell its block, ``tail`` is no such r, or the prompt does not fit the context.
    """
    block = info.block_tokens or info.hit_tokens
    unit = info.hit_tokens or info.block_tokens
    if not block or not unit:
        raise UsageError(
            f"{info.engine} does not tell its block size: no prompt length is known at which all tiers hit alike"
        )
    if units < LEAST_UNITS:
        raise UsageError(
            f"prompts of {units} units of {unit} tokens: at least {LEAST_UNITS} are needed for a hit everywhere"
        )
    rest = max(1, block // 2) if tail is None else tail
    if not 1 <= rest <= max(1, block - 1):
        raise UsageError(f"a tail of {rest} tokens: expected 1 to {max(1, block - 1)}, less than a block of {block}")
    tokens = units * unit + rest
    if info.max_context is not None and tokens + room > info.max_context:
        raise UsageError(
            f"prompts of {tokens} tokens and answers of {room} are beyond the context of {info.max_context}: "
            f"use at most {max(0, info.max_context - room - rest) // unit} units of {unit} tokens"
        )
    return tokens


class Tokenizer:
    """A server's own tokenizer, by ``POST /tokenize`` as vLLM and SGLang or as llama.cpp have it."""

    def __init__(self, control: Control, model: str) -> None:
        self._control, self._model = control, model

    async def ids(self, text: str, *, start: bool = False) -> list[int]:
        """Return the token ids of ``text``; ``start`` puts what the model has at the start of a prompt before them.

        Raises:
            ServerProblem: the server has no ``/tokenize``, or answers something else.
        """
        forms: list[dict[str, Any]] = [
            {"model": self._model, "prompt": text, "add_special_tokens": start},
            {"content": text, "add_special": start},
        ]
        answer: Any = None
        for form in forms:
            answer = await self._control.post_json("/tokenize", form)
            tokens = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(tokens, list) and tokens and all(type(t) is int for t in tokens):
                return tokens
        raise ServerProblem(f"POST {self._control.url}/tokenize: expected token ids, got {str(answer)[:80]!r}")

    async def works(self) -> bool:
        """Does the server have one?"""
        try:
            return bool(await self.ids("A word."))
        except ServerProblem:
            return False


def count_by_usage(client: Client, salt: str) -> Count:
    """Return a counter that sends the text as a prompt and reads its usage, for servers without ``/tokenize``.

    Each count costs a prefill and leaves the text in the caches, under ``salt`` where the server knows salts.
    """

    async def count(text: str) -> int:
        answer = await client.complete(text, max_tokens=1, salt=salt)
        if answer.error:
            raise ServerProblem(f"counting the tokens of a prompt: {answer.error}")
        return answer.prompt_tokens

    return count


class Writer:
    """Writes prompts by the ids of a :class:`Tokenizer`, or as text whose tokens ``count`` counts.

    ``seed`` must be new in each run: a server remembers the prompts of the last one, and a known filler overwrites nothing.
    """

    def __init__(self, source: Tokenizer | Count, seed: int) -> None:
        self._source, self._seed = source, seed
        self._sentences = [f" {s}" for s in sentences()]
        self._ids: list[list[int]] = []  # of each sentence, once asked for
        self._filler_numbers = itertools.count(FIRST_FILLER)

    async def write(self, tokens: int, number: int) -> Prompt:
        """Return prompt ``number``: exactly ``tokens`` tokens with a secret in the first 70 % of the text.

        Raises:
            UsageError: ``tokens`` do not hold the question, or the tokens cannot be met by adding words.
            ServerProblem: the server does not tokenize.
        """
        story = tell(self._seed, number)
        body = await (
            self._by_ids(self._source, story, tokens)
            if isinstance(self._source, Tokenizer)
            else self._by_count(self._source, story, tokens)
        )
        return Prompt(body, tokens, story.secret, f"{'filler' if number >= FIRST_FILLER else 'prompt'} {number}")

    async def unheard(self, tokens: int) -> Prompt:
        """Return a prompt of ``tokens`` tokens that was never written before; numbered as fillers are."""
        return await self.write(tokens, next(self._filler_numbers))

    async def fillers(self, info: EngineInfo, *, room: int = 1) -> list[Prompt]:
        """Return prompts that, one after the other, take every block of HBM once and one prompt's blocks more.

        Each call returns new ones, for HBM that holds a filler already is not overwritten by it. ``room`` tokens are
        generated for each.

        Raises:
            UsageError: the server does not tell its block, its context or what HBM holds.
            ServerProblem: the server does not tokenize.
        """
        capacity, block = info.capacity_tokens.get("hbm"), info.block_tokens
        if not capacity or not block or not info.max_context:
            raise UsageError(
                f"{info.engine} does not tell its block, its context or its capacity: HBM cannot be filled over"
            )
        longest = min(info.max_context - room, capacity - block) // block * block
        many = math.ceil(capacity / longest) + 1 if longest > 0 else 0
        if not many:
            raise UsageError(
                f"HBM holds {capacity} tokens and the context {info.max_context}: too few for a block of {block}"
            )
        return [await self.unheard(longest) for _ in range(many)]

    async def _by_ids(self, source: Tokenizer, story: Story, tokens: int) -> list[int]:
        if not self._ids:
            self._ids = [await source.ids(s) for s in self._sentences]
        head = await source.ids(story.opening, start=True)
        needle, question = await source.ids(f" {story.needle}"), await source.ids(story.question)
        room = tokens - len(head) - len(needle) - len(question)
        if room < 0:
            raise UsageError(
                f"a prompt of {tokens} tokens is too short for its question: expected at least {tokens - room}"
            )
        text, split = list[int](), 0
        for sentence in endless(story.order):
            if len(text) >= room:
                break
            split = len(text) if len(text) <= story.depth * room else split
            text += self._ids[sentence]
        del text[room:]  # in the middle of a sentence: the length is exact
        return [*head, *text[:split], *needle, *text[split:], *question]

    async def _by_count(self, count: Count, story: Story, tokens: int) -> str:
        known: dict[int, int] = {}

        async def tokens_of(words: int) -> int:
            if words not in known:
                known[words] = await count(self._text(story, words))
            return known[words]

        if await tokens_of(0) > tokens:
            raise UsageError(f"a prompt of {tokens} tokens is too short for its question: expected at least {known[0]}")
        low, high, guess, rate = 0, tokens, 0, 1.3  # words that fit, that do not, the last try, tokens of a word
        while high - low > 1:
            guess = min(high - 1, max(low + 1, guess + int((tokens - known[guess]) / rate)))
            low, high = (guess, high) if await tokens_of(guess) <= tokens else (low, guess)
            rate = max(1.0, (known[guess] - known[0]) / guess)
        tails = (p * n for n in range(tokens - known[low] + 1) for p in _PADS)
        for pad in itertools.islice(dict.fromkeys(tails), TRIES):
            text = self._text(story, low, pad)
            if await count(text) == tokens:
                return text
        raise UsageError(
            f"no text of exactly {tokens} tokens was found: the server has no /tokenize, and {TRIES} tries failed"
        )

    def _text(self, story: Story, words: int, pad: str = "") -> str:
        """Return the story with a text of so many words, padded before the question."""
        stream = itertools.chain.from_iterable(self._sentences[s].split() for s in endless(story.order))
        text = list(itertools.islice(stream, words))
        depth = int(story.depth * words)
        return " ".join([story.opening, *text[:depth], story.needle, *text[depth:]]) + pad + story.question
