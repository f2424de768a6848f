"""vLLM's TurboQuant kernels against the reference: the store kernel byte by byte, the dequantisation kernel bit by bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.conformance.check import Comparison
from kvverify.conformance.difference import Difference, compare_numbers, compare_slots, joined
from kvverify.conformance.exact import decoded_keys_allowed, forgiven
from kvverify.conformance.inputs import Rows, rows_that_hurt
from kvverify.kernels.vllm_turboquant import CANARY, StoredCache, TurboQuantPreset

if TYPE_CHECKING:
    from kvverify.kernels.vllm_turboquant import VllmTurboQuant

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
NOTE_FP8 = "fp8 key bytes left out: the interpreter's fp8 cast is not exact; torch's cast stands in for it"


def check_vllm(kernels: VllmTurboQuant, preset: str, head_size: int, seed: int) -> Iterator[Comparison]:
    """Yield the comparisons of one preset at one head size."""
    codec = TurboQuantCodec(preset, head_size, strict=False)
    for name, dtype in DTYPES.items():
        rows = rows_that_hurt(codec, seed, dtype=name, clear=kernels.interpreted)
        yield Comparison("vllm", preset, head_size, f"store {name}", partial(_store, kernels, codec, rows, dtype))
        if codec.preset.key_bits == 8:
            yield Comparison("vllm", preset, head_size, f"fp8 cast {name}", partial(_torch_cast, kernels, codec, rows))
    rows = rows_that_hurt(codec, seed, clear=kernels.interpreted)
    yield Comparison("vllm", preset, head_size, "dequant", partial(_dequant, kernels, codec, rows, seed))


def _spec(codec: TurboQuantCodec) -> TurboQuantPreset:
    p = codec.preset
    return TurboQuantPreset(codec.name, p.key_bits, p.value_bits, p.norm_correction)


def _store(
    kernels: VllmTurboQuant, codec: TurboQuantCodec, rows: Rows, dtype: torch.dtype
) -> tuple[Difference, int, str]:
    keys, values = (torch.from_numpy(x).to(dtype) for x in (rows.k, rows.v))
    slots = scattered(len(rows.names))
    skipped = len(rows.names) - 1  # padding tokens of a batch carry a negative slot
    slots[skipped] = -1
    stored = kernels.store(
        _spec(codec),
        keys,
        values,
        slots,
        rotation=torch.from_numpy(codec.rotation),
        midpoints=torch.from_numpy(codec.midpoints),
    )
    expected = codec.encode(rows.k, rows.v)
    found = stored.cells.numpy()
    expected[skipped] = CANARY
    left_out = ["k"] if codec.preset.key_bits == 8 and not kernels.exact_fp8 else []
    if codec.preset.key_bits == 8 and not kernels.fp8_is_e4m3:
        left_out, note = ["k"], "fp8 key bytes left out: this GPU keeps them as E4B15"
    else:
        note = NOTE_FP8 if left_out else ""
    allowed, near = forgiven(codec, rows.k, rows.v, expected, found)
    lenient = np.array(rows.cancelling) | (not kernels.interpreted)
    lenient[skipped] = False
    expected[lenient] = allowed[lenient]
    cells = compare_slots(codec, expected, found, rows.names, left_out=left_out)
    return joined(cells, untouched(stored)), int(near[lenient].sum()), note


def scattered(tokens: int) -> list[int]:
    """Return slot numbers out of order, with gaps, over several blocks."""
    return (
        [(7 * token + 3) % (2 * tokens + 1) for token in range(tokens)] if (2 * tokens + 1) % 7 else list(range(tokens))
    )


def untouched(stored: StoredCache) -> Difference:
    """Compare every byte that no token was stored to with the canary."""
    rest = stored.rest.numpy()
    wrong = np.argwhere(rest != CANARY)
    if not len(wrong):
        return Difference(rest.size, 0, "")
    slot, head, byte = (int(i) for i in wrong[0])
    headline = f"a slot that no token was stored to: byte {byte} of head {head} was written (slot {slot} of those left)"
    return Difference(rest.size, len(wrong), headline)


def _torch_cast(kernels: VllmTurboQuant, codec: TurboQuantCodec, rows: Rows) -> tuple[Difference, int, str]:
    cast = torch.from_numpy(rows.k).to(kernels.device).to(torch.float8_e4m3fn).view(torch.uint8).cpu().numpy()
    expected = codec.encode(rows.k, rows.v)
    found = expected.copy()
    found[..., codec.slices["k"]] = cast
    others = [part.name for part in codec.fields if part.name != "k"]
    difference = compare_slots(codec, expected, found, rows.names, left_out=others)
    return difference, 0, "torch's cast to E4M3 against the reference"


def _dequant(kernels: VllmTurboQuant, codec: TurboQuantCodec, rows: Rows, seed: int) -> tuple[Difference, int, str]:
    slots, names = slots_to_decode(codec, rows, seed)
    table = torch.from_numpy(codec.centroids) if codec.centroids.size else torch.zeros(1)
    k, v = kernels.dequantise(_spec(codec), torch.from_numpy(slots), codec.head_size, table)
    found = k.numpy(), v.numpy()
    with np.errstate(over="ignore"):
        expected = [x.astype(np.float16) for x in codec.decode_rotated(slots)]
    near = 0
    if not kernels.interpreted:
        fields = {name: slots[..., where] for name, where in codec.slices.items()}
        allowed = decoded_keys_allowed(codec, fields, found[0])
        moved = allowed & (expected[0].view(np.uint16) != found[0].view(np.uint16))
        near = int(moved.sum())
        expected[0] = np.where(moved, found[0], expected[0])
    parts = [compare_numbers(e, f, w, names) for e, f, w in zip(expected, found, ("K", "V"), strict=True)]
    return joined(*parts), near, ""


def slots_to_decode(codec: TurboQuantCodec, rows: Rows, seed: int) -> tuple[NDArray[np.uint8], Sequence[str]]:
    """Return encoded rows, and slots with every index byte and extreme norms, scales and minima."""
    encoded = codec.encode(rows.k, rows.v)
    random = np.random.default_rng([seed, 1])
    wild = random.integers(0, 256, (6, *encoded.shape[1:]), np.uint8)
    extremes = {
        "k_norm": [0.0, 6e-8, 1.0, 1234.5, 65504.0, 3e-5],
        "v_scale": [0.0, 6e-8, 1.0, 0.1, 1000.0, 6e-5],
        "v_min": [0.0, -6e-8, -0.0, 3.5, -15000.0, -65504.0],
    }
    for name, numbers in extremes.items():
        if name in codec.slices:
            data = np.array(numbers, "<f2").view(np.uint8).reshape(-1, 1, 2)
            wild[..., codec.slices[name]] = data
    if codec.preset.key_bits == 8:
        keys = wild[..., codec.slices["k"]]
        keys[(keys & 127) == 127] ^= 1  # NaN codes, which no store writes
    names = (*rows.names, *(f"any indices {i}" for i in range(len(wild))))
    return np.concatenate([encoded, wild]), names
