"""Adapter over vLLM's TurboQuant store and dequantisation kernels: numbers to slots and back, alone, without an engine.

Without a GPU both run under Triton's interpreter, whose fp8 casts are not exact: what is held against them there leaves the
fp8 bytes out (:attr:`VllmTurboQuant.exact_fp8`).
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from kvverify.errors import EnvironmentProblem
from kvverify.kernels.provenance import file_digests, library_version
from kvverify.kernels.vllm_library import vllm_version
from kvverify.kernels.vllm_triton import switch_triton_on
from kvverify.layout.formats import slot_format

STORE_MODULE = "vllm.v1.attention.ops.triton_turboquant_store"
DEQUANT_MODULE = "vllm.v1.attention.ops.triton_turboquant_decode"
BLOCK_TOKENS = 16
CANARY = 0xA5


@dataclass(frozen=True, slots=True)
class TurboQuantPreset:
    """What the kernels are told of a preset (vLLM 0.32 ``quantization/turboquant/config.py``); 8 key bits are fp8 keys."""

    name: str
    key_bits: int
    value_bits: int
    norm_correction: bool

    @property
    def key_fp8(self) -> bool:
        """Keys are fp8 and not rotated."""
        return self.key_bits == 8

    @property
    def index_bits(self) -> int:
        """Bits of a key's centroid index, 0 for fp8 keys."""
        return 0 if self.key_fp8 else self.key_bits

    def sizes(self, head_size: int) -> dict[str, int]:
        """Bytes of each part of a slot."""
        return {part.name: part.length for part in slot_format(self.name).parts(1, head_size)}

    def key_bytes(self, head_size: int) -> int:
        """Bytes of the key's part of a slot: fp8 elements, or packed indices and a fp16 norm."""
        sizes = self.sizes(head_size)
        return sizes["k"] + sizes.get("k_norm", 0)


@dataclass(frozen=True, slots=True)
class StoredCache:
    """A cache after a store: ``cells`` uint8 [tokens, heads, slot] of the named slots, ``rest`` every other byte."""

    cells: torch.Tensor
    rest: torch.Tensor


class VllmTurboQuant:
    """Both kernels on one device. The view they get is ``[block, token, head, slot byte]``, as vLLM's backend passes it.

    Raises:
        EnvironmentProblem: vLLM or Triton is missing, or the kernels are not where they are known to be.
    """

    name = "vllm"

    def __init__(self, device: str = "cpu") -> None:
        triton, self.interpreted = switch_triton_on()
        if (device == "cpu") is not self.interpreted:
            raise EnvironmentProblem(
                f"vllm: tensors on {device} need TRITON_INTERPRET={'1' if device == 'cpu' else '0'} before Triton is imported"
            )
        self.device = torch.device(device)
        self._next_power_of_2 = triton.next_power_of_2
        self._store_module = _module(STORE_MODULE, "triton_turboquant_store")
        self._dequant_module = _module(DEQUANT_MODULE, "_tq_full_dequant_kv", "_use_fp8_e4b15")

    @property
    def exact_fp8(self) -> bool:
        """Do fp8 casts round as hardware and torch do? Those of Triton's interpreter do not."""
        return not self.interpreted

    @property
    def fp8_is_e4m3(self) -> bool:
        """Does this device keep fp8 keys as E4M3? Below compute capability 8.9 vLLM takes E4B15: other bytes."""
        return not self._dequant_module._use_fp8_e4b15(self.device.index or 0)

    def store(
        self,
        preset: TurboQuantPreset,
        keys: torch.Tensor,
        values: torch.Tensor,
        slots: list[int],
        *,
        rotation: torch.Tensor,
        midpoints: torch.Tensor,
    ) -> StoredCache:
        """Store K and V [tokens, heads, head_size] (fp16 or bf16) into slot numbers ``slots`` of a cache full of a canary.

        A negative slot is skipped by the kernel; its cell comes back as canary.
        """
        tokens, heads, head_size = keys.shape
        slot_bytes = sum(preset.sizes(head_size).values())
        blocks = -(-(max(slots) + 1) // BLOCK_TOKENS)
        cache = torch.full((blocks, BLOCK_TOKENS, heads, slot_bytes), CANARY, dtype=torch.uint8, device=self.device)
        self.launch_store(
            preset,
            (keys.to(self.device), values.to(self.device)),
            cache,
            torch.tensor(slots, dtype=torch.int32, device=self.device),
            (rotation.to(self.device), midpoints.to(self.device)),
        )
        flat = cache.cpu().reshape(-1, heads, slot_bytes)
        named = torch.tensor([slot for slot in slots if slot >= 0])
        others = torch.ones(len(flat), dtype=torch.bool)
        others[named] = False
        cells = torch.full((tokens, heads, slot_bytes), CANARY, dtype=torch.uint8)
        cells[torch.tensor(slots) >= 0] = flat[named]
        return StoredCache(cells, flat[others])

    def dequantise(
        self, preset: TurboQuantPreset, slots: torch.Tensor, head_size: int, centroids: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return K and V of uint8 slots [tokens, heads, slot], fp16 [tokens, heads, head_size]; rotated keys stay rotated.

        Blocks lie in reverse order behind the block table, so that a kernel that ignores it cannot pass.
        """
        tokens, heads, slot_bytes = slots.shape
        blocks = -(-tokens // BLOCK_TOKENS)
        cache = torch.zeros((blocks * BLOCK_TOKENS, heads, slot_bytes), dtype=torch.uint8)
        cache[:tokens] = slots
        cache = cache.reshape(blocks, BLOCK_TOKENS, heads, slot_bytes).flip(0).contiguous().to(self.device)
        table = torch.arange(blocks - 1, -1, -1, dtype=torch.int32, device=self.device)[None]
        k = torch.full((1, heads, tokens, head_size), float("nan"), dtype=torch.float16, device=self.device)
        v = torch.full_like(k, float("nan"))
        self.launch_dequant(preset, cache, table, centroids.to(self.device), (k, v))
        return k[0].transpose(0, 1).cpu(), v[0].transpose(0, 1).cpu()

    def launch_store(
        self,
        preset: TurboQuantPreset,
        kv: tuple[torch.Tensor, torch.Tensor],
        cache: torch.Tensor,
        slots: torch.Tensor,
        tables: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Enqueue the store of K and V [tokens, heads, head_size] with rotation and midpoints, all on the device."""
        self._store_module.triton_turboquant_store(
            *kv,
            cache,
            slots,
            *tables,
            mse_bits=preset.index_bits,
            key_packed_size=preset.key_bytes(kv[0].shape[-1]),
            value_quant_bits=preset.value_bits,
            key_fp8=preset.key_fp8,
        )

    def launch_dequant(
        self,
        preset: TurboQuantPreset,
        cache: torch.Tensor,
        table: torch.Tensor,
        centroids: torch.Tensor,
        out: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        """Enqueue the dequantisation of all tokens behind the block table into fp16 K and V [1, heads, tokens, head_size]."""
        k, v = out
        _, heads, tokens, head_size = k.shape
        sizes = preset.sizes(head_size)
        self._dequant_module._tq_full_dequant_kv[(tokens, heads)](
            cache,
            table,
            centroids,
            k,
            v,
            *k.stride()[:3],
            *v.stride()[:3],
            *cache.stride()[:3],
            table.stride(0),
            HEAD_DIM=head_size,
            BLOCK_SIZE=BLOCK_TOKENS,
            NUM_KV_HEADS=heads,
            MSE_BYTES=0 if preset.key_fp8 else sizes["k"],
            KPS=preset.key_bytes(head_size),
            VQB=preset.value_bits,
            VAL_DATA_BYTES=sizes["v"],
            MSE_BITS=preset.index_bits,
            KEY_FP8=int(preset.key_fp8),
            BLOCK_D=self._next_power_of_2(head_size),
            NORM_CORRECTION=int(preset.norm_correction),
            FP8_E4B15=0 if self.fp8_is_e4m3 else 1,
            num_warps=4,
        )

    def provenance(self) -> dict[str, Any]:
        """Versions of vLLM and Triton, digests of both kernel modules, and what ran them."""
        how = "Triton interpreter on the CPU" if self.interpreted else f"compiled by Triton for {self.device}"
        files = [self._store_module.__file__, self._dequant_module.__file__]
        if self.interpreted:
            files.append(importlib.import_module("triton.runtime.interpreter").__file__)
        return {
            "library": "vllm",
            "version": vllm_version(),
            "triton": library_version("triton"),
            "device": str(self.device),
            "path": f"triton_turboquant_store, _tq_full_dequant_kv, {how}",
            "files": file_digests(files),
        }


def _module(name: str, *wanted: str) -> Any:
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise EnvironmentProblem(f"vLLM {vllm_version()} has no {name}: {error}; known is 0.32") from error
    missing = [attribute for attribute in wanted if not hasattr(module, attribute)]
    if missing:
        raise EnvironmentProblem(f"vLLM {vllm_version()}: {name} has no {', '.join(missing)}; known is 0.32")
    return module
