"""KV tensors as vLLM's workers hold them, small and on the CPU, and a worker to put them in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from kvverify.inserver.worker_extension import KvverifyWorker

BLOCKS = 7


def _random(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    count = torch.Size(shape).numel() * torch.empty((), dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def blocks_first(layer: int) -> torch.Tensor:
    """[B, H, N, 2 D] bf16, contiguous: vLLM 0.26 and 0.32."""
    return _random((BLOCKS, 2, 4, 16), torch.bfloat16, layer)


def tokens_before_heads(layer: int) -> torch.Tensor:
    """The same shape with NHD strides."""
    return _random((BLOCKS, 4, 2, 16), torch.bfloat16, layer).permute(0, 2, 1, 3)


def keys_and_values_apart(layer: int) -> torch.Tensor:
    """[2, B, N, H, D]: backends that keep K and V apart."""
    return _random((2, BLOCKS, 4, 2, 8), torch.float16, layer)


def apart_but_strided_by_block(layer: int) -> torch.Tensor:
    """[2, B, ...] whose blocks lie outermost: vLLM 0.26 beside state-space layers."""
    return _random((BLOCKS, 2, 4, 2, 8), torch.float32, layer).transpose(0, 1)


def kernel_blocks(layer: int) -> torch.Tensor:
    """Each block is made of 2 kernel blocks."""
    return _random((2 * BLOCKS, 2, 2, 16), torch.bfloat16, layer)


def packed_odd(layer: int) -> torch.Tensor:
    """Packed 4-bit rows of 67 bytes."""
    return _random((BLOCKS, 1, 3, 67), torch.uint8, layer)


def fp8(layer: int) -> torch.Tensor:
    """One-byte floats."""
    return _random((BLOCKS, 2, 4, 16), torch.float8_e4m3fn, layer)


LAYOUTS = [
    blocks_first,
    tokens_before_heads,
    keys_and_values_apart,
    apart_but_strided_by_block,
    kernel_blocks,
    packed_odd,
    fp8,
]


def cross_layer(layers: int) -> list[torch.Tensor]:
    """Views of one allocation in which a block's layers lie side by side: vLLM 0.26 with a connector that prefers it."""
    whole = _random((BLOCKS, layers, 2, 4, 16), torch.bfloat16, 99)
    return [whole[:, layer] for layer in range(layers)]


class Worker(KvverifyWorker):
    """What vLLM makes: a worker into which the extension was mixed."""

    def __init__(self, caches: list[Any], blocks: int = BLOCKS) -> None:
        self.rank = 0
        self.model_runner = SimpleNamespace(kv_caches=caches, kv_cache_config=SimpleNamespace(num_blocks=blocks))
        self.cache_config = SimpleNamespace(num_gpu_blocks=blocks)
