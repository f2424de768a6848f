"""KIVI, the KVQuant-style format, pages of blocks, and LMCache's blob."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kvverify.codecs import arrays
from kvverify.codecs.inputs import sample
from kvverify.codecs.kivi import KiviCodec
from kvverify.codecs.kvquant import NonUniformCodec
from kvverify.codecs.lmcache_serde import LmcacheTurboQuant
from kvverify.codecs.packing import unpack
from kvverify.codecs.pages import page_of, slots_of
from kvverify.codecs.registry import codec, slot_codec
from kvverify.codecs.turboquant import PRESETS, TurboQuantCodec
from kvverify.errors import CodecError, LayoutError
from kvverify.layout.sequences import KiviGeometry


@pytest.mark.parametrize(
    ("tokens", "key_tokens", "value_tokens"), [(1, 0, 0), (127, 0, 0), (128, 128, 0), (300, 256, 172)]
)
def test_kivi_keeps_a_window_in_full_precision(tokens: int, key_tokens: int, value_tokens: int) -> None:
    geometry = KiviGeometry(tokens, 2, 128)
    assert (geometry.key_tokens, geometry.value_tokens) == (key_tokens, value_tokens)
    s = sample("gaussian", head_size=128, tokens=tokens)
    back = codec("kivi", 128).round_trip(s.k, s.v)
    assert np.array_equal(back.k[key_tokens:], s.k[key_tokens:])  # bf16 numbers come back unchanged
    assert np.array_equal(back.v[value_tokens:], s.v[value_tokens:])
    assert key_tokens == 0 or not np.array_equal(back.k[:key_tokens], s.k[:key_tokens])


def test_kivi_scales_keys_by_channel_and_values_by_token() -> None:
    s = sample("outlier_channels", head_size=128, tokens=256)
    kivi, per_token = codec("kivi", 128, residual=32), codec("int4_per_token_head", 128)
    error = [np.abs(c.round_trip(s.k, s.v).k - s.k).mean() for c in (kivi, per_token)]
    assert error[0] < error[1]  # two bits by channel beat four bits by token where channels stick out
    encoded = kivi.encode_sequence(s.k, s.v)
    codes = unpack(encoded.planes["k"], 2, 256)  # [heads, channels, tokens]
    assert (codes.reshape(2, 128, 8, 32).max(-1) == 3).all()
    assert (codes.reshape(2, 128, 8, 32).min(-1) == 0).all()


@pytest.mark.parametrize(
    "options", [{"bits": 3}, {"group": 12}, {"residual": 48}, {"residual": 16}, {"group": 256}], ids=str
)
def test_kivi_refuses_impossible_windows(options: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="kivi"):
        KiviCodec("kivi", 128, **options)


def test_outliers_are_kept_exactly_and_pay_for_themselves() -> None:
    s = sample("one_huge_norm", head_size=128, tokens=200)
    dense, sparse = (NonUniformCodec("kvquant_cached", 128, outliers=share) for share in (0.0, 0.01))
    errors = [np.abs(c.round_trip(s.k, s.v).k - s.k).mean() for c in (dense, sparse)]
    assert errors[1] < errors[0] / 5
    encoded = sparse.encode_sequence(s.k, s.v)
    at = np.ascontiguousarray(encoded.planes["k_outlier_at"]).view("<u4")[..., 0]
    assert (at == 100).any(-1).mean() > 0.9  # the huge token is an outlier of nearly every channel
    assert dense.encode_sequence(s.k, s.v).planes["k_outlier"].size == 0


def test_an_outlier_outside_its_vector_is_refused() -> None:
    s = sample("gaussian", head_size=64)
    found = NonUniformCodec("kvquant_cached", 64)
    encoded = found.encode_sequence(s.k, s.v)
    encoded.planes["v_outlier_at"][0, 0, 0] = [64, 0]
    with pytest.raises(CodecError, match="plane v_outlier_at points to 64; vectors have 64 elements"):
        found.decode_sequence(encoded)


@pytest.mark.parametrize("tokens", [1, 77, 300])
@pytest.mark.parametrize(("bits", "outliers"), [(4, 0.01), (3, 0.25), (2, 0.0)])
def test_cutting_into_chunks_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, tokens: int, bits: int, outliers: float
) -> None:
    s = sample("sink_tokens", head_size=64, tokens=tokens, heads=3)
    found = NonUniformCodec("kvquant_cached", 64, bits=bits, outliers=outliers)

    def everything() -> list[bytes]:
        encoded = found.encode_sequence(s.k, s.v)
        measures = (found.decode_sequence(encoded), found.step(s.k, s.v), found.bound(s.k, s.v))
        return [plane.tobytes() for plane in encoded.planes.values()] + [x.tobytes() for m in measures for x in m]

    whole = everything()
    for elements in (1, 1000, 64 * 50):
        monkeypatch.setattr(arrays, "CHUNK_ELEMENTS", elements)
        assert everything() == whole


def test_outliers_take_bounded_memory() -> None:
    import tracemalloc

    rows = np.random.default_rng(0).standard_normal((25_000, 4, 128), dtype=np.float32)
    found = codec("kvquant_cached", 128)
    encoded = found.encode_sequence(rows, rows)
    returned = sum(plane.nbytes for plane in encoded.planes.values())
    for work, size in (
        (lambda: found.encode_sequence(rows, rows), returned),
        (lambda: found.decode_sequence(encoded), 2 * rows.nbytes),
        (lambda: found.bound(rows, rows), 2 * rows.nbytes),
    ):
        tracemalloc.start()
        result = work()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert result is not None
        assert peak - size < 50 << 20  # K alone is 49 MiB


@pytest.mark.parametrize("order", ["LBNHC", "LBHNC"])
@pytest.mark.parametrize("name", [*PRESETS, "ultraquant_4bit", "bf16", "int4_per_token_head"])
def test_pages_hold_the_slots_and_nothing_else(name: str, order: str) -> None:
    s = sample("gaussian", head_size=128, tokens=16, heads=3)
    found = slot_codec(name, 128)
    slots = found.encode(s.k, s.v)
    page = page_of(found, slots, order=order)
    assert page.shape == (16 * 3 * found.bytes_per_token_and_head,)
    assert np.array_equal(np.sort(page), np.sort(slots.reshape(-1)))
    assert np.array_equal(slots_of(found, page, tokens=16, heads=3, order=order), slots)


def test_a_soa_page_has_its_fields_in_arrays() -> None:
    s = sample("gaussian", head_size=128, tokens=16, heads=3)
    found = TurboQuantCodec("turboquant_4bit_nc_soa", 128)
    slots = found.encode(s.k, s.v)
    page = page_of(found, slots)
    token, head, tokens, heads = 5, 2, 16, 3
    data = token * heads * 128 + head * 128
    assert page[data : data + 64].tobytes() == slots[token, head, found.slices["k"]].tobytes()
    assert page[data + 64 : data + 128].tobytes() == slots[token, head, found.slices["v"]].tobytes()
    for place, field in enumerate(("k_norm", "v_scale", "v_min")):
        at = tokens * heads * 128 + 2 * (head * 3 * tokens + place * tokens + token)
        assert page[at : at + 2].tobytes() == slots[token, head, found.slices[field]].tobytes()


def test_soa_norms_are_divided_by_the_centroids_length() -> None:
    s = sample("gaussian", head_size=128)
    aos, soa = TurboQuantCodec("turboquant_4bit_nc", 128), TurboQuantCodec("turboquant_4bit_nc_soa", 128)
    assert not np.array_equal(aos.encode(s.k, s.v), soa.encode(s.k, s.v))
    left, right = aos.round_trip(s.k, s.v), soa.round_trip(s.k, s.v)
    assert np.abs(left.k - right.k).max() < 2**-9 * np.abs(s.k).max() * 4  # two roundings of the norm
    assert np.array_equal(left.v, right.v)


@pytest.mark.parametrize("page", [np.zeros(133, np.uint8), np.zeros(135, np.uint8), np.zeros(134, np.int8)])
def test_pages_of_another_size_are_refused(page: Any) -> None:
    with pytest.raises(CodecError, match="expected 1 tokens x 1 heads x 134 = 134 bytes"):
        slots_of(slot_codec("turboquant_4bit_nc", 128), page, tokens=1, heads=1)


def kv_of(layers: int, tokens: int, heads: int, head_size: int) -> Any:
    s = sample("outlier_channels", head_size=head_size, tokens=layers * tokens, heads=heads)
    return np.stack([x.reshape(layers, tokens, heads * head_size) for x in (s.k, s.v)])


@pytest.mark.parametrize(
    "preset", ["turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc"]
)
def test_lmcaches_blob_is_raw_compressed_raw(preset: str) -> None:
    layers, tokens, heads, head_size = 6, 20, 2, 64
    serde = LmcacheTurboQuant(preset, head_size)
    kv = kv_of(layers, tokens, heads, head_size)
    blob = serde.encode(kv)
    slot = serde.layer_codec(0).bytes_per_token_and_head
    assert (
        blob.size
        == serde.blob_bytes(layers, tokens, heads)
        == 4 * 2 * tokens * heads * head_size * 2 + 2 * 32 * heads * slot
    )
    back = serde.decode(blob, layers=layers, tokens=tokens, heads=heads)
    for raw in (slice(0, 2), slice(4, 6)):
        assert np.array_equal(back[:, raw], kv[:, raw])  # bf16 numbers
    for layer in (2, 3):
        one = serde.layer_codec(layer)
        assert one.signs_layer == layer
        k, v = (x.reshape(tokens, heads, head_size) for x in kv[:, layer])
        start = 2 * 2 * tokens * heads * head_size * 2 + (layer - 2) * 32 * heads * slot
        assert blob[start : start + tokens * heads * slot].tobytes() == one.encode(k, v).tobytes()
    unwritten = ~serde.valid_bytes(layers, tokens, heads)
    assert unwritten.sum() == 2 * 12 * heads * slot
    assert not blob[unwritten].any()


def test_lmcaches_layers_differ_by_their_signs_only() -> None:
    s = sample("gaussian", head_size=128)
    serde = LmcacheTurboQuant("turboquant_4bit_nc")
    left, right = (serde.layer_codec(layer).encode(s.k, s.v) for layer in (2, 3))
    where = serde.layer_codec(2).slices["k"]
    assert not np.array_equal(left[..., where], right[..., where])
    assert np.array_equal(left[..., where.stop :], right[..., where.stop :])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"preset": "turboquant_4bit"}, "no preset 'turboquant_4bit'; did you mean 'turboquant_4bit_nc'"),
        ({"preset": "turboquant_4bit_nc_soa"}, "no preset"),
        ({"head_size": 96}, "head size 96; expected a power of two, also for k8v4"),
        ({"skip_first": -1}, "no negative counts"),
        ({"dtype": "float8"}, "dtype 'float8'"),
    ],
)
def test_serde_configurations_that_cannot_be(options: dict[str, Any], message: str) -> None:
    with pytest.raises(CodecError, match=message):
        LmcacheTurboQuant(**options)


def test_serde_refuses_fused_views_and_truncated_blobs() -> None:
    serde = LmcacheTurboQuant("turboquant_4bit_nc", 64)
    kv = kv_of(5, 8, 1, 64)
    with pytest.raises(CodecError, match=r"shape \[1, 5, 8, 64\]; expected \[2, layers, tokens, heads \* 64\]"):
        serde.encode(kv[:1])
    blob = serde.encode(kv)
    for wrong in (blob[:-1], np.append(blob, np.uint8(0))):
        with pytest.raises(CodecError, match=f"the blob is {wrong.size} elements of uint8; expected {blob.size} bytes"):
            serde.decode(wrong, layers=5, tokens=8, heads=1)
