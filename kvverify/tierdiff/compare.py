"""Two answers to one prompt, position by position; digests of its blocks; and, with noise, how large the excess is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from kvverify.events import ExcessMeasured, ReplayCompared, RequestAnswered
from kvverify.stats.excess import excess

LARGEST, DIVERGED = "largest logprob difference", "divergence rate"


def compare(
    base: RequestAnswered, other: RequestAnswered, *, judged: bool, hits: tuple[int | None, int | None] = (None, None)
) -> ReplayCompared:
    """Compare what ``other`` generated with what ``base`` did; the round is ``other``'s.

    ``hits`` are the tokens that each read from a cache, None where that is not known. Of a judged comparison they must be equal:
    another number of tokens to compute runs other kernels, which round differently.
    """
    found = ReplayCompared(base=base.arm, arm=other.arm, round=other.round, request=other.request, judged=judged)
    if refused := _refusal(base, other, judged=judged, hits=hits):
        return replace(found, refused=refused)
    pairs = zip(base.tokens, other.tokens, strict=False)
    divergence = next((i for i, (a, b) in enumerate(pairs) if a != b), -1)
    shorter = min(len(base.tokens), len(other.tokens))
    if divergence < 0 and len(base.tokens) != len(other.tokens):
        divergence = shorter
    same = shorter if divergence < 0 else divergence
    gaps = [abs(a - b) for a, b in zip(base.logprobs[:same], other.logprobs[:same], strict=True)]
    largest = max(gaps, default=0.0)
    detail = ""
    if divergence >= 0:
        detail = f"token {_token(base, divergence)} became {_token(other, divergence)} at position {divergence}"
    elif largest > 0:
        detail = f"logprob at position {gaps.index(largest)} differs by {largest:.3g}"
    return replace(found, positions=shorter, divergence=divergence, largest_difference=largest, detail=detail)


def compare_blocks(
    arms: tuple[str, str], round_: int, request: int, *, hit: int, before: Sequence[str], after: Sequence[str]
) -> ReplayCompared:
    """Compare the digests of blocks when a prompt was computed with those after it came from a lower tier.

    Of ``hit`` blocks that were hit each digest must be there again; the tail of the prompt and what was generated may differ, as
    they are computed anew. An empty digest is none. They come in no order, for only a scheduler knows which block holds which tokens.
    """
    before, after = [[d for d in digests if d] for digests in (before, after)]
    found = ReplayCompared(base=arms[0], arm=arms[1], round=round_, request=request, judged=True, what="blocks")
    if hit <= 0 or len(before) < hit or len(after) < hit:
        return replace(found, refused=f"{len(before)} and {len(after)} blocks have a digest, {hit} were hit")
    common = (Counter(before) & Counter(after)).total()
    detail = f"{hit - common} of {hit} blocks that were hit hold other bytes" if common < hit else ""
    return replace(found, positions=hit, divergence=common if common < hit else -1, detail=detail)


def measure(compared: Iterable[ReplayCompared], floors: Iterable[ReplayCompared], *, seed: int) -> list[ExcessMeasured]:
    """Return the excess of one pair of arms over the floor of its base; nothing where no prompt was compared both ways.

    Paired by prompt; several rounds of a request are other prompts.
    """
    floor = {(e.round, e.request): e for e in floors if not e.refused}
    pairs = [(floor[e.round, e.request], e) for e in compared if not e.refused and (e.round, e.request) in floor]
    if not pairs:
        return []
    base, arm = pairs[0][1].base, pairs[0][1].arm
    statistics = {
        LARGEST: [(f.largest_difference, e.largest_difference) for f, e in pairs],
        DIVERGED: [(float(f.divergence >= 0), float(e.divergence >= 0)) for f, e in pairs],
    }
    found = []
    for name, values in statistics.items():
        m = excess([a for a, _ in values], [b for _, b in values], seed=seed)
        found.append(
            ExcessMeasured(
                base=base,
                arm=arm,
                statistic=name,
                requests=m.items,
                floor=m.floor,
                value=m.value,
                excess=m.excess,
                low=m.low,
                high=m.high,
                confidence=m.confidence,
            )
        )
    return found


def _refusal(
    base: RequestAnswered, other: RequestAnswered, *, judged: bool, hits: tuple[int | None, int | None]
) -> str:
    failed = [e.arm for e in (base, other) if e.error]
    if failed:
        return f"no answer in {' and '.join(failed)}"
    if base.prompt_hash != other.prompt_hash:
        return "the prompts differ"
    if not base.tokens or len(base.logprobs) != len(base.tokens) or len(other.logprobs) != len(other.tokens):
        return "an answer without a logprob for each token"
    if judged and (None in hits or hits[0] != hits[1]):
        told = [
            f"{arm.arm} {'an unknown number of' if n is None else n}"
            for arm, n in zip((base, other), hits, strict=True)
        ]
        return f"unequal hit lengths: {' and '.join(told)} tokens came from a cache, so different kernels computed the rest"
    return ""


def _token(answer: RequestAnswered, position: int) -> str:
    return str(answer.tokens[position]) if position < len(answer.tokens) else "the end"
