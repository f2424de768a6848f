"""Numbers that are known from elsewhere: sizes, centroids, casts, signs, rotations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvverify.codecs.floats import E4M3, E5M2, Grid, bf16_bytes, bf16_floats, fp8_bytes, fp8_table
from kvverify.codecs.interface import SlotCodec
from kvverify.codecs.lloyd_max import centroids, midpoints, midpoints_from_double
from kvverify.codecs.packing import pack, unpack
from kvverify.codecs.registry import slot_codec
from kvverify.codecs.rotation import RHT_SEED, butterflies, hadamard, inverse_rht, lmcache_signs, rht, rht_signs

SLOT_BYTES = {
    "turboquant_k8v4": {64: 100, 128: 196, 256: 388},
    "turboquant_4bit_nc": {64: 70, 128: 134, 256: 262},
    "turboquant_k3v4_nc": {64: 62, 128: 118, 256: 230},
    "turboquant_3bit_nc": {64: 54, 128: 102, 256: 198},
    "bf16": {64: 256, 128: 512, 256: 1024},
    "fp8_e4m3": {64: 128, 128: 256},
    "int8_per_token_head": {64: 136, 128: 264, 256: 520},
    "int4_per_token_head": {64: 72, 96: 104, 128: 136, 256: 264},
    "ultraquant_4bit": {64: 68, 128: 136, 256: 272},
}
FOUR_BITS = [0.12843, 0.38814, 0.65688, 0.94245, 1.25626, 1.61788, 2.06845, 2.73092]
THREE_BITS = [0.24498, 0.75565, 1.34318, 2.15035]


def test_slot_sizes() -> None:
    for name, sizes in SLOT_BYTES.items():
        for head_size, size in sizes.items():
            assert slot_codec(name, head_size).bytes_per_token_and_head == size


def test_ratios_of_the_published_table() -> None:
    names = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")
    for head_size, ratios in ((128, (2.61, 3.82, 4.34, 5.02)), (64, (2.56, 3.66, 4.13, 4.74))):
        for name, ratio in zip(names, ratios, strict=True):
            assert round(4 * head_size / slot_codec(name, head_size).bytes_per_token_and_head, 2) == ratio


@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_centroids_scale_with_the_head_size_alone(head_size: int) -> None:
    for bits, positive in ((4, FOUR_BITS), (3, THREE_BITS)):
        scaled = centroids(head_size, bits) * head_size**0.5
        assert scaled[len(positive) :] == pytest.approx(positive, abs=1e-5)
        assert scaled[: len(positive)] == pytest.approx([-c for c in positive[::-1]], abs=1e-5)
        step = midpoints(head_size, bits).view(np.int32).astype(int) - midpoints_from_double(head_size, bits).view(
            np.int32
        )
        middle = len(positive) - 1  # zero, but for rounding
        assert np.abs(np.delete(step, middle)).max() <= 1


def test_three_bit_indices_are_24_bit_little_endian_words() -> None:
    index = np.array([[1, 2, 3, 4, 5, 6, 7, 0]])
    word = sum(int(i) << (3 * n) for n, i in enumerate(index[0]))
    assert pack(index, 3).tobytes() == word.to_bytes(3, "little")
    assert pack(np.array([[0xA, 0x3]]), 4).tobytes() == b"\x3a"
    assert pack(np.array([[1, 2, 3, 0]]), 2).tobytes() == b"\x39"


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_packing_loses_nothing(bits: int) -> None:
    for count in (1, 5, 8, 13, 64, 96):
        index = np.random.default_rng(count).integers(0, 2**bits, (3, 2, count))
        packed = pack(index, bits)
        assert packed.shape == (3, 2, -(-count * bits // 8))
        assert np.array_equal(unpack(packed, bits, count), index)


@pytest.mark.parametrize("grid", [E4M3, E5M2], ids=lambda g: g.name)
def test_fp8_rounds_as_torch_does(torch: Any, grid: Grid) -> None:
    dtype = torch.float8_e4m3fn if grid is E4M3 else torch.float8_e5m2
    generator = np.random.default_rng(3)
    x = np.concatenate([generator.standard_normal(20000) * 10 ** generator.uniform(-9, 4.5, 20000), [0.0, -0.0, 1e-30]])
    table = fp8_table(grid)
    finite = np.unique(table[np.isfinite(table)])
    x = np.concatenate([x, finite, (finite[1:] + finite[:-1]) / 2]).astype(np.float32)  # values and ties
    x = x[np.abs(x) <= grid.largest]
    assert np.array_equal(fp8_bytes(x, grid), torch.from_numpy(x).to(dtype).view(torch.uint8).numpy())
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    assert np.array_equal(table, every, equal_nan=True)


def test_fp8_saturates() -> None:
    x = np.array([448.0, 463.9, 464.1, 1e9, -1e9], np.float32)
    assert fp8_table(E4M3)[fp8_bytes(x, E4M3)].tolist() == [448, 448, 448, 448, -448]
    assert fp8_table(E5M2)[fp8_bytes(x[3:], E5M2)].tolist() == [57344, -57344]


def test_bf16_rounds_as_torch_does(torch: Any) -> None:
    bits = np.random.default_rng(4).integers(0, 2**32, 50000, dtype=np.uint32)
    x = bits.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) < 3.38e38)]
    expected = torch.from_numpy(x).to(torch.bfloat16)
    assert np.array_equal(bf16_bytes(x), expected.view(torch.uint8).numpy())
    assert np.array_equal(bf16_floats(bf16_bytes(x)), expected.float().numpy())


@pytest.mark.parametrize("head_size", [16, 64, 128, 256])
def test_signs_are_those_of_torchs_generator(torch: Any, head_size: int) -> None:
    for layer in (0, 2, 31):
        generator = torch.Generator(device="cpu").manual_seed(42 + 1337 * layer)
        drawn = torch.randint(0, 2, (head_size,), generator=generator).float() * 2 - 1
        assert np.array_equal(lmcache_signs(head_size, layer), drawn.numpy())
    generator = torch.Generator(device="cpu").manual_seed(RHT_SEED)
    drawn = torch.bernoulli(torch.full((head_size,), 0.5), generator=generator) * 2 - 1
    assert np.array_equal(rht_signs(head_size), drawn.numpy())


@pytest.mark.parametrize("head_size", [64, 128])
def test_rotations_are_orthogonal_and_undone(head_size: int) -> None:
    x = np.random.default_rng(5).standard_normal((10, 2, head_size)).astype(np.float32)
    assert hadamard(head_size) @ hadamard(head_size) == pytest.approx(np.eye(head_size), abs=1e-6)
    assert butterflies(x, scale=0.5**0.5) == pytest.approx(x @ hadamard(head_size), abs=1e-5)
    assert inverse_rht(rht(x)) == pytest.approx(x, abs=1e-5)
    assert inverse_rht(rht(x[..., :48])) == pytest.approx(x[..., :48], abs=1e-5)  # blocks of 16


def test_rotated_keys_of_turboquant_lie_in_their_cells() -> None:
    """The sharp bound, coordinate by coordinate: the decoded unit key against the rotated one, in the rotated basis."""
    codec = slot_codec("turboquant_4bit_nc", 128)
    k = np.random.default_rng(6).standard_normal((200, 2, 128)).astype(np.float32)
    rotated = codec.decode_rotated(codec.encode(k, k)).k  # type: ignore[attr-defined]
    length = np.linalg.norm(k, axis=-1, keepdims=True)
    unit = k @ hadamard(128) / length
    edges = np.concatenate([[-np.inf], midpoints(128, 4), [np.inf]])
    cell = np.searchsorted(edges[1:-1], unit)
    table = centroids(128, 4)[cell]
    corrected = table / np.linalg.norm(table, axis=-1, keepdims=True)
    assert rotated / length == pytest.approx(corrected, abs=2e-3 * 0.25)


@pytest.mark.parametrize("name", ["turboquant_k8v4", "turboquant_4bit_nc"])
def test_fields_are_in_the_documented_order(name: str) -> None:
    codec = slot_codec(name, 128)
    assert isinstance(codec, SlotCodec)
    names = [part.name for part in codec.fields]
    assert names == (
        ["k", "v", "v_scale", "v_min"] if name.endswith("k8v4") else ["k", "k_norm", "v", "v_scale", "v_min"]
    )
    x = np.zeros((1, 1, 128), np.float32)
    x[0, 0, :2] = [3.0, 4.0]
    slot = codec.encode(x, x)[0, 0]
    assert slot[codec.slices["v_min"]].tobytes() == np.float16(0).tobytes()
    assert slot[codec.slices["v_scale"]].tobytes() == np.float16(4 / 15).tobytes()
    assert slot[codec.slices["v"]][0] == 0xFB  # 3 / (4 / 15) = 11.25 -> 11 in the low nibble, 15 in the high one
    if "k_norm" in names:
        assert slot[codec.slices["k_norm"]].tobytes() == np.float16(5).tobytes()
