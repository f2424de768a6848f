"""The default model: weights set by hand so that it copies what followed the longest repetition of the last eight bytes.

An induction circuit (Olsson et al. 2022, "In-context Learning and Induction Heads") over bytes, six layers:

* layer 0, RoPE: head h attends to the position h + 1 before its own and writes that byte's code into slot h + 1.
* layer 2, no positions: Q is the codes of the last 8 bytes, K those of the 8 bytes before a position, V the code of the byte
  there. So attention goes where the last 8 bytes stood before, and reads from the cache what came next.
* layers 1, 3, 4 and 5 and all MLPs are small random numbers, so that each cached byte moves the logits and none decides.

With TurboQuant layers 2 and 3 are packed, the others boundary layers. An answer is thus read from the packed cache: a wrong
block gives a wrong answer, a foreign one a foreign answer.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from kvverify.lab.model import LayerWeights, Shape, Transformer, rotate

NAME = "lab-tiny"
CODE, SEEN = 16, 8  # numbers of a byte's code; bytes that are compared
_BIAS = CODE * (SEEN + 1)  # a dimension that is the same for every byte
_OUT = _BIAS + 1  # [CODE]: the code of the next byte
_SCRATCH = _OUT + CODE
HEAD = CODE * SEEN
SHAPE = Shape(
    layers=6,
    hidden=208,
    heads=8,
    kv_heads=2,
    head_size=HEAD,
    vocabulary=256,
    context=2048,
    rope=(True, True, False) * 2,
)
_MLP = 64
_FREQUENCIES = (
    16  # of RoPE, that layer 0 uses: their sum peaks at one distance only, for all distances up to the context
)
_POSITION_SCORE = 220.0  # attention score of the right position; the next best one has 0.88 of it
_MATCH_SCORE = 20.0  # attention score of each byte that agrees
_LOGIT = 10.0  # logit of the right byte; the others have at most a quarter
# Quadratic forms in 4 variables (bits: 12 13 14 23 24 34) whose pairwise sums are bent: a Kerdock set
_KERDOCK = (0, 12, 22, 27, 39, 41, 53, 58)


def byte_codes() -> Tensor:
    """Return a code of +-1 for each byte, float32 [256, 16], any two with a product of at most 4 (Nordstrom-Robinson)."""
    points = torch.tensor(list(itertools.product((0, 1), repeat=4)))
    products = torch.stack([points[:, a] * points[:, b] for a, b in itertools.combinations(range(4), 2)], dim=1)
    affine = torch.cat([torch.ones(16, 1, dtype=torch.int64), points], dim=1)
    words = [products @ _bits(form, 6) + affine @ _bits(line, 5) for form in _KERDOCK for line in range(32)]
    return torch.where(torch.stack(words) % 2 == 0, 1.0, -1.0)


def _bits(number: int, count: int) -> Tensor:
    return torch.tensor([number >> i & 1 for i in range(count)])


def tiny_model(seed: int = 0) -> Transformer:
    """Return the model; ``seed`` decides the mixing matrices and the random parts."""
    random = torch.Generator().manual_seed(seed)
    codes = byte_codes()
    embedding = torch.zeros(SHAPE.vocabulary, SHAPE.hidden)
    embedding[:, :CODE] = codes
    embedding[:, _BIAS] = 4.0
    scratch = torch.randn(SHAPE.vocabulary, SHAPE.hidden - _SCRATCH, generator=random)
    embedding[:, _SCRATCH:] = (
        2.0 * scratch / scratch.norm(dim=1, keepdim=True)
    )  # one length: RMSNorm is the same for all
    frequencies = 10000.0 ** (-torch.arange(HEAD // 2) / (HEAD / 2))
    layers = [_random_layer(random) for _ in range(SHAPE.layers)]
    _copy_earlier_bytes(layers[0], frequencies, rms=float(embedding[0].square().mean().sqrt()))
    _copy_what_followed(layers[2], random)
    head = torch.zeros(SHAPE.vocabulary, SHAPE.hidden)
    head[:, _OUT:_SCRATCH] = codes * (_LOGIT / CODE)
    return Transformer(SHAPE, embedding, tuple(layers), torch.ones(SHAPE.hidden), head, frequencies)


def _random_layer(random: torch.Generator) -> LayerWeights:
    """A layer that adds small numbers to the output and scratch dimensions, and to no other."""
    queries, keys = SHAPE.heads * HEAD, SHAPE.kv_heads * HEAD

    def matrix(rows: int, columns: int, size: float) -> Tensor:
        return torch.randn(rows, columns, generator=random).mul_(size / columns**0.5)

    o, down = matrix(SHAPE.hidden, queries, 0.15), matrix(SHAPE.hidden, _MLP, 0.1)
    o[:_OUT], down[:_OUT] = 0, 0
    one = torch.ones(SHAPE.hidden)
    q, k, v = matrix(queries, SHAPE.hidden, 1.5), matrix(keys, SHAPE.hidden, 1.5), matrix(keys, SHAPE.hidden, 1.0)
    return LayerWeights(one, q, k, v, o, one, matrix(_MLP, SHAPE.hidden, 1), matrix(_MLP, SHAPE.hidden, 1), down)


def _copy_earlier_bytes(layer: LayerWeights, frequencies: Tensor, rms: float) -> None:
    """Layer 0: K is the same at every position, Q of head h is K turned back by h + 1 positions, V is the byte's code."""
    key = torch.zeros(HEAD)
    key[:_FREQUENCIES] = (_POSITION_SCORE * HEAD**0.5 / _FREQUENCIES) ** 0.5
    bias = 4.0 / rms  # the constant dimension after RMSNorm
    layer.q.zero_()
    layer.k.zero_()
    layer.v[:, :_OUT] = 0
    layer.o[:_OUT] = 0
    for head in range(SHAPE.heads):
        angle = -(head + 1.0) * frequencies
        layer.q[head * HEAD : (head + 1) * HEAD, _BIAS] = rotate(key, angle.cos(), angle.sin()) / bias
        slot = torch.arange(CODE) + CODE * (head + 1)
        layer.o[slot, torch.arange(CODE) + head * HEAD] = 1.0
    for head in range(SHAPE.kv_heads):
        layer.k[head * HEAD : (head + 1) * HEAD, _BIAS] = key / bias
        code = torch.arange(CODE)
        layer.v[head * HEAD : head * HEAD + CODE] = 0
        layer.v[head * HEAD + code, code] = rms


def _copy_what_followed(layer: LayerWeights, random: torch.Generator) -> None:
    """Layer 2. A random rotation of Q and K, and of V, spreads the codes, so that every byte of a cell counts."""
    rms = (
        (CODE * (SEEN + 2) + 20.0) / SHAPE.hidden
    ) ** 0.5  # about: nine codes in slots, one to come, the constant parts
    for tensor in (layer.q, layer.k, layer.v):
        tensor.zero_()
    layer.o[_OUT:_SCRATCH] = 0
    groups = SHAPE.heads // SHAPE.kv_heads
    for kv_head in range(SHAPE.kv_heads):
        mix = torch.linalg.qr(torch.randn(HEAD, HEAD, generator=random))[0]
        spread = torch.linalg.qr(torch.randn(HEAD, CODE, generator=random))[0]
        rows = slice(kv_head * HEAD, (kv_head + 1) * HEAD)
        layer.k[rows, CODE : CODE + HEAD] = mix * rms
        layer.v[rows, :CODE] = spread * rms
        for head in range(kv_head * groups, (kv_head + 1) * groups):
            columns = slice(head * HEAD, (head + 1) * HEAD)
            layer.q[columns, :HEAD] = mix * (rms * _MATCH_SCORE * HEAD**0.5 / CODE)
            layer.o[_OUT:_SCRATCH, columns] = spread.T / SHAPE.heads
