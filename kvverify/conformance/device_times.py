"""How long vLLM's TurboQuant kernels take on a GPU for one layer, measured with events between warmed-up launches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.errors import EnvironmentProblem
from kvverify.kernels.vllm_turboquant import BLOCK_TOKENS, TurboQuantPreset, VllmTurboQuant

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvverify.codecs.interface import Codec
    from kvverify.conformance.bench import Timer
    from kvverify.conformance.real_kv import LayerKv

WARM_UPS, LAUNCHES = 5, 50


def kernel_timer(device: str) -> tuple[Timer, str]:
    """Return the function that measures a layer in seconds, and the device in words.

    Raises:
        EnvironmentProblem: no GPU visible to torch, or vLLM's kernels cannot be loaded.
    """
    if not torch.cuda.is_available():
        raise EnvironmentProblem(f"--device {device}: torch sees no GPU; use --device cpu")
    kernels = VllmTurboQuant(device)

    def measure(codec: Codec, layer: LayerKv) -> tuple[float, float] | None:
        if not isinstance(codec, TurboQuantCodec):
            return None
        return _measure(kernels, codec, layer)

    return (
        measure,
        f"{torch.cuda.get_device_name()}, kernel times of vLLM, the others of the numpy reference on the CPU",
    )


def _measure(kernels: VllmTurboQuant, codec: TurboQuantCodec, layer: LayerKv) -> tuple[float, float]:
    p = codec.preset
    preset = TurboQuantPreset(codec.name, p.key_bits, p.value_bits, p.norm_correction)
    tokens, heads, size = layer.k.shape
    blocks = -(-tokens // BLOCK_TOKENS)
    device = kernels.device
    kv = (torch.from_numpy(layer.k).half().to(device), torch.from_numpy(layer.v).half().to(device))
    cache = torch.zeros((blocks, BLOCK_TOKENS, heads, codec.bytes_per_token_and_head), dtype=torch.uint8, device=device)
    slots = torch.arange(tokens, dtype=torch.int32, device=device)
    tables = (torch.from_numpy(codec.rotation).to(device), torch.from_numpy(codec.midpoints).to(device))
    table = torch.arange(blocks, dtype=torch.int32, device=device)[None]
    centroids = torch.from_numpy(codec.centroids).to(device) if codec.centroids.size else torch.zeros(1, device=device)
    k = torch.empty((1, heads, tokens, size), dtype=torch.float16, device=device)
    out = (k, torch.empty_like(k))
    store = _seconds(lambda: kernels.launch_store(preset, kv, cache, slots, tables))
    return store, _seconds(lambda: kernels.launch_dequant(preset, cache, table, centroids, out))


def _seconds(launch: Callable[[], object]) -> float:
    for _ in range(WARM_UPS):
        launch()
    events: Any = torch.cuda.Event  # untyped in torch
    begin, end = events(enable_timing=True), events(enable_timing=True)
    begin.record()
    for _ in range(LAUNCHES):
        launch()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3 / LAUNCHES
