"""A Llama-like transformer in plain torch, float32, one sequence at a time; attention is left to whoever holds the KV cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

# layer, q [tokens, heads, head_size], k and v [tokens, kv_heads, head_size], after RoPE -> [tokens, heads * head_size]
Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. ``rope`` says for each layer whether positions are rotated into Q and K."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope: tuple[bool, ...]
    epsilon: float = 1e-5

    def config(self) -> dict[str, object]:
        """Return the fields of a Hugging Face config from which :mod:`kvverify.layout` computes the KV cache."""
        return {
            "num_hidden_layers": self.layers,
            "hidden_size": self.hidden,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_size,
            "torch_dtype": "bfloat16",
        }


@dataclass(frozen=True)
class LayerWeights:
    """One layer; matrices are [out, in]."""

    input_norm: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    o: Tensor
    mlp_norm: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@dataclass(frozen=True)
class Transformer:
    """Weights and forward pass. ``frequencies`` are RoPE's angles for one position, float32 [head_size / 2]."""

    shape: Shape
    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    frequencies: Tensor

    def forward(self, tokens: Sequence[int], start: int, attend: Attend, shift: Tensor | None = None) -> Tensor:
        """Return the logits, float32 [vocabulary], that follow ``tokens``, the first of which is at position ``start``.

        ``shift`` [hidden] is added to the embeddings: the adapter.
        """
        shape = self.shape
        x = self.embedding[torch.tensor(tokens)]
        if shift is not None:
            x = x + shift
        angles = torch.arange(start, start + len(tokens), dtype=torch.float32)[:, None] * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        for index, layer in enumerate(self.layers):
            h = self._normed(x, layer.input_norm)
            q = linear(h, layer.q).view(-1, shape.heads, shape.head_size)
            k = linear(h, layer.k).view(-1, shape.kv_heads, shape.head_size)
            v = linear(h, layer.v).view(-1, shape.kv_heads, shape.head_size)
            if shape.rope[index]:
                q, k = rotate(q, cos, sin), rotate(k, cos, sin)
            x = x + linear(attend(index, q, k, v), layer.o)
            h = self._normed(x, layer.mlp_norm)
            x = x + linear(silu(linear(h, layer.gate)) * linear(h, layer.up), layer.down)
        return linear(self._normed(x[-1], self.norm), self.head)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.shape.epsilon) * weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate dimension d with dimension d + head_size / 2, as Llama does; ``cos`` and ``sin`` are [tokens, 1, head_size / 2]."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
