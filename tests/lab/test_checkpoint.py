"""A Llama checkpoint gives the logits that transformers gives; another architecture is refused."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from kvverify.errors import UsageError

TOKENS = list(range(3, 40))


class NoTokenizer:
    eos_token_id = 2


def load(monkeypatch: pytest.MonkeyPatch, network: Any) -> Any:
    from kvverify.lab import checkpoint

    monkeypatch.setattr(checkpoint, "load_network", lambda _: ("tiny", network.eval(), NoTokenizer()))
    return checkpoint.load_checkpoint("tiny")[1]


def sizes(**more: Any) -> dict[str, Any]:
    common = {"num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    return {**common, "num_key_value_heads": 2, "vocab_size": 50, "max_position_embeddings": 128, **more}


def test_logits_are_those_of_transformers(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    network = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes(rope_theta=500.0)))
    model = load(monkeypatch, network)

    def attend(_layer: int, q: Any, k: Any, v: Any) -> Any:
        k, v = (x.repeat_interleave(2, dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / 4.0
        scores = scores.masked_fill(~torch.ones(len(TOKENS), len(TOKENS), dtype=torch.bool).tril(), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)

    with torch.inference_mode():
        expected = network(torch.tensor([TOKENS])).logits[0, -1]
        torch.testing.assert_close(model.forward(TOKENS, 0, attend), expected, atol=1e-5, rtol=1e-4)


def test_another_architecture_is_refused(torch: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = pytest.importorskip("transformers")
    network = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**sizes()))
    with pytest.raises(UsageError, match=r"--model tiny: not a plain Llama \(model.layers.0.self_attn.k_proj.bias"):
        load(monkeypatch, network)
