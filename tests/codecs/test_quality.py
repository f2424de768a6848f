"""The measures have teeth: they see what correlation does not, and a codec outside its bound fails."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kvverify.codecs.inputs import input_names, realistic_queries, sample
from kvverify.codecs.interface import Pair
from kvverify.codecs.plain import HalfCodec
from kvverify.codecs.quality import attention_bound, quality
from kvverify.codecs.registry import codec
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.errors import CodecError


@dataclass(frozen=True)
class Spoiled(HalfCodec):
    """bf16, but K comes back times ``factor`` plus ``offset``."""

    factor: float = 1.0
    offset: float = 0.0

    def decode(self, slots: Any, *, check: bool = True) -> Pair:
        found = super().decode(slots, check=check)
        return Pair(found.k * np.float32(self.factor) + np.float32(self.offset), found.v)


def test_a_sound_codec_has_nothing_to_report() -> None:
    s = sample("gaussian", head_size=64)
    found = quality(codec("bf16", 64), s.k, s.v, s.q)
    assert found.failures() == []
    assert found.ratio_to_bf16 == 1.0
    assert (found.k.max_error, found.attention.max_relative_error, found.attention.top1_flips) == (0.0, 0.0, 0)


@pytest.mark.parametrize(("factor", "offset"), [(2.0, 0.0), (1.0, 3.0), (1.02, 0.0)])
def test_scale_and_offset_are_seen_where_correlation_is_blind(factor: float, offset: float) -> None:
    s = sample("gaussian", head_size=64)
    found = quality(Spoiled("bf16", 64, factor, offset), s.k, s.v, s.q)
    assert found.k.correlation_blind == pytest.approx(1.0, abs=1e-6)
    assert any(line.startswith("K: error is") for line in found.failures())
    assert found.k.max_steps is not None
    assert found.k.max_steps > 1
    if factor != 1:
        assert found.attention.inner_product_slope == pytest.approx(factor, abs=1e-3)


def test_damaged_attention_is_seen_by_its_own_bound() -> None:
    s = sample("gaussian", head_size=64)
    found = quality(Spoiled("bf16", 64, 2.0), s.k, s.v, s.q)
    assert any(line.startswith("attention: output error is") for line in found.failures())


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e6, 1e15])
@pytest.mark.parametrize("name", ["bf16", "int8_per_token_head", "int4_per_token_head", "ultraquant_4bit"])
def test_bounds_of_huge_inputs_are_finite(name: str, scale: float) -> None:
    s = sample("gaussian", head_size=64)
    k, v = (x * np.float32(scale) for x in (s.k, s.v))
    found = quality(codec(name, 64), k, v, s.q * np.float32(scale))  # a RuntimeWarning is an error in these tests
    assert found.failures() == []
    assert 0 <= found.attention.over_bound <= 1


def test_the_attention_bound_is_twice_the_largest_value_where_logits_may_be_anything() -> None:
    v = np.array([[1e6, -3.0], [2e6, 1.0]])
    v_bound = np.array([[10.0, 0.5], [20.0, 0.25]])
    for logit in (340.0, 349.0, 351.0, 1e12):
        for weights in ([[0.5, 0.5]], [[1.0, 0.0]]):
            found = attention_bound(np.array(weights), np.array([logit]), v, v_bound)
            assert np.array_equal(found, 2 * (np.abs(v) + v_bound).max(0) + weights @ v_bound)
    exact = attention_bound(np.array([[0.5, 0.5]]), np.zeros(1), v, v_bound)
    assert np.array_equal(exact, [[15.0, 0.375]])


def test_flips_count_positions_that_are_truly_worse() -> None:
    k = np.zeros((3, 1, 64), np.float32)
    k[0, 0, 0], k[1, 0, 0], k[2, 0, 0] = 1.0, 1.0, 0.5
    q = np.zeros((2, 1, 64), np.float32)
    q[0, 0, 0], q[1, 0, 0] = 4.0, -4.0
    assert quality(codec("bf16", 64), k, k, q).attention.top1_flips == 0  # a tie is no flip
    assert quality(Spoiled("bf16", 64, -1.0), k, k, q).attention.top1_flips == 2


def test_fewer_bits_cost_more() -> None:
    s = sample("outlier_channels", head_size=128, tokens=256)
    errors = [
        quality(codec(name, 128), s.k, s.v, s.q).k.relative_rms_error
        for name in ("bf16", "int8_per_token_head", "turboquant_4bit_nc", "turboquant_3bit_nc")
    ]
    assert all(e is not None for e in errors)
    assert errors == sorted(errors, key=lambda e: e or 0)


def test_norm_correction_shrinks_inner_products_by_the_cosine() -> None:
    """Known bias: |c / |c|| is 1, so q k' is too small by the cosine between y and c, .995 at 4 bits and .983 at 3."""
    s = sample("gaussian", head_size=128, tokens=512, queries=64)
    for name, slope in (("turboquant_4bit_nc", 0.995), ("turboquant_3bit_nc", 0.983)):
        found = quality(TurboQuantCodec(name, 128), s.k, s.v, s.q).attention.inner_product_slope
        assert found == pytest.approx(slope, abs=4e-3)


def test_undefined_measures_are_none_and_counted() -> None:
    zeros = np.zeros((4, 1, 64), np.float32)
    found = quality(codec("turboquant_4bit_nc", 64), zeros, zeros, zeros)
    assert (found.k.correlation_blind, found.k.relative_rms_error, found.k.max_steps) == (None, None, None)
    assert found.k.without_step == 256
    assert found.attention.mean_relative_error is None
    assert found.attention.without_output == 4
    assert found.attention.inner_product_slope is None
    assert found.failures() == []


def test_query_heads_share_kv_heads() -> None:
    s = sample("gaussian", head_size=64)
    grouped = np.repeat(s.q, 3, axis=1)
    assert quality(codec("kivi", 64), s.k, s.v, grouped).attention.queries == 32 * 6
    with pytest.raises(CodecError, match="Q has 3 heads; expected a multiple of the 2 KV heads"):
        quality(codec("kivi", 64), s.k, s.v, grouped[:, :3])


def test_inputs_are_reproducible_bf16_numbers_and_queries_look_for_keys() -> None:
    for name in input_names():
        left, right = (sample(name, head_size=64) for _ in range(2))
        for x, y in ((left.k, right.k), (left.v, right.v), (left.q, right.q)):
            assert np.array_equal(x, y)
            assert not (x.view(np.uint32) & 0xFFFF).any()
            assert np.isfinite(x).all()
        assert left.why
    k = sample("gaussian", head_size=64).k
    q = realistic_queries(k, 100)
    logits = np.einsum("qhd,thd->hqt", q, k) / 8
    top = np.exp(logits - logits.max(-1, keepdims=True))
    weight = (top.max(-1) / top.sum(-1)).mean()
    assert 0.3 < weight < 0.999  # peaked, not one-hot
