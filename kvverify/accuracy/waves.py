"""An arm that is read from a tier: samples go through passes in waves, and an answer counts where the gate of its pass is satisfied.

    compute     every sample is sent once, one token: it is in HBM now, and in the lower tier
    prepare     dram, disk: HBM is flushed and overwritten · hbm: nothing · scramble: the packed layers of HBM are overwritten
    measure     the same samples again; the first ones of a run one by one with a gate each, the others at once with one on totals

Each sample has a salt of its own, hence no two share a prefix and every sample must hit all of itself. A prompt of whole blocks gets a
line break in front: engines do not agree how they count a hit of all tokens, one of which is computed again.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvverify.accuracy.ask import Manner, Question, answered
from kvverify.accuracy.options import HBM, LOWER, SCRAMBLE, AccuracyOptions
from kvverify.errors import KvverifyError
from kvverify.events import Event, GateEvaluated, RequestAnswered
from kvverify.events_accuracy import SampleAnswered
from kvverify.live.answer import Answer
from kvverify.live.engine import FlushFailed
from kvverify.live.prompt import Prompt
from kvverify.tierdiff.server import Item, Pass, Server

SHARE = 2  # the samples of a wave take at most this part of the tier that must hold them all
ATTEMPTS = 2  # of a sample whose gate was not satisfied
COMPUTE = "compute"
_PADS = ("\n", " ", "\n\n")


def arm_name(options: AccuracyOptions) -> str:
    """Return the name of the arm in gates."""
    return SCRAMBLE if options.control == SCRAMBLE else options.tier


def quiet(emit: Callable[[Event], None]) -> Callable[[Event], None]:
    """Return ``emit`` without requests: what is to be said of a sample stands in its own event."""
    return lambda event: None if isinstance(event, RequestAnswered) else emit(event)


@dataclass(slots=True)
class Waves:
    """The passes of one run. ``serial`` samples are still to get a gate each; ``tell`` is given every answer.

    ``count`` returns the tokens of a text, as the server counts them.
    """

    server: Server
    options: AccuracyOptions
    manner: Manner
    emit: Callable[[Event], None]
    tell: Callable[[SampleAnswered], None]
    count: Callable[[str], int]
    serial: int
    number: int = 0  # of the next wave
    heard: dict[tuple[str, int], Answer] = field(default_factory=dict)
    again: list[tuple[int, Question]] = field(default_factory=list)

    async def run(self, questions: Iterator[Question]) -> None:
        """Take all samples through the passes, those that no gate proves a second time.

        Raises:
            KvverifyError: the server is gone, somebody else uses it, or it cannot overwrite its packed layers.
        """
        server = self.server
        server.hear = lambda arm, item, answer: self.heard.__setitem__((arm, item.request), answer)
        server.emit = quiet(self._with_scramble)
        todo: Iterator[tuple[int, Question]] = zip(itertools.repeat(1), questions, strict=False)
        while wave := await asyncio.to_thread(self._next, todo):
            await self._wave(wave)
        while self.again:
            first, self.again = iter(self.again), []
            while wave := self._next(first):
                await self._wave(wave)

    _scrambled: str = ""

    def _with_scramble(self, event: Event) -> None:
        if isinstance(event, GateEvaluated) and self._scrambled:
            event = replace(event, witnesses=[*event.witnesses, self._scrambled])
        self.emit(event)

    def _next(self, todo: Iterator[tuple[int, Question]]) -> list[tuple[int, Question]]:
        """Return the samples of the next wave: as many as the tier holds together."""
        room, wave = self._room(), list[tuple[int, Question]]()
        most = min(self.serial, self.options.wave) or self.options.wave
        used = 0
        for attempt, sample in todo:
            question = self._padded(sample)
            wave.append((attempt, question))
            used += question.tokens + question.sample.max_tokens + self._block()
            # the next one may be as long as the longest so far
            longest = max(q.tokens + q.sample.max_tokens + self._block() for _, q in wave)
            if len(wave) >= most or (room is not None and SHARE * (used + longest) > room):
                break
        return wave

    def _room(self) -> int | None:
        """Return the tokens of the tier that holds a whole wave; None: not known."""
        capacity = self.server.info.capacity_tokens
        lower = capacity.get(self.server.info.lower_tier) if self.options.tier in LOWER else None
        return capacity.get("hbm") if lower is None else lower

    def _padded(self, question: Question) -> Question:
        """Return ``question`` with a tail beyond its whole blocks."""
        block, context = self._block(), self.server.info.max_context
        full = context is not None and question.tokens + 1 + question.sample.max_tokens > context
        if not block or question.tokens % block or question.text is None or full:
            return question
        padded = (replace(question, text=pad + question.text, tokens=self.count(pad + question.text)) for pad in _PADS)
        return next((q for q in padded if q.tokens % block), question)

    def _block(self) -> int:
        return self.server.info.block_tokens or 0

    async def _wave(self, wave: Sequence[tuple[int, Question]]) -> None:
        server, arm = self.server, arm_name(self.options)
        server.round, self.number = self.number, self.number + 1
        self._scrambled = ""
        self.heard.clear()
        items = {number: self._item(number, question) for number, (_, question) in enumerate(wave)}
        await asyncio.gather(*(server.ask(COMPUTE, replace(item, max_tokens=1)) for item in items.values()))
        failed = {n for n in items if self.heard[COMPUTE, n].error}
        for number in failed:
            self.tell(answered(wave[number][1], self.heard[COMPUTE, number]))
        left = [item for number, item in items.items() if number not in failed]
        if not left:
            return
        await server.settle()
        poisoned = await self._prepare()
        done = await self._measure(arm, left, poisoned=poisoned)
        for item in left:
            self._judge(*wave[item.request], done, arm, item.request)

    def _item(self, number: int, question: Question) -> Item:
        assert question.text is not None  # conversations are refused before
        prompt = Prompt(question.text, question.tokens, name=question.key[:16])
        return Item(number, prompt, question.sample.max_tokens, extra=self.manner.fields(question))

    async def _prepare(self) -> bool:
        """Bring HBM into the state of the arm; return whether it was overwritten."""
        if self.options.control == SCRAMBLE:
            scramble = getattr(self.server.engine, "scramble", None)
            if scramble is None:
                raise KvverifyError(
                    f"--control scramble: {self.server.info.engine} has no means to overwrite its cache"
                )
            try:
                self._scrambled = f"scrambled by {await scramble()}"
            except FlushFailed as problem:
                raise KvverifyError(f"--control scramble: {problem}") from problem
            return False
        return await self.server.empty(await self.server.canary(self.number)) if self.options.tier in LOWER else False

    async def _measure(self, arm: str, items: Sequence[Item], *, poisoned: bool) -> Pass:
        tier = self.options.tier if self.options.tier in LOWER else HBM
        if self.serial:
            self.serial = max(0, self.serial - len(items))
            return await self.server.serial(arm, tier, items, poisoned=poisoned)
        return await self.server.together(arm, tier, items, poisoned=poisoned)

    def _judge(self, attempt: int, question: Question, done: Pass, arm: str, number: int) -> None:
        gate = done.whole or done.gates.get(number)
        open_ = ["no gate"] if gate is None else gate.reasons
        if open_ and attempt < ATTEMPTS:
            self.again.append((attempt + 1, question))
            return
        why = f"tier not proved: {'; '.join(open_)}" if open_ else ""
        self.tell(answered(question, self.heard[arm, number], error=why))


def gated(events: Iterable[Event], options: AccuracyOptions) -> tuple[int, int]:
    """Return the number of the next wave of a resumed run, and how many samples still get a gate each."""
    own = [e for e in events if isinstance(e, GateEvaluated) and e.arm == arm_name(options)]
    single = {(e.round, e.request) for e in own if e.request >= 0 and e.satisfied}
    serial = 0 if options.control == SCRAMBLE else options.serial
    return max((e.round + 1 for e in own), default=0), max(0, serial - len(single))
