"""Putting a lab together and letting it serve, in this process or in a thread of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kvverify.errors import UsageError
from kvverify.faults.catalogue import plantable_named
from kvverify.kernels.contract import CopyKernel
from kvverify.kernels.torch_reference import TorchReference
from kvverify.lab.api import Api, Served
from kvverify.lab.cache import TieredCache
from kvverify.lab.checkpoint import load_checkpoint
from kvverify.lab.engine import Engine
from kvverify.lab.model import Transformer
from kvverify.lab.pages import Pages
from kvverify.lab.plants import Plant, plant_named
from kvverify.lab.server import HttpServer
from kvverify.lab.tiny import NAME, tiny_model
from kvverify.lab.tokens import Bytes, Tokenizer
from kvverify.layout.models import model_from_config
from kvverify.layout.place import place
from kvverify.layout.placement import Layout
from kvverify.layout.rules import recipe_for

MODEL_SEED = 0


@dataclass(frozen=True)
class Options:
    """What ``kvverify lab`` takes. ``model`` None is the model that is made here; ``seed`` decides its weights."""

    model: str | None = None
    kv_cache_dtype: str = "turboquant_4bit_nc"
    hbm_blocks: int = 256
    dram_gib: float = 0.25
    plant: str | None = None
    seed: int = MODEL_SEED


def assemble(options: Options, loaded: tuple[str, Transformer, Tokenizer] | None = None) -> Served:
    """Return a server's parts; ``loaded`` is the model with name and tokenizer, where it is in memory already.

    Raises:
        UsageError: options that do not go together.
        EnvironmentProblem: a library for ``--model`` is missing.
    """
    plant = plant_named(options.plant)
    name, model, tokenizer = loaded = loaded or _model(options)
    recipe = recipe_for(
        model_from_config(model.shape.config(), name, f"model {name}"),
        options.kv_cache_dtype,
        num_blocks=options.hbm_blocks,
    )
    layout = place(recipe)
    slots = int(options.dram_gib * (1 << 30)) // layout.host_slot_bytes()
    if slots < 1:
        raise UsageError(
            f"--dram-gib {options.dram_gib}: a block takes {layout.host_slot_bytes()} bytes; give room for one"
        )
    pages = Pages(layout, model.shape.head_size, slots, _kernel(plant, layout))
    engine = Engine(model, TieredCache(pages, slots, plant), plant)
    cache_config = {
        "block_size": layout.block_tokens,
        "cache_dtype": options.kv_cache_dtype,
        "num_gpu_blocks": layout.num_blocks,
        "kv_cache_size_tokens": layout.num_blocks * layout.block_tokens,
        "enable_prefix_caching": True,
        "prefix_caching_hash_algo": "sha256",
        "kv_cache_dtype_skip_layers": [str(layer.index) for layer in layout.layers if layer.element != "uint8"],
    }
    info = _server_info(name, model, layout, slots, cache_config)
    return Served(
        name,
        engine,
        tokenizer,
        plant,
        cache_config,
        info,
        lambda other: assemble(replace(options, plant=other), loaded),
    )


def _model(options: Options) -> tuple[str, Transformer, Tokenizer]:
    if options.model in (None, NAME):
        return NAME, tiny_model(options.seed), Bytes()
    return load_checkpoint(str(options.model))


def _kernel(plant: Plant, layout: Layout) -> CopyKernel:
    if not plant.kernel:
        return TorchReference()
    fault = plantable_named(plant.kernel)
    kernel = fault.plant(TorchReference())
    if reason := fault.shows_on({"blocks_per_slot": 1, "device": "cpu"}, layout):
        raise UsageError(f"--plant {plant.id}: this KV cache cannot show it: {reason}; take a packed --kv-cache-dtype")
    return kernel


def _server_info(
    name: str, model: Transformer, layout: Layout, slots: int, cache_config: dict[str, object]
) -> dict[str, object]:
    """What ``/server_info`` answers: vLLM's names, and under ``kvverify_lab`` what is the lab's own."""
    return {
        "vllm_config": {
            "model_config": {"model": name, "dtype": "torch.bfloat16", "hf_config": json.dumps(model.shape.config())},
            "cache_config": cache_config,
            "parallel_config": {"tensor_parallel_size": 1, "world_size": 1},
            "scheduler_config": {
                "max_num_batched_tokens": model.shape.context,
                "max_num_seqs": 1,
            },  # a prompt in one piece
            "kv_transfer_config": {
                "kv_connector": "OffloadingConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"cpu_bytes_to_use": slots * layout.host_slot_bytes()},
            },
        },
        "vllm_env": {},
        "kvverify_lab": {
            "is": "a reference server to try kvverify on, no serving engine",
            "block_tokens": layout.block_tokens,
            "capacity_tokens": {"hbm": layout.num_blocks * layout.block_tokens, "dram": slots * layout.block_tokens},
            "kv_layers": [[lay.kv_format, model.shape.kv_heads, model.shape.head_size] for lay in layout.layers],
            "block_bytes": sum(lay.page_bytes for lay in layout.layers),
        },
    }


async def serve(served: Served, host: str, port: int) -> HttpServer:
    """Start to listen; the server answers while the loop runs."""
    server = HttpServer(Api(served).routes())
    await server.listen(host, port)
    return server


@contextlib.contextmanager
def running(options: Options | None = None) -> Iterator[str]:
    """Serve from a thread of this process, on a free port, and give its URL: for tests and the demo."""
    served = assemble(options or Options())
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="lab", daemon=True)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(serve(served, "127.0.0.1", 0), loop).result()
    try:
        yield server.url
    finally:
        asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
