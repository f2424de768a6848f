"""A tier-diff from its options: find the server, write prompts that fit, go through the waves, measure the excess.

A wave that an earlier attempt finished is not run again: its answers, gates and comparisons are in the event log. A wave that was
cut short begins again with new prompts, for its arms depend on what the server holds, and on one server process for all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from kvverify.errors import KvverifyError, UsageError
from kvverify.events import Event, ProblemMet, ReplayCompared, RunStarted
from kvverify.live.engine import EngineInfo
from kvverify.live.prompt import Prompt
from kvverify.live.prompts import equal_length, units_of
from kvverify.tierdiff.arms import HBM, Wave, nothing_possible, planned
from kvverify.tierdiff.compare import measure
from kvverify.tierdiff.connect import connect, emit_engine
from kvverify.tierdiff.options import MOST_REQUESTS, TierDiffOptions
from kvverify.tierdiff.server import Emit, Item, Server
from kvverify.verdicts_live import CONCURRENT, Proofs, floors

LEAST_TOKENS = 96  # of a prompt: other stories have longer questions than the one that is tried
SHARE = 2  # prompts of one wave take at most this part of HBM, so that all of them stay there
# numbers of prompts that are no requests; those of requests stay below
FIRST_CANARY, WARM_UP = MOST_REQUESTS, 2 * MOST_REQUESTS


def tier_diff(options: TierDiffOptions, seed: int, emit: Emit, earlier: Iterable[Event] = ()) -> None:
    """Run the passes and emit what happens; ``earlier`` are the events of the run that is resumed.

    What the server, or our way to it, gets wrong is a :class:`ProblemMet`; a failing request is one in its answer.
    """
    known = list(earlier)

    def keep(event: Event) -> None:
        known.append(event)
        emit(event)

    try:
        asyncio.run(_run(options, seed, keep, known))
    except KvverifyError as problem:
        emit(ProblemMet(where=options.url, problem=str(problem)))


async def _run(options: TierDiffOptions, seed: int, emit: Emit, known: list[Event]) -> None:
    # a resumed run must not send what the server may remember of the first attempt
    attempt = sum(isinstance(e, RunStarted) for e in known)
    async with connect(options.connection(), seed + attempt, emit) as server:
        try:
            if options.prompt_tokens is None:
                first = await _shortest(server, room=options.tokens_of(0))
                lengths = _lengths(first.tokens, server.info, room=options.tokens_of(0))
            else:
                first = await _as_told(server, options.prompt_tokens, room=options.tokens_of(0))
                lengths = [first.tokens]
        except KvverifyError as problem:
            emit_engine(server)
            emit(nothing_possible(server.info, str(problem)))
            return
        arms, notes = _arms(options, server.info, by_ids=isinstance(first.body, list))
        waves = _waves(options, lengths, server.info)
        todo = [(r, w) for r in range(options.rounds) for w in waves if not _finished(known, r, w, arms[-1])]
        kept = options.rounds * len(waves) - len(todo)
        if kept:
            notes.append(
                f"{kept} of {options.rounds * len(waves)} waves are kept from before; a wave begins at its beginning"
            )
        emit_engine(server, notes)
        await server.ask("warm-up", Item(0, first, options.max_tokens))
        for round_, requests in todo:
            server.round = round_
            await _wave(server, options, requests, lengths, arms)
        _measure(known, emit, seed)


async def _shortest(server: Server, *, room: int) -> Prompt:
    """Return the shortest prompt at which all tiers hit alike and that holds its question.

    Raises:
        UsageError: none fits the context, or the server does not tell its block.
    """
    units = units_of(server.info, LEAST_TOKENS)
    while True:
        tokens = equal_length(server.info, units, room=room)
        try:
            return await server.writer.write(tokens, WARM_UP)
        except UsageError:
            units += 1  # ends at the context, or where there is none, with a length that holds everything


async def _as_told(server: Server, tokens: int, *, room: int) -> Prompt:
    """Return a prompt of the length that the user wants; where the tiers hit unequally, comparisons are refused.

    Raises:
        UsageError: it does not fit the context, or holds no question.
    """
    most = server.info.max_context
    if most is not None and tokens + room > most:
        raise UsageError(
            f"--prompt-tokens {tokens} and answers of {room} are beyond the context of {most}: expected at most {most - room}"
        )
    return await server.writer.write(tokens, WARM_UP)


def _lengths(shortest: int, info: EngineInfo, *, room: int) -> list[int]:
    """Return prompt lengths at which all tiers hit alike, as many different ones as fit; their tails differ as well."""
    block = info.block_tokens or info.hit_tokens or 1
    hit = (shortest - 1) // block * block
    capacity = info.capacity_tokens.get("hbm")
    found = [shortest]
    for more, tail in enumerate((block - 1, 1), start=1):
        tokens = hit + more * (info.hit_tokens or block) + max(1, tail)
        fits = info.max_context is None or tokens + room <= info.max_context
        if fits and (capacity is None or SHARE * (tokens + room) <= capacity):
            found.append(tokens)
    return found


def _arms(options: TierDiffOptions, info: EngineInfo, *, by_ids: bool) -> tuple[list[str], list[str]]:
    """Return the arms that this server allows and why others are left out."""
    hbm, lower = info.capacity_tokens.get("hbm"), info.capacity_tokens.get(info.lower_tier)
    notes = []
    above, single = ", ".join(info.tiers_between), info.prompts_in_hbm == 1
    starved = hbm is not None and (lower is None or lower >= SHARE * hbm)
    if not starved:
        room = f"HBM holds {hbm} tokens, {info.lower_tier} {lower}"
        notes.append(f"arm starved left out: {room}; fillers would push the prompts out of both")
    if above:
        notes.append(f"arm partial left out: the first part of a prompt would stay in {above}")
    elif single:
        notes.append("arms partial and concurrent left out: HBM holds one prompt, from one tier")
    elif not by_ids:
        notes.append("arm partial left out: without /tokenize the first part of a prompt has no exact length")
    concurrent = options.concurrency > 1 and options.requests > 1 and not single
    if not concurrent and not single:
        notes.append("concurrent arms left out: one request at a time was asked for")
    partial = by_ids and not above and not single
    return planned(info.lower_tier, partial=partial, starved=starved, concurrent=concurrent), notes


def _waves(options: TierDiffOptions, lengths: Sequence[int], info: EngineInfo) -> list[list[int]]:
    """Return the request numbers of each wave: as many as HBM holds beside the canary, with room to spare."""
    capacity = info.capacity_tokens.get("hbm")
    most = info.prompts_in_hbm or options.requests
    waves: list[list[int]] = [[]]
    used = 0
    for request in range(options.requests):
        tokens = lengths[request % len(lengths)] + options.tokens_of(request)
        full = capacity is not None and SHARE * (used + tokens) > capacity - lengths[0]
        if waves[-1] and (full or len(waves[-1]) == most):
            waves.append([])
            used = 0
        waves[-1].append(request)
        used += tokens
    return waves


def _finished(known: Iterable[Event], round_: int, requests: Sequence[int], last_arm: str) -> bool:
    seen = {
        e.request
        for e in known
        if isinstance(e, ReplayCompared) and (e.round, e.arm, e.what) == (round_, last_arm, "answers")
    }
    return seen >= set(requests)


async def _wave(
    server: Server, options: TierDiffOptions, requests: Sequence[int], lengths: Sequence[int], arms: Sequence[str]
) -> None:
    numbers = {n: server.round * options.requests + n for n in requests}
    items = [
        Item(n, await server.writer.write(lengths[n % len(lengths)], number), options.tokens_of(n), all_tokens=True)
        for n, number in numbers.items()
    ]
    canary = Item(requests[0], await server.writer.write(lengths[0], FIRST_CANARY + numbers[requests[0]]), 1)
    await Wave(server, items, canary, arms).run()


def _measure(known: Sequence[Event], emit: Callable[[Event], None], seed: int) -> None:
    """Emit the excess of every pair of arms whose difference, or whose floor, is not zero."""
    proofs = Proofs.of(known)
    proved = [e for e in known if isinstance(e, ReplayCompared) and e.what == "answers" and proofs.counts(e)]
    floor = list(floors(proved).values())
    last = {(e.base, e.arm, e.round, e.request): e for e in proved if e.judged}
    for base, arm in dict.fromkeys((e.base, e.arm) for e in last.values()):
        pair = [e for e in last.values() if (e.base, e.arm) == (base, arm)]
        # two passes at once may happen to share batches alike, and the next not: what a batch changes is noise of the engine too
        batch = [e for e in proved if CONCURRENT in base and e.base == HBM and e.arm == base]
        own = sorted([e for e in floor if e.base == base] + batch, key=_by_difference)  # the larger of a request counts
        if any(e.different for e in [*pair, *own]):
            for measured in measure(pair, own, seed=seed):
                emit(measured)


def _by_difference(e: ReplayCompared) -> tuple[bool, float]:
    return e.divergence >= 0, e.largest_difference
