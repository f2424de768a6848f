"""Sessions kept apart: many at once, forced out of HBM and reloaded again and again, each must find its own secret and no other's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvverify.errors import KvverifyError, UsageError
from kvverify.events import Event, GateEvaluated, IsolationMeasured, RequestAnswered, SessionChecked
from kvverify.live.answer import Answer
from kvverify.live.engine import Evidence, Expected
from kvverify.live.gate import PARTIAL, evaluate, total
from kvverify.live.prompts import Tokenizer
from kvverify.stats.rare import excluded_rate
from kvverify.tierdiff.connect import emit_engine
from kvverify.tierdiff.isolation_beside import Beside, NewPrompts, new_tokens
from kvverify.tierdiff.server import Item, Server
from kvverify.tierdiff.sessions import Session, certain, early_sessions, examine, secret_sessions
from kvverify.verdicts_live import NEW

ANSWER_TOKENS = 16  # of a secret of eight digits, whatever the tokenizer makes of it
_EARLY_ROUNDS, _EARLY_SESSIONS = 3, 8
_LEAST_TOKENS = 64  # of the shared prefix; twice that of each session's own part
_CANDIDATES = 8  # for each session: a weak model answers some of them rightly, and only those are worth something
_PASSES = (
    2  # from HBM, all at once, with a right and certain answer in each: what flips by itself shows nothing of the tier
)

Done = frozenset[tuple[str, int]]  # (session, round) of an earlier run


@dataclass(frozen=True, slots=True)
class IsolationOptions:
    """``sessions`` at once, ``rounds`` times, with up to ``beside`` new prompts each time."""

    sessions: int = 32
    rounds: int = 20
    seed: int = 0
    beside: int = 8


@dataclass(frozen=True)
class Isolation:
    """The test of one server. ``options.seed`` must be new in each run: a server remembers the sessions of the last one.

    ``notes`` are what the log says of the server so far.
    """

    server: Server
    tokenizer: Tokenizer
    options: IsolationOptions
    notes: tuple[str, ...] = ()

    async def tokenize(self, text: str, special: bool) -> list[int]:
        """Return the server's token ids of ``text``."""
        return await self.tokenizer.ids(text, start=special)

    @property
    def unit(self) -> int:
        """Tokens in which the lower tier is hit.

        Raises:
            KvverifyError: the engine does not say.
        """
        info = self.server.info
        unit = info.hit_tokens or info.block_tokens
        if not unit:
            raise KvverifyError(f"{info.engine} does not tell its block size: no session can be fitted to it")
        return unit

    async def candidates(self) -> list[Session]:
        """Return more sessions with a secret number each than are wanted: those that qualify come first."""
        shared, own = (
            max(least, -(-tokens // self.unit)) for least, tokens in ((1, _LEAST_TOKENS), (2, 2 * _LEAST_TOKENS))
        )
        wanted = self.options.sessions
        return await secret_sessions(
            self.tokenize,
            _CANDIDATES * wanted,
            depths=wanted,
            unit=self.unit,
            shared_units=shared,
            own_units=own,
            seed=self.options.seed,
        )

    async def early(self) -> list[Session]:
        """Return the sessions that differ in one early token; none where the tokenizer does not have such words."""
        units = max(3, -(-3 * _LEAST_TOKENS // self.unit))
        return await early_sessions(
            self.tokenize,
            min(_EARLY_SESSIONS, self.options.sessions),
            unit=self.unit,
            units=units,
            seed=self.options.seed,
        )

    def new_prompts(self, sessions: Sequence[Session]) -> NewPrompts:
        """Return the new prompts for rounds of ``sessions``; none, with a note, where they do not fit."""
        server, count = self.server, self.options.beside
        longest = max(s.prompt.tokens + ANSWER_TOKENS for s in sessions)
        try:
            tokens = new_tokens(server.info, self.options.sessions, longest) if count else 0
        except UsageError as problem:
            emit_engine(server, [*self.notes, f"new prompts beside the sessions left out: {problem}"])
            count, tokens = 0, 0
        return NewPrompts(server.fillers, count, tokens)

    async def check(
        self,
        arm: str,
        candidates: Sequence[Session],
        count: int,
        rounds: int,
        done: Done = frozenset(),
        *,
        new: NewPrompts,
    ) -> None:
        """Let ``count`` of ``candidates`` qualify in HBM, then force them out and reload them all at once, ``rounds`` times."""
        server = self.server
        # named by their place, so that a resumed run knows what is done whichever candidates qualify this time
        names = [c.name for c in candidates[:count]]
        left = [r for r in range(1, rounds + 1) if any((name, r) not in done for name in names)]
        if not left:
            return
        chosen, qualified = await self._choose(arm, candidates, count)
        sessions = [replace(s, name=name) for s, name in zip(chosen, names, strict=True)] if chosen else []
        for round_ in left:
            server.round = round_
            await new.write()
            poisoned = await server.empty(await server.canary(round_))
            before = await server.engine.evidence()
            reloaded = asyncio.ensure_future(self._ask_all(arm, sessions))
            answers, beside = await asyncio.gather(reloaded, new.ask(server, arm + NEW, reloaded))
            after = await server.engine.evidence()
            gate = gate_of(server, arm, sessions, answers, (before, after), poisoned=poisoned, beside=beside)
            server.emit(gate)
            tier = server.info.lower_tier if gate.satisfied else ""
            for number, (session, answer) in enumerate(zip(sessions, answers, strict=True)):
                if not answer.error:
                    known = number < qualified
                    server.emit(checked(session, answer, sessions, round_, qualified=known, tier=tier))

    async def _choose(self, arm: str, candidates: Sequence[Session], count: int) -> tuple[list[Session], int]:
        """Return ``count`` sessions, those that qualified first, and how many did; no more candidates are asked than needed."""
        good, rest = list[Session](), list[Session]()
        for number, wave in enumerate(waves(candidates, self.server.info.capacity_tokens.get("hbm"), most=count)):
            if len(good) >= count:
                break
            self.server.round = number
            right = await self._qualify(arm, wave)
            good += [s for s in wave if s.name in right]
            rest += [s for s in wave if s.name not in right]
        return [*good, *rest][:count], min(count, len(good))

    async def _qualify(self, arm: str, wave: Sequence[Session]) -> set[str]:
        """Return which sessions of ``wave`` give a right answer from HBM each time, after a pass that computes them.

        HBM must have hit all of it: an answer that was reloaded, or computed anew, qualifies nobody.
        """
        await self._ask_all(f"{arm}-cold", wave)
        right = {s.name for s in wave}
        for _ in range(_PASSES):
            right &= await self._right_from_hbm(f"{arm}-hbm", wave)
        return right

    async def _right_from_hbm(self, arm: str, wave: Sequence[Session]) -> set[str]:
        server = self.server
        before = await server.engine.evidence()
        answers = await self._ask_all(arm, wave)
        after = await server.engine.evidence()
        expected = total(server.engine.expected(s.prompt.tokens) for s in wave)
        gate = evaluate(
            "hbm",
            before,
            after,
            expected,
            answers,
            server.info,
            poisoned=False,
            shared=server.shared,
            arm=arm,
            round_=server.round,
        )
        server.emit(gate)
        if not gate.satisfied:
            return set()
        pairs = zip(wave, answers, strict=True)
        return {
            s.name
            for s, answer in pairs
            if not answer.error and examine(answer.text, s, wave).right and certain(answer, s.secret)
        }

    async def _ask_all(self, arm: str, sessions: Sequence[Session]) -> list[Answer]:
        """Send all sessions' prompts at once."""
        items = [Item(number, s.prompt, ANSWER_TOKENS) for number, s in enumerate(sessions)]
        return [answer for answer, _ in await asyncio.gather(*(self.server.ask(arm, item) for item in items))]


async def check_sessions(isolation: Isolation, done: Done = frozenset()) -> None:
    """Run the sessions with a secret, and a few rounds of those that differ in an early token."""
    options = isolation.options
    candidates, early = await isolation.candidates(), await isolation.early()
    new = isolation.new_prompts([*candidates, *early])
    await isolation.check("sessions", candidates, options.sessions, options.rounds, done, new=new)
    if early:
        await isolation.check("early-token", early, len(early), min(_EARLY_ROUNDS, options.rounds), done, new=new)


def waves(sessions: Sequence[Session], pool_tokens: int | None, *, most: int) -> list[Sequence[Session]]:
    """Cut ``sessions`` into parts of up to ``most`` that HBM holds together, in three quarters of it."""
    if not sessions:
        return []
    each = max(s.prompt.tokens + ANSWER_TOKENS for s in sessions)
    size = most if pool_tokens is None else min(most, max(1, pool_tokens * 3 // 4 // each))
    return [sessions[start : start + size] for start in range(0, len(sessions), size)]


def checked(
    session: Session, answer: Answer, others: Sequence[Session], round_: int, *, qualified: bool, tier: str
) -> SessionChecked:
    """Return what the answer of ``session`` gives away."""
    found = examine(answer.text, session, others)
    return SessionChecked(
        session=session.name,
        round=round_,
        right=found.right,
        qualified=qualified,
        foreign=", ".join(found.foreign),
        from_tier=tier,
        detail="" if found.right and not found.foreign else f"expected {session.secret}, got {answer.text[:80]!r}",
    )


def gate_of(
    server: Server,
    arm: str,
    sessions: Sequence[Session],
    answers: Sequence[Answer],
    readings: tuple[Evidence, Evidence],
    *,
    poisoned: bool,
    beside: Beside = Beside(),  # noqa: B008 - frozen
) -> GateEvaluated:
    """Return whether a pass of all sessions at once came from the lower tier, by its totals.

    The shared prefix may be hit in HBM by all but the first, for that one has just brought it there; how often that happens is
    a matter of timing. Everything else must come from below. What was computed ``beside`` the sessions hits nothing.
    """
    whole = total(server.engine.expected(s.prompt.tokens) for s in sessions)
    counted = readings[1].since(readings[0])
    most = sum(s.shared_tokens for s in sessions) - max((s.shared_tokens for s in sessions), default=0)
    hbm = min(max(counted.hbm_hit_tokens or 0, 0), most)
    expected = without_shared(whole, hbm, counted)
    return evaluate(
        PARTIAL if hbm else server.info.lower_tier,
        *readings,
        replace(expected, computed_tokens=expected.computed_tokens + beside.computed_tokens),
        [*answers, *beside.answers],
        server.info,
        poisoned=poisoned,
        shared=server.shared,
        arm=arm,
        round_=server.round,
    )


def without_shared(whole: Expected, hbm: int, counted: Evidence) -> Expected:
    """Return what is left to expect of the lower tier when HBM hit ``hbm`` tokens of the shared prefix.

    A second source may count what was looked up, which includes what HBM held, or what was loaded: either will do for it.
    """

    def part(amount: int) -> int:
        return amount * (whole.hit_tokens - hbm) // whole.hit_tokens if whole.hit_tokens else amount

    return Expected(
        hit_tokens=whole.hit_tokens - hbm,
        hbm_hit_tokens=hbm,
        computed_tokens=whole.computed_tokens,
        loaded_bytes=None if whole.loaded_bytes is None else part(whole.loaded_bytes),
        witness={
            name: part(amount) if counted.witness.get(name) == part(amount) else amount
            for name, amount in whole.witness.items()
        },
    )


def measured(events: Iterable[Event]) -> IsolationMeasured:
    """Return what all checked answers say together: how many were proved, right and foreign, and which rate of leaks they exclude.

    Only answers of qualified sessions that are proved to have come from the lower tier count as trials.
    """
    seen = list(events)
    answers = list({(e.session, e.round): e for e in seen if isinstance(e, SessionChecked)}.values())
    new = [e for e in seen if isinstance(e, RequestAnswered) and e.arm.endswith(NEW) and not e.error]
    trials = [e for e in answers if e.qualified and e.from_tier]
    leaks = sum(bool(e.foreign) for e in answers)
    return IsolationMeasured(
        answers=len(answers),
        qualified=len(trials),
        right=sum(e.right and not e.foreign for e in trials),
        foreign=leaks,
        excluded_rate=-1.0 if leaks else excluded_rate(len(trials)) or -1.0,
        new_prompts=len({(e.arm, e.round, e.request) for e in new}),
    )
