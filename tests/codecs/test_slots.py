"""Every format: what comes back lies within the derived bound, and the bytes are stable where they are said to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvverify.codecs import codec, codec_names
from kvverify.codecs.arrays import Floats
from kvverify.codecs.inputs import input_names, sample, samples
from kvverify.codecs.interface import Codec, SlotCodec
from kvverify.codecs.plain import fp8_scales
from kvverify.codecs.quality import quality

SIZES = (64, 128, 256)
NAMES = codec_names()


def fitted(name: str, head_size: int, k: Floats, v: Floats, **options: Any) -> Codec:
    """The codec; static fp8 scales calibrated to the numbers, as an engine's are."""
    if name in ("fp8_e4m3", "fp8_e5m2"):
        options |= fp8_scales(name, k, v, head_size, per="head")
    if name == "kivi":
        options.setdefault("residual", 32)  # so that short sequences are quantised too
    return codec(name, head_size, **options)


@st.composite
def arrays(draw: st.DrawFn, head_size: int, limit: float = 200.0) -> tuple[Floats, Floats]:
    """K and V [tokens, heads, head_size] of every magnitude below ``limit``, rows of unlike sizes, ties and zeros among them."""
    tokens, heads = draw(st.integers(1, 70)), draw(st.integers(1, 3))
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    decades = draw(st.sampled_from([0.0, 1.0, 4.0, 12.0]))
    coarse = draw(st.sampled_from([None, 0.25, 1.0]))
    result = []
    for _ in range(2):
        x = generator.standard_normal((tokens, heads, head_size))
        x *= 10 ** generator.uniform(
            -decades, decades / 6, draw(st.sampled_from([(tokens, heads, 1), (1, heads, head_size)]))
        )
        if coarse:
            x = np.round(x / coarse) * coarse
        if draw(st.booleans()):
            x[generator.random(x.shape) < 0.5] = 0
        if draw(st.booleans()):
            x += draw(st.floats(-limit / 4, limit / 4, width=32))
        result.append(np.clip(x, -limit, limit).astype(np.float32))
    return result[0], result[1]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=25)
def test_decoded_numbers_lie_within_the_derived_bound(name: str, data: st.DataObject) -> None:
    head_size = data.draw(st.sampled_from(SIZES))
    k, v = data.draw(arrays(head_size))
    found = fitted(name, head_size, k, v)
    decoded, bound = found.round_trip(k, v), found.bound(k, v)
    for part, x, back, allowed in zip("KV", (k, v), decoded, bound, strict=True):
        error = np.abs(back.astype(np.float64) - x)
        assert (error <= allowed).all(), (part, float((error - allowed).max()))
    for part, x, back, allowed in zip("KV", (k, v), decoded, found.vector_bound(k, v), strict=True):
        length = np.linalg.norm(back.astype(np.float64) - x, axis=-1, keepdims=True)
        assert (length <= allowed.astype(np.float64) * (1 + 2.0**-20) + 2.0**-140).all(), (
            part,
            float((length / np.maximum(allowed, 1e-300)).max()),
        )


@pytest.mark.parametrize("kind", input_names())
@pytest.mark.parametrize("name", NAMES)
def test_inputs_that_hurt_stay_within_the_bounds(name: str, kind: str) -> None:
    for head_size in SIZES[:2]:
        s = sample(kind, head_size=head_size)
        measured = quality(fitted(name, head_size, s.k, s.v), s.k, s.v, s.q)
        assert measured.failures() == []
        assert measured.attention.queries == 64


@pytest.mark.parametrize("name", NAMES)
@given(data=st.data())
@settings(max_examples=15)
def test_fields_said_to_be_idempotent_are_written_again_bit_by_bit(name: str, data: st.DataObject) -> None:
    k, v = data.draw(arrays(64))
    found = fitted(name, 64, k, v)
    if not isinstance(found, SlotCodec):
        assert not found.idempotent
        return
    first = found.encode(k, v)
    again = found.encode(*found.decode(first))
    same = {
        part.name
        for part in found.fields
        if np.array_equal(first[..., found.slices[part.name]], again[..., found.slices[part.name]])
    }
    assert found.idempotent_fields <= same
    assert not found.idempotent or np.array_equal(first, again)


@pytest.mark.parametrize("name", [n for n in NAMES if not codec(n, 128).idempotent])
def test_what_is_said_not_to_be_idempotent_is_not(name: str) -> None:
    def stable(k: Floats, v: Floats) -> bool:
        found = fitted(name, 128, k, v)
        first = found.encode_sequence(k, v)
        again = found.encode_sequence(*found.decode_sequence(first))
        return all(np.array_equal(first.planes[plane], again.planes[plane]) for plane in first.planes)

    fine = (
        np.random.default_rng(0).standard_normal((500, 2, 128)).astype(np.float32)
    )  # float32 scales of every mantissa
    assert not all([stable(fine, fine[::-1]), *(stable(s.k, s.v) for s in samples(head_size=128, tokens=200))])


@pytest.mark.parametrize("name", NAMES)
def test_a_sequence_costs_what_its_planes_weigh(name: str) -> None:
    s = sample("gaussian", head_size=128, tokens=96)
    found = fitted(name, 128, s.k, s.v)
    encoded = found.encode_sequence(s.k, s.v)
    assert encoded.nbytes == sum(plane.nbytes for plane in encoded.planes.values())
    assert encoded.bytes_per_token_and_head == encoded.nbytes / (96 * 2)
    if isinstance(found, SlotCodec):
        assert encoded.bytes_per_token_and_head == found.bytes_per_token_and_head == sum(f.length for f in found.fields)


@pytest.mark.parametrize("name", [n for n in NAMES if isinstance(codec(n, 64), SlotCodec)])
def test_chunks_and_views_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    s = sample("mixed_magnitudes", head_size=64, tokens=40)
    found = fitted(name, 64, s.k, s.v)
    assert isinstance(found, SlotCodec)
    whole = found.encode(s.k, s.v)
    # The rows of a matrix product are the same whatever their number, or the chunk size would decide indices.
    monkeypatch.setattr("kvverify.codecs.arrays.CHUNK_ELEMENTS", 7 * 128)
    strided = np.zeros((40, 4, 128), np.float32)
    strided[:, ::2, ::2] = s.k
    flipped = np.ascontiguousarray(s.v[::-1])[::-1]
    assert np.array_equal(found.encode(strided[:, ::2, ::2], flipped), whole)
    decoded = found.decode(whole)
    wide = np.zeros((40, 2, whole.shape[-1] + 5), np.uint8)
    wide[..., 3:-2] = whole
    for left, right in zip(decoded, found.decode(wide[..., 3:-2]), strict=True):
        assert np.array_equal(left, right)


@pytest.mark.parametrize("tokens", [1, 3])
@pytest.mark.parametrize("name", NAMES)
def test_what_is_given_is_not_written_to(name: str, tokens: int) -> None:
    """One vector is its own transpose: the fast Hadamard transform once worked in the caller's array."""
    s = sample("gaussian", head_size=64, tokens=tokens, heads=1)
    k, v = s.k.copy(), s.v.copy()
    found = codec(name, 64)
    encoded = found.encode_sequence(k, v)
    planes = {plane: data.copy() for plane, data in encoded.planes.items()}
    found.decode_sequence(encoded)
    for measure in (found.step, found.bound, found.vector_bound):
        measure(k, v)
    assert np.array_equal(k, s.k)
    assert np.array_equal(v, s.v)
    assert all(np.array_equal(planes[plane], data) for plane, data in encoded.planes.items())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_torch_tensors_are_taken_as_they_are(torch: Any, dtype: str) -> None:
    k = torch.randn(9, 2, 64, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    found = codec("turboquant_4bit_nc", 64)
    assert isinstance(found, SlotCodec)
    transposed = k.transpose(0, 1).contiguous().transpose(0, 1)  # not contiguous
    exact = k.float().numpy()
    assert np.array_equal(found.encode(transposed, k), found.encode(exact, exact))


def test_a_hundred_thousand_rows_take_bounded_memory_and_time() -> None:
    import time
    import tracemalloc

    rows = np.random.default_rng(0).standard_normal((25_000, 4, 128), dtype=np.float32)
    found = codec("turboquant_4bit_nc", 128)
    assert isinstance(found, SlotCodec)
    tracemalloc.start()
    start = time.process_time()
    slots = found.encode(rows, rows)
    seconds = time.process_time() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - slots.nbytes < 100 << 20
    assert seconds < 6  # a tenth of the million rows that have 30 s on two cores
