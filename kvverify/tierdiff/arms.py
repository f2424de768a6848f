"""The arms of a tier-diff, in the order of their passes, for the prompts of one wave (those that HBM holds together).

Cold, HBM, HBM again (the noise floor), DRAM, DRAM again, part HBM and part DRAM, DRAM after evictions instead of a flush, and the
same with many requests in flight. Every arm is compared with HBM; cold is shown and not judged, for it reads no packed cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from kvverify.events import GateEvaluated
from kvverify.live.engine import EngineInfo, Expected, FlushFailed
from kvverify.live.gate import PARTIAL
from kvverify.tierdiff.compare import compare, compare_blocks
from kvverify.tierdiff.server import Item, Pass, Server
from kvverify.verdicts_live import AGAIN, CONCURRENT, WHOLE_PASS

COLD, HBM, STARVED = "cold", "hbm", "starved"
HEAD = "partial-head"  # puts the first part of each prompt into HBM
HBM_CONCURRENT = f"{HBM}-{CONCURRENT}"


def planned(tier: str, *, partial: bool, starved: bool, concurrent: bool) -> list[str]:
    """Return the names of the arms that are compared with HBM, in order; ``tier`` is the lower one."""
    arms = [COLD, HBM + AGAIN, tier, tier + AGAIN]
    arms += [PARTIAL] if partial else []
    arms += [STARVED] if starved else []
    return arms + ([HBM_CONCURRENT + AGAIN, f"{tier}-{CONCURRENT}"] if concurrent else [])


@dataclass(slots=True)
class Wave:
    """Prompts that go through ``arms`` together. ``canary`` is one more, which shows whether HBM was emptied."""

    server: Server
    items: Sequence[Item]
    canary: Item
    arms: Sequence[str]
    computed: list[str] = field(default_factory=list)  # digests of the blocks in which the first prompt was computed

    @property
    def tier(self) -> str:
        """The lower tier."""
        return self.server.info.lower_tier

    async def run(self) -> None:
        """Go through all arms; comparisons are logged as soon as both of their sides are there.

        Raises:
            ServerProblem: the server does not answer any more.
            OtherClients: requests that are not ours were answered.
        """
        server = self.server
        cold = await self._cold()
        await server.settle()
        await self._store()
        hbm = await server.serial(HBM, HBM, self.items)
        self._compare(hbm, cold, judged=False)
        self._compare(hbm, await server.serial(HBM + AGAIN, HBM, self.items), judged=False)
        for arm in (self.tier, self.tier + AGAIN):
            await self._lower(hbm, arm)
        if PARTIAL in self.arms:
            await self._partial(hbm)
        if STARVED in self.arms:
            await self._starved(hbm)
        if f"{self.tier}-{CONCURRENT}" in self.arms:
            await self._concurrent(hbm)

    async def _cold(self) -> Pass:
        """Compute all prompts; where the engine tells digests, the first of them into blocks that held poison before."""
        if not hasattr(self.server.engine, "digests") or not await self.server.flush_and_poison():
            return await self.server.plain(COLD, self.items)
        done = await self.server.plain(COLD, self.items[:1])
        self.computed = await self._digests(self.items[0])
        done.answers.update((await self.server.plain(COLD, self.items[1:])).answers)
        return done

    async def _store(self) -> None:
        """Write the prompt of this wave to the lower tier, where that is done on command."""
        if store := getattr(self.server.engine, "store", None):
            (item,) = self.items  # such an HBM holds one prompt
            await store(_file_of(item), item.prompt.tokens)

    async def _load(self, item: Item) -> None:
        """Read a prompt back, where that is done on command."""
        if restore := getattr(self.server.engine, "restore", None):
            await self.server.engine.flush(HBM)
            await restore(_file_of(item))

    async def _lower(self, hbm: Pass, arm: str) -> None:
        poisoned = await self.server.empty(self.canary)
        first = await self.server.serial(arm, self.tier, self.items[:1], poisoned=poisoned, load=self._load)
        if self.computed:
            self._compare_blocks(arm, await self._digests(self.items[0]))
        rest = await self.server.serial(arm, self.tier, self.items[1:], poisoned=poisoned, load=self._load)
        self._compare(hbm, first)
        self._compare(hbm, rest)

    async def _partial(self, hbm: Pass) -> None:
        """Bring the first part of each prompt back into HBM, then ask for all of it."""
        poisoned = await self.server.empty(self.canary)

        async def head_first(item: Item) -> Expected:
            head = self._head(item)
            await self.server.ask(HEAD, head)
            return self._expected_rest(item, head)

        self._compare(hbm, await self.server.serial(PARTIAL, PARTIAL, self.items, poisoned=poisoned, first=head_first))

    async def _starved(self, hbm: Pass) -> None:
        """Let other prompts push ours out of HBM, as in a pool that is too small."""
        poisoned = await self.server.empty(self.canary, flush=False)
        self._compare(hbm, await self.server.serial(STARVED, self.tier, self.items, poisoned=poisoned, load=self._load))

    async def _concurrent(self, serial: Pass) -> None:
        server = self.server
        hbm = await server.together(HBM_CONCURRENT, HBM, self.items)
        self._compare(serial, hbm, judged=False)  # what sharing a batch changes belongs to the floor
        again = await server.together(HBM_CONCURRENT + AGAIN, HBM, self.items)
        self._compare(hbm, again, judged=False)
        poisoned = await server.empty(self.canary)
        lower = await server.together(f"{self.tier}-{CONCURRENT}", self.tier, self.items, poisoned=poisoned)
        self._compare(hbm, lower)

    def _head(self, item: Item) -> Item:
        """Return the first two thirds of a prompt's hit units, and its tail's number of tokens more."""
        body = item.prompt.body
        assert isinstance(body, list)  # else the arm was not planned
        info, hit = self.server.info, self.server.engine.expected(item.prompt.tokens).hit_tokens
        unit = info.hit_tokens or info.block_tokens or hit
        tokens = max(1, hit // unit * 2 // 3) * unit + item.prompt.tokens - hit
        return Item(item.request, replace(item.prompt, body=body[:tokens], tokens=tokens), 1)

    def _expected_rest(self, item: Item, head: Item) -> Expected:
        """Return what a prompt must show whose head HBM holds: hits of both, and only the rest loaded."""
        engine = self.server.engine
        if own := getattr(engine, "expected_partial", None):
            told: Expected = own(item.prompt.tokens, head.prompt.tokens)
            return told
        whole, part = engine.expected(item.prompt.tokens), engine.expected(head.prompt.tokens)
        known = None not in (whole.loaded_bytes, part.loaded_bytes)
        return Expected(
            hit_tokens=whole.hit_tokens - part.hit_tokens,
            hbm_hit_tokens=part.hit_tokens,
            computed_tokens=whole.computed_tokens,
            loaded_bytes=(whole.loaded_bytes or 0) - (part.loaded_bytes or 0) if known else None,
            witness={name: n - part.witness.get(name, 0) for name, n in whole.witness.items()},
        )

    async def _digests(self, item: Item) -> list[str]:
        try:
            found: list[str] = await self.server.engine.digests(item.prompt.body)  # type: ignore[attr-defined]
        except FlushFailed:
            return []
        return found

    def _compare_blocks(self, arm: str, found: list[str]) -> None:
        item, info = self.items[0], self.server.info
        hit = self.server.engine.expected(item.prompt.tokens).hit_tokens // (info.block_tokens or 1)
        compared = compare_blocks(
            (HBM, arm), self.server.round, item.request, hit=hit, before=self.computed, after=found
        )
        self.server.emit(compared)

    def _compare(self, base: Pass, other: Pass, *, judged: bool = True) -> None:
        for request, answer in other.answers.items():
            hits = (base.hit_tokens(request), other.hit_tokens(request))
            self.server.emit(compare(base.answers[request], answer, judged=judged, hits=hits))


def _file_of(item: Item) -> str:
    return f"kvverify-{item.request}"  # the same in each round and run: nobody else removes them


def nothing_possible(info: EngineInfo, why: str) -> GateEvaluated:
    """Return the gate of a run that cannot prove anything of the lower tier, before any request is sent."""
    return GateEvaluated(arm=info.lower_tier, round=0, request=WHOLE_PASS, reasons=[why])
