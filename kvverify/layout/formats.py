"""The slot formats: which bytes one (token, KV head) cell holds and how the cells of a row are arranged.

Sizes and byte orders follow vLLM 0.32 (TurboQuant: ``quantization/turboquant/config.py``; UltraQuant:
``attention/ops/ultraquant/format.py``; DeepSeek records: ``attention/backends/mla/flashmla_sparse.py``; inline scales:
``attention/backends/triton_attn.py``; nvfp4: ``attention/backends/flashinfer.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass

from kvverify.errors import LayoutError, nearest
from kvverify.layout.placement import Role


class Arrangement(enum.StrEnum):
    """How the parts of all cells of one row lie in memory; N tokens, H heads."""

    CELLS = "cells"  # every cell holds its parts one after another
    SOA = "soa"  # [N, H, data parts], then [H, scale parts, N]
    ROWS_THEN_SCALES = "rows_then_scales"  # [N, data parts], then [N, scale parts]; one head
    PLANES = "planes"  # [K data][K scales][V data][V scales], each over all cells; 2·H head slots
    STATE = "state"  # one state a block, whatever the number of tokens


@dataclass(frozen=True, slots=True)
class Part:
    """``length`` bytes of a cell with one meaning."""

    name: str
    role: Role
    length: int


Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class SlotFormat:
    """One slot format.

    ``element`` is the torch dtype name of the registered view. ``parts_of`` gives the parts of one cell for a head size, in
    byte order. ``fixed_head_size`` and ``one_head`` hold for records that exist in one geometry only, ``power_of_two`` for
    formats with a Hadamard rotation, ``multiple_of`` for group-wise scales.
    """

    name: str
    tag: str
    parts_of: Callable[[int], Parts]
    element: str = "uint8"
    element_bytes: int = 1
    arrangement: Arrangement = Arrangement.CELLS
    splittable: bool = False
    one_head: bool = False
    fixed_head_size: int | None = None
    power_of_two: bool = False
    multiple_of: int = 1

    def parts(self, heads: int, head_size: int) -> Parts:
        """Return the parts of one (token, head) cell, in byte order.

        Raises:
            LayoutError: no engine stores this geometry in this format; the message says why.
        """
        self._refuse_impossible(heads, head_size)
        return self.parts_of(head_size)

    def cell_bytes(self, heads: int, head_size: int) -> int:
        """Return the bytes of one (token, KV head), K and V together, cell padding included."""
        return sum(part.length for part in self.parts(heads, head_size))

    def _refuse_impossible(self, heads: int, head_size: int) -> None:
        where = f"format {self.name}: head size {head_size}"
        if head_size < 1 or heads < 1:
            raise LayoutError(f"format {self.name}: got {heads} heads of size {head_size}; expected at least 1 of each")
        if self.one_head and heads != 1:
            raise LayoutError(f"format {self.name}: got {heads} KV heads; it stores one record per token, use heads=1")
        if self.fixed_head_size is not None and head_size != self.fixed_head_size:
            raise LayoutError(f"{where}; its record exists for {self.fixed_head_size} only, use another KV dtype")
        if self.power_of_two and head_size & (head_size - 1):
            raise LayoutError(
                f"{where} is not supported by any engine; keys are rotated by a Hadamard matrix, which needs a power of two "
                f"(64, 128, 256): keep such layers in bf16 or fp8"
            )
        if head_size % self.multiple_of:
            raise LayoutError(
                f"{where} is not a multiple of {self.multiple_of}, the number of elements that share a byte or a scale; "
                f"use another KV dtype"
            )


def _data(name: str, length: int) -> Part:
    return Part(name, Role.DATA, length)


def _scale(name: str, length: int) -> Part:
    return Part(name, Role.SCALE, length)


def _plain(element_bytes: int) -> Callable[[int], Parts]:
    return lambda d: (_data("k", d * element_bytes), _data("v", d * element_bytes))


def _inline_scales(bits: int) -> Callable[[int], Parts]:
    def parts(d: int) -> Parts:
        size = d * bits // 8
        return (_data("k", size), _scale("k_scale", 4), _data("v", size), _scale("v_scale", 4))

    return parts


def _turboquant(key_bits: int, value_bits: int) -> Callable[[int], Parts]:
    """Return the parts of a TurboQuant slot; 8 key bits are fp8 keys, which carry no norm."""

    def parts(d: int) -> Parts:
        key = [_data("k", -(-d * key_bits // 8))]
        if key_bits != 8:
            key.append(_scale("k_norm", 2))
        value = [_data("v", -(-d * value_bits // 8)), _scale("v_scale", 2), _scale("v_min", 2)]
        size = sum(part.length for part in key + value)
        pad = [Part("cell_padding", Role.PADDING, 1)] if size % 2 else []  # a slot is rounded up to even bytes
        return (*key, *value, *pad)

    return parts


def _ultraquant(d: int) -> Parts:
    return (_data("k", d // 2), _scale("k_scale", d // 32), _data("v", d // 2), _scale("v_scale", d // 32))


def _nvfp4(d: int) -> Parts:
    return (_data("k", d // 2), _scale("k_scale", d // 16), _data("v", d // 2), _scale("v_scale", d // 16))


def _record(*parts: Part) -> Callable[[int], Parts]:
    return lambda _: parts


def _mla(element_bytes: int) -> Callable[[int], Parts]:
    return _record(_data("latent", 512 * element_bytes), _data("rope", 64 * element_bytes))


_TURBOQUANT = {  # preset: (tag, key bits, value bits)
    "turboquant_k8v4": ("tqk8v4", 8, 4),
    "turboquant_4bit_nc": ("tq4", 4, 4),
    "turboquant_k3v4_nc": ("tqk3v4", 3, 4),
    "turboquant_3bit_nc": ("tq3", 3, 3),
}


def _turboquant_formats() -> list[SlotFormat]:
    formats = []
    for name, (tag, key_bits, value_bits) in _TURBOQUANT.items():
        parts = _turboquant(key_bits, value_bits)
        rotated = key_bits != 8
        formats.append(SlotFormat(name, tag, parts, power_of_two=rotated))
        soa = SlotFormat(
            f"{name}_soa", f"{tag}soa", parts, arrangement=Arrangement.SOA, power_of_two=rotated, multiple_of=4
        )
        formats.append(soa)
    return formats


FORMATS: dict[str, SlotFormat] = {
    fmt.name: fmt
    for fmt in (
        SlotFormat("bf16", "bf16", _plain(2), "bfloat16", 2, splittable=True),
        SlotFormat("fp16", "fp16", _plain(2), "float16", 2, splittable=True),
        SlotFormat("fp32", "fp32", _plain(4), "float32", 4, splittable=True),
        SlotFormat("fp8_e4m3", "fp8", _plain(1), splittable=True),
        SlotFormat("fp8_e5m2", "fp8e5", _plain(1), splittable=True),
        SlotFormat(
            "fp8_per_token_head", "fp8pth", _inline_scales(8), multiple_of=4
        ),  # scales are fp32 views of the cell
        SlotFormat("int8_per_token_head", "int8pth", _inline_scales(8), multiple_of=4),
        SlotFormat("int4_per_token_head", "int4pth", _inline_scales(4), multiple_of=8),
        *_turboquant_formats(),
        SlotFormat("ultraquant_4bit", "uq4", _ultraquant, power_of_two=True, multiple_of=32),
        SlotFormat("nvfp4", "nvfp4", _nvfp4, arrangement=Arrangement.PLANES, multiple_of=16),
        SlotFormat("mla_bf16", "mla", _mla(2), "bfloat16", 2, one_head=True, fixed_head_size=576),
        SlotFormat("mla_fp8", "mla8", _mla(1), one_head=True, fixed_head_size=576),
        SlotFormat(
            "fp8_ds_mla",
            "mla656",
            _record(_data("latent", 512), _scale("latent_scale", 16), _data("rope", 128)),
            one_head=True,
            fixed_head_size=576,
        ),
        SlotFormat(
            "nvfp4_ds_mla",
            "mla352",
            _record(_data("latent", 256), _data("rope", 64), _scale("latent_scale", 32)),
            one_head=True,
            fixed_head_size=576,
        ),
        SlotFormat(
            "fp8_ds_mla_584",  # the eighth scale byte is written too, as zero
            "mla584",
            _record(_data("latent", 448), _data("rope", 128), _scale("latent_scale", 8)),
            arrangement=Arrangement.ROWS_THEN_SCALES,
            one_head=True,
            fixed_head_size=512,
        ),
        SlotFormat(
            "fp8_ds_mla_528",
            "mla528",
            _record(_data("latent", 512), _scale("latent_scale", 16)),
            arrangement=Arrangement.ROWS_THEN_SCALES,
            one_head=True,
            fixed_head_size=512,
        ),
        SlotFormat(
            "dsa_indexer",
            "dsa",
            _record(_data("k", 128), _scale("k_scale", 4)),
            arrangement=Arrangement.ROWS_THEN_SCALES,
            one_head=True,
            fixed_head_size=128,
        ),
        SlotFormat(
            "mamba_state", "mamba", lambda d: (_data("state", d),), arrangement=Arrangement.STATE, one_head=True
        ),
    )
}

ALIASES: dict[str, str] = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8": "fp8_e4m3",
    "fp8_inc": "fp8_e4m3",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "nvfp4_4over6": "nvfp4",
}


def format_name(kv_cache_dtype: str, model_dtype: str = "bf16") -> str:
    """Return the slot format that an engine's ``--kv-cache-dtype`` names; ``auto`` is the model's dtype.

    Raises:
        LayoutError: unknown word; the message names the nearest valid ones.
    """
    word = kv_cache_dtype.lower()
    if word == "auto":
        word = model_dtype.lower()
    name = ALIASES.get(word, word)
    if name not in FORMATS:
        raise LayoutError(f"unknown KV dtype {kv_cache_dtype!r}; {nearest(word, [*FORMATS, *ALIASES, 'auto'])}")
    return name


def slot_format(name: str) -> SlotFormat:
    """Return the slot format called ``name`` (or an engine's word for it).

    Raises:
        LayoutError: unknown name.
    """
    return FORMATS[format_name(name)]
