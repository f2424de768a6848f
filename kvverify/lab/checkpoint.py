"""A Llama checkpoint from the disk, by transformers' configuration, weights and tokenizer."""

from __future__ import annotations

from typing import Any

from kvverify.conformance.real_kv import load_network
from kvverify.errors import UsageError
from kvverify.lab.model import LayerWeights, Shape, Transformer
from kvverify.lab.tokens import FromTransformers

_LAYER = {
    "input_norm": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "mlp_norm": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "up": "mlp.up_proj",
    "down": "mlp.down_proj",
}


def load_checkpoint(model: str) -> tuple[str, Transformer, FromTransformers]:
    """Return name, model and tokenizer of a preset or folder.

    Raises:
        UsageError: nothing of that name, or not a Llama.
        EnvironmentProblem: transformers is missing.
    """
    title, network, tokenizer = load_network(model)
    weights: dict[str, Any] = dict(network.state_dict())
    config, rotary = network.config, network.model.rotary_emb
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    count = config.num_hidden_layers
    shape = Shape(
        layers=count,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_size=head_size,
        vocabulary=len(weights["model.embed_tokens.weight"]),
        context=config.max_position_embeddings,
        rope=(True,) * count,
        epsilon=config.rms_norm_eps,
    )
    taken = {f"model.layers.{i}.{name}.weight" for i in range(count) for name in _LAYER.values()}
    taken |= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
    if taken != set(weights) or rotary.attention_scaling != 1.0:
        odd = sorted(taken ^ set(weights))[:2] or ["scaled attention"]
        raise UsageError(f"--model {model}: not a plain Llama ({', '.join(odd)}); the lab knows no other architecture")
    layers = tuple(
        LayerWeights(**{field: weights[f"model.layers.{i}.{name}.weight"] for field, name in _LAYER.items()})
        for i in range(count)
    )
    transformer = Transformer(
        shape,
        weights["model.embed_tokens.weight"],
        layers,
        weights["model.norm.weight"],
        weights["lm_head.weight"],
        rotary.inv_freq.float(),
    )
    return title, transformer, FromTransformers(tokenizer)
