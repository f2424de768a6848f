"""One sample asked and scored. A failed request, or one that the server did not read whole, is an error and never a score."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kvverify.accuracy.checkers.tool_call import calls_text
from kvverify.accuracy.sample import Sample
from kvverify.accuracy.scoring import BLOCKING, JUDGED, score
from kvverify.accuracy.source import Tokenizer
from kvverify.accuracy.template import NONE, Template
from kvverify.events_accuracy import NOT_JUDGED, SampleAnswered
from kvverify.live.answer import Answer
from kvverify.live.client import Client
from kvverify.live.control import Control, ServerProblem

UNKNOWN = -1  # tokens
_WORD = "a"


@dataclass(frozen=True, slots=True)
class Question:
    """A sample as it is sent: ``text`` rendered, or None where the server renders; ``tokens`` are ours, -1 where not known."""

    sample: Sample
    key: str
    text: str | None
    tokens: int


@dataclass(frozen=True, slots=True)
class Manner:
    """How samples of one run are asked. ``salt`` of this attempt, empty: none.

    ``replay``: twice, and the second answer counts once it hit all whole blocks of ``block`` tokens (0: not known) but the last token's.
    """

    temperature: float = 0.0
    seed: int = 0
    salt: str = ""
    replay: bool = False
    block: int = 0

    def fields(self, question: Question) -> dict[str, Any]:
        """Return the request's fields beside prompt and length. A salt of its own keeps a sample's cache entries apart."""
        salt = f"{self.salt}-{question.key[:16]}" if self.salt else ""
        return {
            "temperature": self.temperature,
            "seed": self.seed,
            **({"stop": list(question.sample.stop)} if question.sample.stop else {}),
            **({"cache_salt": salt} if salt else {}),
        }


def questions_of(
    samples: Sequence[Sample], template: Template, tokenizer: Tokenizer, *, trust: bool = False
) -> list[Question]:
    """Render ``samples`` and count their tokens, all in one call, with the start token that the server puts before them.

    ``trust`` takes the count of the source where nothing stands around the prompt: at 128k tokens counting takes half a second.
    """
    texts = [None if s.messages or template.chat else template.text(s) for s in samples]
    trusted = trust and template.name == NONE
    counted = {n: text for n, text in enumerate(texts) if text is not None and not (trusted and samples[n].tokens > 0)}
    start = start_tokens(tokenizer)
    counts = dict(zip(counted, tokenizer.counts(list(counted.values())), strict=True)) if counted else {}
    return [
        Question(
            sample,
            sample.key,
            text,
            UNKNOWN if text is None else start + counts[n] if n in counts else sample.tokens,
        )
        for n, (sample, text) in enumerate(zip(samples, texts, strict=True))
    ]


def start_tokens(tokenizer: Tokenizer) -> int:
    """Return how many tokens the server puts before a prompt."""
    return len(tokenizer.ids(_WORD, start=True)) - len(tokenizer.ids(_WORD))


def counter(tokenizer: Tokenizer) -> Callable[[str], int]:
    """Return a function that counts a text's tokens as the server does."""
    start = start_tokens(tokenizer)
    return lambda text: start + tokenizer.counts([text])[0]


@dataclass(frozen=True, slots=True)
class Received:
    """What came back for a question, its tokens counted anew where that was needed; ``error`` is another than the answer's own."""

    question: Question
    answer: Answer
    error: str = ""


async def scored(got: Received, endpoint: int) -> SampleAnswered:
    """Score what was received; in a thread where that takes seconds."""
    if got.question.sample.metric in BLOCKING:
        return await asyncio.to_thread(answered, got.question, got.answer, endpoint, error=got.error)
    return answered(got.question, got.answer, endpoint, error=got.error)


@dataclass(slots=True)
class Asker:
    """Asks samples of one endpoint, number ``endpoint``; ``control`` is for what its server is asked besides."""

    client: Client
    manner: Manner
    endpoint: int = 0
    control: Control | None = None
    counts: bool = field(default=True)  # until the server refuses to count
    recount: Callable[[str], int] | None = None  # tokens of a text, where those of a question are the source's word

    async def ask(self, question: Question) -> SampleAnswered:
        """Return the scored answer, or the error."""
        return await scored(await self.receive(question), self.endpoint)

    async def receive(self, question: Question) -> Received:
        """Return the answer as it came; for scoring elsewhere."""
        if question.text is None and question.tokens == UNKNOWN:
            question = Question(question.sample, question.key, None, await self._chat_tokens(question.sample))
        if self.manner.replay:
            first = await self.send(question, 1)
            if first.error:
                return Received(question, first)
        answer = await self.send(question, question.sample.max_tokens)
        if self.recount and question.text is not None and question.tokens != answer.prompt_tokens and not answer.error:
            question = replace(question, tokens=self.recount(question.text))
        return Received(question, answer, self._not_hit(answer) if self.manner.replay else "")

    def _not_hit(self, answer: Answer) -> str:
        """Return what a replayed answer did not read from the cache, empty where it read all it can."""
        if answer.cached_tokens == UNKNOWN or not self.manner.block:
            return "replay not proved: the server tells no cached tokens, or not its block"
        expected = (answer.prompt_tokens - 1) // self.manner.block * self.manner.block
        missed = expected - answer.cached_tokens
        return f"replay hit {answer.cached_tokens} tokens, expected {expected}" if missed > 0 else ""

    async def send(self, question: Question, max_tokens: int) -> Answer:
        """Send ``question`` once."""
        extra = self.manner.fields(question)
        if question.text is not None:
            return await self.client.complete(question.text, max_tokens=max_tokens, extra=extra)
        messages = messages_of(question.sample)
        return await self.client.chat(messages, max_tokens=max_tokens, tools=question.sample.tools, extra=extra)

    async def _chat_tokens(self, sample: Sample) -> int:
        """Return the server's own count of a conversation, by ``/tokenize`` as vLLM has it; -1 where there is none."""
        if self.control is None or not self.counts:
            return UNKNOWN
        body = {"model": self.client.model, "messages": messages_of(sample), "add_generation_prompt": True}
        try:
            told = await self.control.post_json(
                "/tokenize", {**body, **({"tools": list(sample.tools)} if sample.tools else {})}
            )
        except ServerProblem:
            self.counts = False
            return UNKNOWN
        count = told.get("count") if isinstance(told, dict) else None
        return count if type(count) is int else UNKNOWN


def messages_of(sample: Sample) -> list[dict[str, Any]]:
    """Return the conversation that is sent for ``sample``; an answer prefix is lost where the server renders."""
    return [dict(m) for m in sample.messages] or [{"role": "user", "content": sample.prompt}]


def counts_differ(event: SampleAnswered) -> bool:
    """Did the server read another number of prompt tokens than were sent?"""
    return UNKNOWN not in (event.sent_tokens, event.prompt_tokens) and event.sent_tokens != event.prompt_tokens


def answered(question: Question, answer: Answer, endpoint: int = 0, *, error: str = "") -> SampleAnswered:
    """Return the scored answer; ``error``, where it is not worth a score for another reason than a failed request."""
    sample = question.sample
    error = answer.error or error
    sent, told = question.tokens, answer.prompt_tokens
    if not error and UNKNOWN not in (sent, told) and sent != told:
        error = f"the server read {told} prompt tokens, {sent} were sent"
    if not error and sample.metric in JUDGED:
        error = NOT_JUDGED
    text = calls_text(answer.tool_calls, answer.text) if answer.tool_calls else answer.text
    found = None if error else score(sample, text)
    return SampleAnswered(
        task=sample.task,
        length=sample.length,
        index=sample.index,
        key=question.key,
        cluster=sample.cluster,
        score=found.value if found else 0.0,
        binary=found.binary if found else True,
        prompt_tokens=told,
        sent_tokens=sent,
        cached_tokens=answer.cached_tokens,
        output_tokens=answer.output_tokens,
        text=text,
        finish=answer.finish,
        format_error=found.format_error if found else "",
        aspects=found.aspects if found else {},
        ttft=answer.ttft,
        itl=answer.itl,
        seconds=answer.seconds,
        endpoint=endpoint,
        error=error,
    )
