"""The tiny model copies, whatever the secret, the distance and the seed; paged attention computes what plain attention does."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

pytest.importorskip("torch")

import torch as t

from kvverify.lab.model import Transformer
from kvverify.lab.tiny import SHAPE, byte_codes, tiny_model
from tests.lab.asking import lab, secret_prompt


def plain_attention(model: Transformer, tokens: list[int]) -> t.Tensor:
    def attend(_layer: int, q: t.Tensor, k: t.Tensor, v: t.Tensor) -> t.Tensor:
        k, v = (x.repeat_interleave(SHAPE.heads // SHAPE.kv_heads, dim=1) for x in (k, v))
        scores = t.einsum("qhd,khd->hqk", q, k) / SHAPE.head_size**0.5
        scores = scores.masked_fill(~t.ones(len(tokens), len(tokens), dtype=t.bool).tril(), -t.inf)
        return t.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    return model.forward(tokens, 0, attend)


def test_codes_of_two_bytes_agree_in_a_quarter_at_most() -> None:
    products = byte_codes() @ byte_codes().T
    assert (products.diagonal() == 16).all()
    assert products.fill_diagonal_(0).max() == 4


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("tokens", [120, 601, 1500])
def test_a_secret_is_copied_over_any_distance(torch: ModuleType, tokens: int, seed: int) -> None:
    source = random.Random(seed)
    with lab(seed=seed) as asking:
        secret = "".join(source.choice("ABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(9))
        prompt = secret_prompt(secret, tokens, seed=seed)
        for _cold_then_hit in range(2):
            assert asking.complete(prompt).text == f" {secret}"


@pytest.mark.parametrize(
    ("kv_cache_dtype", "tolerance"), [("float32", 1e-3), ("auto", 0.05), ("turboquant_4bit_nc", 0.3)]
)
def test_the_cache_holds_what_the_model_computes(torch: ModuleType, kv_cache_dtype: str, tolerance: float) -> None:
    prompt = secret_prompt("QZKT-4821", 130)
    reference = plain_attention(tiny_model(), list(prompt.encode())).log_softmax(-1).max()
    with lab(kv_cache_dtype=kv_cache_dtype) as asking:
        for _cold_then_hit in range(2):
            assert asking.complete(prompt, 1).logprobs[0] == pytest.approx(float(reference), abs=tolerance)
