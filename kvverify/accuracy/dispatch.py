"""Samples spread over endpoints: a bounded queue, as many in flight at each as it is given, and what an endpoint that dies held goes back."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvverify.accuracy.ask import Question, counts_differ
from kvverify.errors import KvverifyError
from kvverify.events_accuracy import NOT_JUDGED, SampleAnswered

CHUNK = 16  # samples that are made at once, in a thread
RETURNS = 2  # a sample that went back so often is the fault of the sample
IN_A_ROW = 24  # failures without an answer in between: the endpoint is of no use


class Lane(Protocol):
    """One way to an endpoint, in words ``name``. ``width`` samples are in flight on it."""

    @property
    def name(self) -> str: ...  # noqa: D102
    @property
    def width(self) -> int: ...  # noqa: D102

    async def ask(self, question: Question) -> SampleAnswered:
        """Return the scored answer, or the error."""
        ...

    async def alive(self) -> bool:
        """Does it still answer?"""
        ...


class CountsDiffer(KvverifyError):
    """A server read another number of prompt tokens than were sent: it truncates, or its tokenizer is another one."""


class Queue:
    """Samples to ask, made in a thread as they are needed; never more than ``room`` of them wait."""

    def __init__(self, questions: Iterator[Question], room: int) -> None:
        self._source, self._room = questions, room
        self._waiting: deque[Question] = deque()
        self._returned: Counter[str] = Counter()
        self._changed = asyncio.Condition()
        self._in_flight = 0
        self._ended = False

    async def feed(self) -> None:
        """Make samples until there are no more."""
        while True:
            made = await asyncio.to_thread(lambda: list(itertools.islice(self._source, CHUNK)))
            async with self._changed:
                self._waiting.extend(made)
                self._ended = not made
                self._changed.notify_all()
                if self._ended:
                    return
                await self._changed.wait_for(lambda: len(self._waiting) < self._room)

    async def next(self) -> Question | None:
        """Return the next sample, None where none is left and none can come back."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._waiting or (self._ended and not self._in_flight))
            if not self._waiting:
                return None
            self._in_flight += 1
            self._changed.notify_all()
            return self._waiting.popleft()

    async def done(self) -> None:
        """Count a sample as done."""
        async with self._changed:
            self._in_flight -= 1
            self._changed.notify_all()

    async def give_back(self, question: Question, *, failed: bool = True) -> bool:
        """Put a sample back that somebody else shall ask; False where it ``failed`` too often."""
        async with self._changed:
            self._returned[question.key] += failed
            if self._returned[question.key] > RETURNS:
                return False
            self._in_flight -= 1
            self._waiting.appendleft(question)
            self._changed.notify_all()
            return True


@dataclass(slots=True)
class Dispatch:
    """``tell`` is given every answer; ``lost`` hears of an endpoint that is gone, with the last error."""

    queue: Queue
    tell: Callable[[SampleAnswered], None]
    lost: Callable[[Lane, str], None]
    gone: set[int] = field(default_factory=set)
    failures: Counter[int] = field(default_factory=Counter)

    async def run(self, lanes: Sequence[Lane]) -> None:
        """Ask all samples.

        Raises:
            CountsDiffer: a server does not read what is sent.
            KvverifyError: no endpoint is left, or the source of samples fails.
        """
        workers = [
            asyncio.create_task(self._work(number, lane))
            for number, lane in enumerate(lanes)
            for _ in range(lane.width)
        ]
        feeder = asyncio.create_task(self.queue.feed())
        everyone = asyncio.ensure_future(asyncio.gather(*workers))
        try:
            both: set[asyncio.Future[Any]] = {feeder, everyone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if feeder.done():
                feeder.result()
            await everyone
        finally:
            for task in (feeder, *workers):
                task.cancel()
            await asyncio.gather(feeder, *workers, return_exceptions=True)
        if len(self.gone) == len(lanes):
            raise KvverifyError("no endpoint is left; go on with --resume when one answers again")

    async def _work(self, number: int, lane: Lane) -> None:
        while number not in self.gone and (question := await self.queue.next()) is not None:
            if number in self.gone:  # while this one waited
                await self.queue.give_back(question, failed=False)
                return
            event = await lane.ask(question)
            if counts_differ(event):
                self.tell(event)
                raise CountsDiffer(
                    f"{lane.name}: {event.task}, sample {event.index}: {event.error}; it cuts prompts short"
                )
            failed = bool(event.error) and event.error != NOT_JUDGED
            if failed and not await self._usable(number, lane, event.error):
                if not await self.queue.give_back(question):
                    self.tell(event)
                    await self.queue.done()
                return
            if not failed:
                self.failures[number] = 0
            self.tell(event)
            await self.queue.done()

    async def _usable(self, number: int, lane: Lane, error: str) -> bool:
        """Return whether an endpoint that failed a sample is worth another one."""
        self.failures[number] += 1
        if self.failures[number] < IN_A_ROW and await lane.alive():
            return True
        if number not in self.gone:
            self.gone.add(number)
            self.lost(lane, error)
        return False
