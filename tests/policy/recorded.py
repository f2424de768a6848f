"""Recorded runs, good and bad: arms of a rollout, comparisons, campaigns, isolation."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from kvverify.events import Event, IsolationMeasured, RunFinished, RunStarted, SessionChecked
from kvverify.events_accuracy import (
    ArmIncluded,
    ArmsPaired,
    ArmStarted,
    CacheReadStated,
    DifferenceMeasured,
    FlipsMeasured,
    SampleAnswered,
)

IDENTITY = {"model": "smol", "engine": "vllm", "build": "vllm 0.32.0", "kv_cache_dtype": "bf16", "tier": "none"}


def around(command: str, events: Iterable[Event], **options: Any) -> list[Event]:
    """Put the start and the end of a run around events."""
    start = RunStarted(command=command, version="0.1.0", seed=1, options=options)
    return [start, *events, RunFinished(seconds=10.0)]


def arm(
    label: str,
    kind: str = "business",
    *,
    n: int = 3000,
    itl: float = 0.020,
    spread: float = 0.1,
    format_errors: int = 3,
    failed: int = 0,
    wrong: Iterable[int] = (),
    cached: float = -1.0,
) -> list[Event]:
    """Return the run of one arm: ``itl`` is about the median, ``format_errors`` and ``failed`` counts, ``wrong`` numbers of samples."""
    rng, bad = random.Random(f"{label} {kind}"), set(wrong)
    started = ArmStarted(
        label=label, suite="formats", kind=kind, identity=IDENTITY, planned={f"{kind}/0": n}, samples_hash="0"
    )
    answers = [
        SampleAnswered(
            task=kind,
            length=0,
            index=i,
            key=f"{kind}{i}",
            cluster=str(i),
            score=0.0 if i in bad else 1.0,
            prompt_tokens=100,
            cached_tokens=round(100 * cached) if cached >= 0 else -1,
            format_error="no JSON" if i < format_errors else "",
            ttft=0.1,
            itl=itl * rng.lognormvariate(0.0, spread),
            error="timed out" if i >= n - failed else "",
        )
        for i in range(n)
    ]
    read = CacheReadStated(
        label=label,
        samples=n,
        decode_steps=9 * n,
        hit_tokens=0,
        continued_tokens=-1,
        raw_tokens=100 * n,
        evidence="decode",
    )
    return around("accuracy run", [started, *answers, read])


def difference(
    effect: str = "format", *, value: float = 0.0, half: float = 0.005, pairs: int = 6500, **changes: Any
) -> DifferenceMeasured:
    """Return a measured difference; ``value`` and ``half`` (of the interval) are shares."""
    made = DifferenceMeasured(
        base="bf16",
        arm="4bit",
        effect=effect,
        scope="all",
        primary=True,
        binary=True,
        pairs=pairs,
        missing=0,
        base_score=0.80,
        arm_score=0.80 + value,
        difference=value,
        low=value - half,
        high=value + half,
        low_worst=value - half,
        high_best=value + half,
        confidence=0.90,
        method="tango",
        margin=0.01,
        alpha=0.05,
        base_only=60,
        arm_only=60,
        discordance=0.02,
        power=0.8,
        power_reached=0.99,
        needed=1237,
    )
    return replace(made, **changes)


def comparison(*measured: DifferenceMeasured, suite: str = "ruler-32k", **arm_changes: Any) -> list[Event]:
    """Return the run of a comparison with these claims."""
    included = [
        replace(
            ArmIncluded(
                label=label,
                role=role,
                path=f"runs/{label}",
                events_hash="0" * 64,
                identity={**IDENTITY, "kv_cache_dtype": label},
                samples=6500,
                missing=0,
                score=0.8,
                cache_read="decode",
                suite=suite,
                packed_reads=58_500,
                gates=13,
            ),
            **arm_changes,
        )
        for label, role in (("bf16", "base"), ("4bit", "candidate"))
    ]
    paired = [ArmsPaired(base="bf16", arm="4bit", effect=e.effect, common=e.pairs) for e in measured]
    flips = FlipsMeasured(
        base="bf16", arm="4bit", pairs=6500, rate=0.02, floor=0.01, excess=0.01, low=0.007, high=0.013
    )
    return around("accuracy compare", [*included, *paired, *measured, flips])


def isolation(*, sessions: int = 32, rounds: int = 20, right: int | None = None, foreign: int = 0) -> list[Event]:
    """Return an isolation test in which all sessions qualify; ``right`` of the answers are, ``foreign`` hold another's content."""
    total = sessions * rounds
    good = total if right is None else right
    checked = [
        SessionChecked(
            session=f"session {n % sessions}",
            round=n // sessions,
            right=n < good,
            qualified=True,
            foreign="session 1" if n >= total - foreign else "",
            from_tier="dram",
        )
        for n in range(total)
    ]
    excluded = 0.0047 if good == total and not foreign else -1.0
    measured = IsolationMeasured(answers=total, qualified=total, right=good, foreign=foreign, excluded_rate=excluded)
    return around("isolation", [*checked, measured], sessions=sessions, rounds=rounds, url="http://localhost:1")
