"""What decides the score of an arm, in one flat level: two arms may be compared where they differ in the declared variable alone.

Left out is what follows from the KV format and decides no score: block sizes, capacities, byte layouts.
"""

from __future__ import annotations

from typing import Any

from kvverify.accuracy.options import AccuracyOptions
from kvverify.accuracy.suite import Suite
from kvverify.accuracy.template import Template
from kvverify.live.engine import EngineInfo

REPLAY = "replay"
_SETTINGS = (  # effective settings of a server that decide its sums
    "attention_backend",
    "data_parallel_size",
    "device",
    "dtype",
    "enable_prefix_caching",
    "enforce_eager",
    "max_num_batched_tokens",
    "max_num_seqs",
    "pipeline_parallel_size",
    "sliding_window",
    "tensor_parallel_size",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_BATCH_INVARIANT",
)


def of_server(info: EngineInfo, model: str) -> dict[str, Any]:
    """Return what of a server decides scores; all endpoints of a run must have the same."""
    found = {"model": model, "engine": info.engine, "build": info.build, "kv_cache_dtype": _format(info)}
    return found | {name: info.options[name] for name in _SETTINGS if name in info.options}


def of_arm(
    server: dict[str, Any],
    suite: Suite,
    options: AccuracyOptions,
    *,
    seed: int,
    template: Template,
    tokenizer: str,
    salted: bool,
    facts: dict[str, str],
) -> dict[str, Any]:
    """Return the identity of an arm; ``tokenizer`` and ``facts`` identify how samples were sized, and from what they were made."""
    return {
        **server,
        "suite": suite.name,
        "samples_seed": seed,
        "tokenizer": tokenizer,
        "template": template.identity,
        "answer_prefix": "dropped" if template.chat else "sent",
        "temperature": suite.temperature,
        "sampling_seed": suite.seed,
        "concurrency": options.concurrency,
        "prefixes": "own" if salted else "shared",
        "tier": REPLAY if options.replay else options.tier,
        "control": options.control,
        **facts,
        **{f"declared {name}": value for name, value in options.declare.items()},
    }


def _format(info: EngineInfo) -> str:
    """Return the KV dtype with the layers that are left in the model's: those belong to the format."""
    dtype = str(info.kv_cache_dtype or "not told")
    skipped = info.options.get("kv_cache_dtype_skip_layers")
    if isinstance(skipped, str):
        skipped = [word.strip(" '\"") for word in skipped.strip("[]()").split(",")]
    layers = [str(layer) for layer in skipped or () if str(layer)]
    return f"{dtype}, unpacked layers {' '.join(layers)}" if layers else dtype
