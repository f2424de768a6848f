"""The server under test: requests with the evidence around them, and HBM emptied so that it is known to be."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvverify.errors import KvverifyError, UsageError
from kvverify.events import Event, GateEvaluated, RequestAnswered, TierFlushed
from kvverify.live import gate
from kvverify.live.answer import Answer
from kvverify.live.client import Client
from kvverify.live.control import ServerProblem
from kvverify.live.engine import Engine, EngineInfo, Evidence, Expected, FlushFailed
from kvverify.live.prompt import Prompt
from kvverify.live.prompts import STORY_TOKENS, Writer, equal_length, units_of

Emit = Callable[[Event], None]


class OtherClients(KvverifyError):
    """Somebody else's requests were answered while only ours may be."""


@dataclass(frozen=True, slots=True)
class Item:
    """One prompt of a round, and how many tokens are generated for it at most; ``all_tokens``: exactly so many.

    A model that ends its text after a short answer leaves little to compare. ``extra`` goes into the request as it is.
    """

    request: int
    prompt: Prompt
    max_tokens: int
    all_tokens: bool = False
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Pass:
    """What one arm gave for some items: answers and gates by request number; ``whole`` is the gate on totals."""

    arm: str
    answers: dict[int, RequestAnswered] = field(default_factory=dict)
    gates: dict[int, GateEvaluated] = field(default_factory=dict)
    whole: GateEvaluated | None = None

    def hit_tokens(self, request: int) -> int | None:
        """Return the tokens that the request read from a cache: by its usage, else by the server's counters."""
        answer, own = self.answers[request], self.gates.get(request)
        if answer.cached_tokens >= 0:
            return answer.cached_tokens
        if own is None:
            return None
        counts = [own.counted.get(f"{tier}_hit_tokens") for tier in ("hbm", "dram", "disk")]
        return None if counts[0] is None else sum(n or 0 for n in counts)


@dataclass(slots=True)
class Server:
    """One server with its adapter, the client, and where events go."""

    engine: Engine
    client: Client
    info: EngineInfo
    writer: Writer
    fillers: Writer
    emit: Emit
    salt: str | None = None
    shared: bool = False
    round: int = 0
    failed: int = 0  # requests that the server may still be working on
    hear: Callable[[str, Item, Answer], None] | None = None  # is told every answer, with its arm
    last: Prompt | None = None  # what HBM may hold for sure: the last filler

    async def ask(self, arm: str, item: Item) -> tuple[Answer, RequestAnswered]:
        """Send one request and log its answer.

        Raises:
            ServerProblem: it failed, and the server does not answer any more.
        """
        # vLLM, SGLang, llama.cpp and the lab know ignore_eos
        extra = {**({"ignore_eos": True} if item.all_tokens else {}), **item.extra}
        answer = await self.client.complete(item.prompt, max_tokens=item.max_tokens, salt=self.salt, extra=extra)
        known = RequestAnswered(
            arm=arm,
            round=self.round,
            request=item.request,
            prompt_hash=answer.prompt_hash,
            prompt_tokens=max(answer.prompt_tokens, 0),
            cached_tokens=answer.cached_tokens,
            tokens=list(answer.tokens),
            logprobs=list(answer.logprobs),
            ttft=answer.ttft,
            itl=answer.itl,
            seconds=answer.seconds,
            error=answer.error,
            bad_logprob=answer.bad_logprob,
        )
        self.emit(known)
        if self.hear:
            self.hear(arm, item, answer)
        if answer.error:
            self.failed += 1
            await self.engine.evidence()
        return answer, known

    async def plain(self, arm: str, items: Iterable[Item]) -> Pass:
        """Send requests one by one, without a gate."""
        done = Pass(arm)
        for item in items:
            _, done.answers[item.request] = await self.ask(arm, item)
        return done

    async def serial(
        self,
        arm: str,
        tier: str,
        items: Sequence[Item],
        *,
        poisoned: bool = False,
        first: Callable[[Item], Awaitable[Expected]] | None = None,
        load: Callable[[Item], Awaitable[None]] | None = None,
    ) -> Pass:
        """Send requests one by one, each with its own gate on ``tier``.

        ``first`` makes a request ready and returns what it must show; ``load`` brings it up where a tier is read on command. A
        reading after one request is that before the next, so that nobody is served unseen in between.
        """
        done, now = Pass(arm), await self.engine.evidence()
        for item in items:
            expected = await first(item) if first else self.engine.expected(item.prompt.tokens)
            before = await self.engine.evidence() if first else now
            if load:
                await load(item)
            answer, done.answers[item.request] = await self.ask(arm, item)
            now = await self.engine.evidence()
            done.gates[item.request] = self._gate(arm, tier, (before, now), expected, [answer], poisoned, item.request)
        return done

    async def together(self, arm: str, tier: str, items: Sequence[Item], *, poisoned: bool = False) -> Pass:
        """Send all requests at once, as many in flight as the client allows, with one gate on the totals."""
        before = await self.engine.evidence()
        both = await asyncio.gather(*(self.ask(arm, item) for item in items))
        now = await self.engine.evidence()
        expected = gate.total(self.engine.expected(item.prompt.tokens) for item in items)
        done = Pass(arm, {known.request: known for _, known in both})
        done.whole = self._gate(arm, tier, (before, now), expected, [a for a, _ in both], poisoned, gate_request=-1)
        return done

    async def canary(self, number: int) -> Item:
        """Return a prompt that shows whether HBM was emptied, another one for each ``number``.

        Raises:
            UsageError: the server does not tell its block, or none fits its context.
        """
        length = equal_length(self.info, units_of(self.info, STORY_TOKENS), room=1)
        return Item(number, await self.writer.write(length, number), 1)

    async def settle(self) -> None:
        """Wait until stores under way are done; some engines start them with the next step only, hence a request."""
        if dummy := getattr(self.engine, "dummy_request", None):
            with contextlib.suppress(
                ServerProblem
            ):  # a step was made all the same; a server that is gone has no evidence
                await dummy()
        if wait := getattr(self.engine, "settle", None):
            await wait()
        await self.engine.evidence()

    async def empty(self, canary: Item, *, flush: bool = True) -> bool:
        """Empty HBM, overwrite it, and say whether both are known to be done.

        The canary is in HBM before and must not hit it after. A flush only drops hashes: where the engine has no other means to
        overwrite the bytes, fillers do. They replace the flush as well where none is offered, or none is wanted.
        """
        await self.ask("canary", canary)
        await self.settle()
        claimed, poison, notes = flush and await self._flush(), "", list[str]()
        if claimed:
            poison = await self._poison(notes)
        if not poison:
            poison = await self.fill_over(notes)
        if not await self._empty_between(notes):
            poison = ""
        before = await self.engine.evidence()
        await self.ask("canary", canary)
        counted = (await self.engine.evidence()).since(before)
        tiers = ("hbm", *self.info.tiers_between)
        hits = [getattr(counted, f"{tier}_hit_tokens") for tier in tiers]
        proof = self._nothing_held(tiers, hits, canary.prompt)
        how = poison or f"not overwritten: {'; '.join(notes)}"
        self.emit(TierFlushed(tier="hbm", claimed=claimed, proof=proof, poison=poison, detail="" if poison else how))
        return bool(poison)

    def _nothing_held(self, tiers: Sequence[str], hits: Sequence[int | None], canary: Prompt) -> str:
        """Return how a prompt that was held shows that it is no more; empty where it does not.

        Where single tokens are hit, it may share its first ones with the filler that took its place.
        """
        told = [n for n in hits if n is not None]
        shared = 0
        if self.info.hit_tokens == 1 and self.last is not None:
            shared = _common(canary.body, self.last.body)
        if len(told) < len(hits) or sum(told) > shared:
            return ""
        hit = (
            f"the first {sum(told)} tokens there, which the last filler has as well" if any(told) else "0 tokens there"
        )
        return f"a prompt that {' and '.join(tiers)} held before hit {hit}"

    async def _empty_between(self, notes: list[str]) -> bool:
        """Empty the tiers between HBM and the lower one; last of all, since fillers go through them."""
        for tier in self.info.tiers_between:
            try:
                await self.engine.flush(tier)
            except FlushFailed as problem:
                notes.append(str(problem))
                return False
        return True

    async def flush_and_poison(self) -> bool:
        """Empty and overwrite HBM through the engine's own means alone; False where it has none."""
        return await self._flush() and bool(await self._poison([]))

    async def fill_over(self, notes: list[str]) -> str:
        """Overwrite HBM by prompts that no tier knows, and say how; empty with a note where that cannot be or is not known.

        The counters must show that every token HBM has room for was computed.
        """
        capacity, lower = self.info.capacity_tokens.get("hbm", 0), self.info.capacity_tokens.get(self.info.lower_tier)
        if lower is not None and lower < 2 * capacity:
            notes.append(
                f"{self.info.lower_tier} holds {lower} tokens, too few for the prompts and fillers of {capacity}"
            )
            return ""
        try:
            fillers = await self.fillers.fillers(self.info)
        except UsageError as problem:
            notes.append(str(problem))
            return ""
        before = await self.engine.evidence()
        sent = [Item(number, prompt, 1) for number, prompt in enumerate(fillers)]
        answers = [await self.ask("filler", item) for item in sent]
        self.last = fillers[-1]
        await self.settle()
        computed = (await self.engine.evidence()).since(before).computed_tokens
        if any(answer.error for answer, _ in answers) or computed is None or computed < capacity:
            notes.append(f"fillers computed {computed} tokens of {capacity} that HBM holds")
            return ""
        return f"{len(sent)} filler requests, {computed} tokens computed, HBM holds {capacity}"

    async def _flush(self) -> bool:
        try:
            await self.engine.flush("hbm")
        except FlushFailed:
            return False
        return True

    async def _poison(self, notes: list[str]) -> str:
        poison = getattr(self.engine, "poison", None)
        if poison is None:
            return ""
        try:
            return str(await poison())
        except FlushFailed as problem:
            notes.append(str(problem))
            return ""

    def _gate(  # noqa: PLR0917 - what the gate itself takes
        self,
        arm: str,
        tier: str,
        readings: tuple[Evidence, Evidence],
        expected: Expected,
        answers: Sequence[Answer],
        poisoned: bool,
        gate_request: int,
    ) -> GateEvaluated:
        found = gate.evaluate(
            tier,
            *readings,
            expected,
            answers,
            self.info,
            poisoned=poisoned,
            shared=self.shared,
            arm=arm,
            round_=self.round,
            request=gate_request,
        )
        self.emit(found)
        answered = readings[1].since(readings[0]).requests
        if not self.shared and not self.failed and answered is not None and answered > len(answers):
            raise OtherClients(
                f"{self.client.url}: {answered} requests were answered in arm {arm}, {len(answers)} are ours; "
                "use a server of your own, or --shared"
            )
        return found


def _common(a: str | list[int], b: str | list[int]) -> int:
    return next((n for n, (one, other) in enumerate(zip(a, b, strict=False)) if one != other), min(len(a), len(b)))


def describe(info: EngineInfo) -> dict[str, Any]:
    """Return what is known of a server as the event log keeps it."""
    return {k: v for k, v in dataclasses.asdict(info).items() if v not in (None, "", (), {}, [])}
