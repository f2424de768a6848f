"""What a format costs at tensor level, in measures that see scale and offset.

Correlation and cosine are blind: corr(x, 2x) = corr(x, x + 3) = 1. They are given, and labelled, because others publish
them. An undefined measure (a step of zero, a constant row) is None or left out and counted, never a zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kvverify.codecs.arrays import Floats, as_float32, pair
from kvverify.codecs.interface import Codec, Pair
from kvverify.errors import CodecError

Doubles = NDArray[np.float64]
QUERY_CHUNK = 64
GROWTH_LIMIT = 700.0  # e^709 is the largest that float64 holds


@dataclass(frozen=True, slots=True)
class PartQuality:
    """K or V alone.

    ``over_bound`` is the largest error / derived bound of an element, ``over_vector_bound`` the largest length of an
    error / that of the derived bound of a vector: above 1 the codec, or its derivation, is wrong.
    """

    max_error: float
    mean_error: float
    relative_rms_error: float | None  # |x' - x| / |x| over all elements
    max_steps: float | None  # in units of the format's own step at that element
    mean_steps: float | None
    without_step: int  # elements whose step is zero: rows of zeros
    over_bound: float
    over_vector_bound: float
    correlation_blind: float | None


@dataclass(frozen=True, slots=True)
class AttentionQuality:
    """softmax(Q K^T / sqrt(D)) V with encoded K and V against the exact ones, over all (query, head).

    ``relative_error`` is |o' - o| / |o|. ``over_bound`` is the largest |o' - o| / bound over all output elements, by
    :func:`attention_bound`. A top-1 flip is a query whose best position is, by the exact logits, truly worse than the
    best: ties do not count. ``inner_product_bias`` is the mean of (q k' - q k), in units of the root mean square of q
    k; ``inner_product_slope`` the least-squares slope of q k' over q k: 1 is unbiased.
    """

    queries: int
    mean_relative_error: float | None
    max_relative_error: float | None
    without_output: int
    over_bound: float
    top1_flips: int
    inner_product_bias: float | None
    inner_product_slope: float | None


@dataclass(frozen=True, slots=True)
class Quality:
    """One codec on one input."""

    codec: str
    head_size: int
    tokens: int
    heads: int
    bytes_per_token_and_head: float
    ratio_to_bf16: float
    k: PartQuality
    v: PartQuality
    attention: AttentionQuality

    def failures(self) -> list[str]:
        """Return what cannot be if codec and derivations are right; empty for a sound codec on any input."""
        found = [
            f"{name}: error is {part.over_bound:.4g} times the bound that the format allows"
            for name, part in (("K", self.k), ("V", self.v))
            if not part.over_bound <= 1
        ]
        found += [
            f"{name}: a vector's error is {part.over_vector_bound:.4g} times the length that the format allows"
            for name, part in (("K", self.k), ("V", self.v))
            if not part.over_vector_bound <= 1
        ]
        if not self.attention.over_bound <= 1:
            found.append(
                f"attention: output error is {self.attention.over_bound:.4g} times what the bounds of K and V allow"
            )
        return found


def quality(codec: Codec, k: Any, v: Any, q: Any) -> Quality:
    """Encode, decode and measure.

    Shapes: K and V [tokens, heads, head_size], Q [queries, query heads, head_size] with query heads a multiple of
    heads; query head h reads KV head h // (query heads / heads), as engines group them.

    Raises:
        CodecError: shapes, dtypes or numbers the codec cannot take; query heads that do not divide.
    """
    keys, values = pair(k, v, codec.head_size)
    queries = as_float32(q, "Q", codec.head_size)
    tokens, heads, size = keys.shape
    if queries.shape[1] % heads:
        raise CodecError(f"Q has {queries.shape[1]} heads; expected a multiple of the {heads} KV heads")
    encoded = codec.encode_sequence(keys, values)
    decoded = codec.decode_sequence(encoded)
    step, bound, lengths = (measure(keys, values) for measure in (codec.step, codec.bound, codec.vector_bound))
    cost = encoded.bytes_per_token_and_head
    return Quality(
        codec.name,
        size,
        tokens,
        heads,
        cost,
        4 * size / cost,
        _part(keys, decoded.k, step.k, bound.k, lengths.k),
        _part(values, decoded.v, step.v, bound.v, lengths.v),
        _attention(Pair(keys, values), decoded, bound, queries),
    )


def attention_bound(weights: Doubles, logit_bound: Doubles, v: Doubles, v_bound: Doubles) -> Doubles:
    """Return the largest output error [queries, head_size] that the bounds of K and V allow.

    Derivation: a logit moves by at most d = max over tokens of sum |q_i| bound(k_i) / sqrt(D). Then each softmax weight
    changes by a factor within e^(+-2d), so |p' - p| <= p (e^(2d) - 1), and with o' - o = sum (p' - p) v' + sum p (v' -
    v): |o' - o| <= (e^(2d) - 1) sum p (|v| + bound(v)) + sum p bound(v). Since weights also sum to one, the first
    factor is at most 2 times the largest |v'|; for wide bounds that says little, and for 4-bit keys it usually does.

    Shapes: weights [queries, tokens], logit_bound [queries], v and v_bound [tokens, head_size].
    """
    reach = np.abs(v) + v_bound
    most, wide = 2 * reach.max(0), (2 * logit_bound > GROWTH_LIMIT)[:, None]
    growth = np.expm1(np.minimum(2 * logit_bound, GROWTH_LIMIT))[:, None]
    with np.errstate(over="ignore"):  # infinity loses against the finite ``most``
        moved = np.where(wide, most, np.minimum(growth * (weights @ reach), most))
    return np.asarray(moved + weights @ v_bound, np.float64)


def _part(x: Floats, found: Floats, step: Floats, bound: Floats, length: Floats) -> PartQuality:
    error = np.abs(found.astype(np.float64) - x)
    stepped = step > 0
    steps = error[stepped] / step[stepped]
    power = float((x.astype(np.float64) ** 2).sum())
    return PartQuality(
        max_error=float(error.max()),
        mean_error=float(error.mean()),
        relative_rms_error=float(np.sqrt((error**2).sum() / power)) if power > 0 else None,
        max_steps=float(steps.max()) if steps.size else None,
        mean_steps=float(steps.mean()) if steps.size else None,
        without_step=int(x.size - steps.size),
        over_bound=_over(error, bound),
        over_vector_bound=_over(
            np.sqrt((error**2).sum(-1, keepdims=True)), length.astype(np.float64) * (1 + 2.0**-20) + 2.0**-140
        ),
        correlation_blind=_correlation(x, found),
    )


def _over(error: Doubles, bound: Floats | Doubles) -> float:
    """Return the largest error / bound; an error where the bound is zero is infinite."""
    ratio = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
    return float(ratio.max())


def _correlation(x: Floats, found: Floats) -> float | None:
    left, right = (a.astype(np.float64).ravel() - a.mean(dtype=np.float64) for a in (x, found))
    size = float(np.sqrt((left @ left) * (right @ right)))
    return float(left @ right) / size if size > 0 else None


class _Head(NamedTuple):
    """K and V of one head, float64 [tokens, head_size]."""

    k: Doubles
    v: Doubles


@dataclass(slots=True)
class _Sums:
    """Running sums over (query, head) for one comparison."""

    errors: list[Doubles]
    without_output: int = 0
    over: float = 0.0
    flips: int = 0
    products: int = 0
    shift: float = 0.0
    square: float = 0.0
    cross: float = 0.0


def _attention(exact: Pair, found: Pair, bound: Pair, q: Floats) -> AttentionQuality:
    sums = _Sums([])
    heads, group = exact.k.shape[1], q.shape[1] // exact.k.shape[1]
    for head in range(heads):
        cut = [_Head(*(x[:, head].astype(np.float64) for x in both)) for both in (exact, found, bound)]
        for member in range(head * group, (head + 1) * group):
            for first in range(0, len(q), QUERY_CHUNK):
                _add_queries(sums, q[first : first + QUERY_CHUNK, member].astype(np.float64), *cut)
    relative = np.concatenate(sums.errors)
    power = sums.square / sums.products
    return AttentionQuality(
        queries=int(q.shape[0] * q.shape[1]),
        mean_relative_error=float(relative.mean()) if relative.size else None,
        max_relative_error=float(relative.max()) if relative.size else None,
        without_output=sums.without_output,
        over_bound=sums.over,
        top1_flips=sums.flips,
        inner_product_bias=sums.shift / sums.products / power**0.5 if power > 0 else None,
        inner_product_slope=sums.cross / sums.square if power > 0 else None,
    )


def _add_queries(sums: _Sums, q: Doubles, exact: _Head, found: _Head, bound: _Head) -> None:
    """Add queries [n, head_size] of one head to the sums."""
    scale = q.shape[1] ** -0.5
    k, v = exact
    products, moved = q @ k.T, q @ found.k.T
    weights = _softmax(products * scale)
    output, other = weights @ v, _softmax(moved * scale) @ found.v
    error = np.abs(other - output)
    length = np.sqrt((output**2).sum(-1))
    some = length > 0
    sums.errors.append(np.sqrt((error**2).sum(-1))[some] / length[some])
    sums.without_output += int((~some).sum())
    allowed = attention_bound(weights, (np.abs(q) @ bound.k.T).max(-1) * scale, v, bound.v)
    rounding = np.abs(v).max(0) * 1e-12  # float64 sums
    sums.over = max(sums.over, _over(error, allowed + rounding))
    best = np.take_along_axis(products, moved.argmax(-1)[:, None], -1)[:, 0]
    sums.flips += int((best < products.max(-1)).sum())
    sums.products += products.size
    sums.shift += float((moved - products).sum())
    sums.square += float((products**2).sum())
    sums.cross += float((products * moved).sum())


def _softmax(x: Doubles) -> Doubles:
    weights = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(weights / weights.sum(-1, keepdims=True), np.float64)
