"""Which tokens of an arm were read from the cache in its stored format, and which were computed from raw K and V.

Engines with packed formats attend to raw K and V within the first chunk of a prefill. Packed values are read by every decode step,
by the rest of a prompt whose beginning was hit, and by later chunks of a long prefill. A score from none of these says nothing of the format.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvverify.events_accuracy import CacheReadStated, SampleAnswered
from kvverify.live.engine import EngineInfo, Evidence

UNKNOWN = -1


def stated(
    label: str,
    answers: Iterable[SampleAnswered],
    infos: Sequence[EngineInfo],
    counted: Sequence[Evidence | None] = (),
    *,
    control: str = "",
    in_flight: int = 1,
) -> CacheReadStated:
    """Return what the scored ``answers`` read, by usage and by the servers' chunk.

    ``continued_tokens`` of a prompt are those beyond its hit and one whole chunk: at least so many, for a chunk may be shared with
    other requests. Where usage tells no hits they count as none, which the evidence says. ``counted`` are the engines' own counters
    over this attempt. ``in_flight`` requests at most were at a server at once: prompts that do not fit a step together are cut, and
    the later part of one reads what is packed of the earlier, uncounted.
    """
    good = [e for e in answers if not e.error]
    chunks = [n for n in (_chunk(info) for info in infos) if n is not None]
    chunk = max(chunks) if len(chunks) == len(infos) and chunks else None
    told = [e for e in good if e.cached_tokens != UNKNOWN]
    hits = sum(e.cached_tokens for e in told)
    prompts = sum(max(e.prompt_tokens, 0) for e in good)
    later = (
        sum(max(0, e.prompt_tokens - max(e.cached_tokens, 0) - chunk) for e in good) if chunk is not None else UNKNOWN
    )
    raw = prompts - hits - max(later, 0)
    steps = sum(max(0, e.output_tokens - 1) for e in good)
    regimes = [name for name, n in (("decode", steps), ("prefix hit", hits), ("continuation", later)) if n > 0]
    words = [
        f"read packed: {', '.join(regimes) or 'nothing'}",
        f"cached tokens by usage for {len(told)} of {len(good)} answers",
        _chunk_words(chunk, in_flight * max((e.prompt_tokens for e in good), default=0)),
        *(f"counted by endpoint {n}: {_words(e)}" for n, e in enumerate(counted) if e is not None),
        *([f"control: {control}"] if control else []),
    ]
    return CacheReadStated(
        label=label,
        samples=len(good),
        decode_steps=steps,
        hit_tokens=hits,
        continued_tokens=later,
        raw_tokens=raw,
        evidence="; ".join(words),
    )


def _chunk(info: EngineInfo) -> int | None:
    told = info.options.get("max_num_batched_tokens")
    return told if type(told) is int and told > 0 else None


def _chunk_words(chunk: int | None, together: int) -> str:
    if chunk is None:
        return "the engine does not tell its chunk"
    if together <= chunk:
        return f"chunk of {chunk} tokens"
    return f"chunk of {chunk} tokens for prompts of up to {together:,} at once: some may have been computed in parts, which is not counted"


def _words(e: Evidence) -> str:
    known = {
        "HBM hits": e.hbm_hit_tokens,
        "DRAM hits": e.dram_hit_tokens,
        "computed": e.computed_tokens,
        "loaded bytes": e.loaded_bytes,
    }
    return ", ".join(f"{name} {n:,}" for name, n in known.items() if n is not None) or "nothing"
