"""Was a request served from the tier it was meant to be served from? What is not proved is a reason, in words with the numbers.

Hit counters are taken when a request is admitted, before anything is loaded, and some engines count hits that were recomputed;
so hits alone prove nothing: the loaded bytes or a second source must agree, and nothing but the tail may be computed. Between
the flush and the pass the bytes in HBM must be gone, for a flush only drops hashes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kvverify.events import GateEvaluated
from kvverify.live.answer import Answer
from kvverify.live.engine import EngineInfo, Evidence, Expected

LOWER = {"dram": "dram_hit_tokens", "disk": "disk_hit_tokens"}
PARTIAL = "partial"  # the head of the prompt hits HBM, the rest of it the lower tier
NOWHERE = "none"  # cold
ARM_TIERS = ("hbm", *LOWER, PARTIAL, NOWHERE)
NOT_OVERWRITTEN = "HBM not overwritten: a load that copies nothing would pass"


def total(expected: Iterable[Expected]) -> Expected:
    """Return what several requests must show together; loaded bytes are known only where each request's are."""
    each = list(expected)
    loaded = [e.loaded_bytes for e in each if e.loaded_bytes is not None]
    names = dict.fromkeys(name for e in each for name in e.witness)
    return Expected(
        hit_tokens=sum(e.hit_tokens for e in each),
        hbm_hit_tokens=sum(e.hbm_hit_tokens for e in each),
        computed_tokens=sum(e.computed_tokens for e in each),
        loaded_bytes=sum(loaded) if len(loaded) == len(each) else None,
        witness={name: sum(e.witness.get(name, 0) for e in each) for name in names},
    )


def evaluate(  # noqa: PLR0917 - two readings, what they must show, and by whom
    arm_tier: str,
    before: Evidence,
    after: Evidence,
    expected: Expected,
    answers: Sequence[Answer],
    info: EngineInfo,
    *,
    poisoned: bool,
    shared: bool = False,
    arm: str = "",
    round_: int = 0,
    request: int = -1,
) -> GateEvaluated:
    """Return whether ``answers``, all that was asked between two readings, were served from ``arm_tier``.

    ``arm_tier`` is one of :data:`ARM_TIERS`. ``expected`` is that of the request, or the :func:`total` of several; for a partial
    hit, ``hbm_hit_tokens`` and ``hit_tokens`` are the two parts. ``poisoned``: HBM was overwritten since the flush. ``shared``:
    other clients are allowed, and requests that are not ours do not count against the proof.

    Raises:
        ValueError: no such ``arm_tier``.
    """
    if arm_tier not in ARM_TIERS:
        raise ValueError(f"arm_tier {arm_tier!r}: expected one of {', '.join(ARM_TIERS)}")
    delta = after.since(before)
    wanted = _wanted(arm_tier, expected, info, answers)
    reasons = [
        *_answers(answers, wanted),
        *_something(arm_tier, wanted),
        *_backwards(before, after),
        *_alone(before, after, delta, len(answers), shared=shared),
        *_caching(delta, info),
        *_hits(delta, wanted),
        *_recomputed(delta, wanted, info),
    ]
    witnesses: list[str] = []
    if wanted.lower is not None:
        reasons += _loaded(delta, wanted, info)
        reasons += _second_source(before, after, wanted)
        reasons += [] if poisoned else [NOT_OVERWRITTEN]
        witnesses = _witnesses(delta, wanted, poisoned=poisoned)
    elif delta.loaded_bytes:
        reasons.append(f"{delta.loaded_bytes} bytes were loaded from a lower tier, expected none")
    return GateEvaluated(
        arm=arm or arm_tier,
        round=round_,
        request=request,
        reasons=list(dict.fromkeys(reasons)),
        counted={**dataclasses.asdict(delta), "cached_tokens": _cached(answers), "requests_sent": len(answers)},
        expected=dataclasses.asdict(wanted),
        witnesses=witnesses,
    )


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the counters must have moved by in one arm. ``lower`` is the tier that is read below HBM, None where none may be."""

    hbm: int
    lower: str | None
    lower_hits: int
    computed: int
    loaded_bytes: int | None
    witness: dict[str, int]


def _wanted(arm_tier: str, expected: Expected, info: EngineInfo, answers: Sequence[Answer]) -> Wanted:
    if arm_tier == NOWHERE:
        return Wanted(0, None, 0, sum(a.prompt_tokens for a in answers), 0, {})
    if arm_tier == "hbm":
        computed = expected.computed_tokens + expected.hit_tokens - expected.hbm_hit_tokens
        return Wanted(expected.hbm_hit_tokens, None, 0, computed, 0, {})
    lower = info.lower_tier if arm_tier == PARTIAL else arm_tier
    hbm = expected.hbm_hit_tokens if arm_tier == PARTIAL else 0
    return Wanted(hbm, lower, expected.hit_tokens, expected.computed_tokens, expected.loaded_bytes, expected.witness)


def _answers(answers: Sequence[Answer], wanted: Wanted) -> Iterator[str]:
    if not answers:
        yield "no request was sent"
        return
    failed = [a for a in answers if a.error]
    if failed:
        yield f"{len(failed)} of {len(answers)} requests failed: {failed[0].error}"
        return
    hits = wanted.hbm + wanted.lower_hits
    prompts = [a.prompt_tokens for a in answers]
    if min(prompts) >= 0 and sum(prompts) != hits + wanted.computed:
        yield f"usage counts {sum(prompts)} prompt tokens, expected {hits + wanted.computed}"
    cached = _cached(answers)
    if cached is not None and cached != hits:
        yield f"usage counts {cached} cached tokens, expected {hits}"


def _cached(answers: Sequence[Answer]) -> int | None:
    """Return the cached tokens that usage counts, None where an answer says nothing of them."""
    counts = [a.cached_tokens for a in answers]
    return sum(counts) if counts and min(counts) >= 0 else None


def _backwards(before: Evidence, after: Evidence) -> Iterator[str]:
    earlier, later = _counters(before), _counters(after)
    for name, value in later.items():
        if name in earlier and value < earlier[name]:
            yield f"counter {name} went backwards, from {earlier[name]} to {value}: was the server restarted?"
    gone = [name for name in earlier if name not in later]
    if gone:
        yield f"counters that were there before the pass are missing after it: {', '.join(gone)}"


def _counters(evidence: Evidence) -> dict[str, int]:
    names = [f.name for f in dataclasses.fields(evidence) if f.name not in ("running", "witness")]
    own = {name: getattr(evidence, name) for name in names}
    return {**{name: value for name, value in own.items() if value is not None}, **evidence.witness}


def _alone(before: Evidence, after: Evidence, delta: Evidence, sent: int, *, shared: bool) -> Iterator[str]:
    """Give reasons to think that other clients were at work. A foreign request computes a token at least, which counts, too."""
    if delta.preemptions:
        yield f"{delta.preemptions} preemptions: preempted requests are computed or loaded twice"
    if shared:
        return
    for when, running in (("before", before.running), ("after", after.running)):
        if running:
            yield f"{running} requests were running {when} ours: other clients are on the server (--shared allows them)"
    if delta.requests is None and delta.computed_tokens is None:
        yield "the engine counts neither requests nor computed tokens: other clients' requests cannot be ruled out"
    elif delta.requests == 0:
        yield f"the counter of requests did not move, though {sent} were sent: it sticks, or is another server's"
    elif delta.requests is not None and delta.requests != sent:
        yield f"the server counts {delta.requests} requests, {sent} are ours: other clients are on the server"


def _caching(delta: Evidence, info: EngineInfo) -> Iterator[str]:
    if delta.queries is None:
        yield f"{info.engine} does not say how many tokens were looked up: prefix caching may be off"
    elif delta.queries <= 0:
        yield f"{delta.queries} tokens were looked up: prefix caching is off, or the counter sticks"


def _hits(delta: Evidence, wanted: Wanted) -> Iterator[str]:
    if delta.hbm_hit_tokens is None:
        yield "the engine does not say how many tokens HBM hit"
    elif delta.hbm_hit_tokens != wanted.hbm:
        yield f"HBM hit {delta.hbm_hit_tokens} tokens, expected {wanted.hbm}"
    for tier, field in LOWER.items():
        hits = getattr(delta, field)
        expected = wanted.lower_hits if tier == wanted.lower else 0
        if hits is None and tier == wanted.lower:
            yield f"the engine does not say how many tokens {tier} hit"
        elif hits is not None and hits != expected:
            yield f"{tier} hit {hits} tokens, expected {expected}"


def _something(arm_tier: str, wanted: Wanted) -> Iterator[str]:
    """An arm that expects nothing proves nothing."""
    if arm_tier in ("hbm", PARTIAL) and wanted.hbm <= 0:
        yield "nothing to hit in HBM: the prompt is shorter than a block"
    if wanted.lower is not None and wanted.lower_hits <= 0:
        yield f"nothing to hit in {wanted.lower}: the prompt is shorter than the tier's unit"
    if arm_tier == NOWHERE and wanted.computed <= 0:
        yield "nothing to compute: the prompt's length is not known"


def _recomputed(delta: Evidence, wanted: Wanted, info: EngineInfo) -> Iterator[str]:
    if delta.computed_tokens is None:
        yield f"{info.engine} does not say how many prompt tokens were computed: a silent recomputation would pass"
    elif delta.computed_tokens > wanted.computed:
        beyond = delta.computed_tokens - wanted.computed
        yield f"{delta.computed_tokens} prompt tokens were computed, {beyond} beyond the tail of {wanted.computed}"
    elif delta.computed_tokens < wanted.computed:
        yield f"{delta.computed_tokens} prompt tokens were computed, expected {wanted.computed}"


def _loaded(delta: Evidence, wanted: Wanted, info: EngineInfo) -> Iterator[str]:
    counted, expected = delta.loaded_bytes, wanted.loaded_bytes
    if expected is None:
        if counted == 0:
            yield f"no byte was loaded from {wanted.lower}"
    elif counted is None:
        yield f"{info.engine} does not say how many bytes were loaded, expected {expected}"
    elif counted != expected:
        yield f"{counted} bytes were loaded from {wanted.lower}, expected {expected}"


def _second_source(before: Evidence, after: Evidence, wanted: Wanted) -> Iterator[str]:
    for name, expected in wanted.witness.items():
        if name not in before.witness or name not in after.witness:
            yield f"the second source does not say {name}, expected {expected}"
        elif (counted := after.witness[name] - before.witness[name]) != expected:
            yield f"the second source counts {counted} for {name}, expected {expected}"
    if not wanted.loaded_bytes and not any(wanted.witness.values()):
        yield "hits have no second source: neither loaded bytes nor a witness; hit counters are taken before the load"


def _witnesses(delta: Evidence, wanted: Wanted, *, poisoned: bool) -> list[str]:
    """Return what else than hit counters speaks for the tier."""
    found = [f"{name} {delta.witness[name]}" for name, n in wanted.witness.items() if delta.witness.get(name) == n != 0]
    if wanted.loaded_bytes and delta.loaded_bytes == wanted.loaded_bytes:
        found.insert(0, f"loaded bytes {delta.loaded_bytes}")
    return [*found, *(["HBM overwritten before the pass"] if poisoned else [])]
