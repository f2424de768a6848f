"""Bytes of the recurrent state that a linear-attention layer keeps per block."""

from __future__ import annotations

from collections.abc import Callable

_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}


def state_bytes(needed: Callable[[str], int], dtype: str) -> int:
    """Return convolution plus recurrent state of one gated-delta-net layer, in bytes.

    ``needed`` returns a field of the model's config or raises. Shapes as in vLLM's
    ``MambaStateShapeCalculator.gated_delta_net_state_shape``: [kernel - 1, 2·key + value] and [value heads, value, key].
    """
    key_heads, value_heads = needed("linear_num_key_heads"), needed("linear_num_value_heads")
    key_size, value_size = needed("linear_key_head_dim"), needed("linear_value_head_dim")
    channels = 2 * key_heads * key_size + value_heads * value_size
    convolution = (needed("linear_conv_kernel_dim") - 1) * channels
    return (convolution + value_heads * value_size * key_size) * _BYTES[dtype]
