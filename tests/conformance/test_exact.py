"""What float32 error explains is forgiven, and nothing else is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.codecs.packing import pack, unpack
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.conformance.exact import clear_of_boundaries, decoded_keys_allowed, exact, forgiven
from kvverify.conformance.inputs import rows_that_hurt

PRESETS = ("turboquant_k8v4", "turboquant_4bit_nc", "turboquant_k3v4_nc", "turboquant_3bit_nc")


def codec(preset: str = "turboquant_4bit_nc", head_size: int = 64) -> TurboQuantCodec:
    return TurboQuantCodec(preset, head_size, strict=False)


@pytest.mark.parametrize("preset", PRESETS)
def test_what_the_reference_encodes_needs_no_forgiveness(preset: str) -> None:
    one = codec(preset)
    rows = rows_that_hurt(one, 3)
    slots = one.encode(rows.k, rows.v)
    out, near = forgiven(one, rows.k, rows.v, slots, slots)
    assert (out == slots).all()
    assert near.sum() == 0


@pytest.mark.parametrize("preset", PRESETS)
@given(data=st.data())
def test_a_changed_byte_is_never_forgiven_away_from_the_boundaries(preset: str, data: st.DataObject) -> None:
    one = codec(preset)
    rows = rows_that_hurt(one, 3)
    # a value half-way between two steps may go either way; which rows have one depends on the drawn numbers
    half_way = np.abs(exact(one, rows.k, rows.v).position % 1 - 0.5).min(-1) < 1e-3
    clear = [i for i, cancels in enumerate(rows.cancelling) if not cancels and not half_way[i].any()]
    assert len(clear) > 1
    token = data.draw(st.sampled_from(clear))
    byte = data.draw(st.integers(0, one.bytes_per_token_and_head - 1))
    slots = one.encode(rows.k, rows.v)
    found = slots.copy()
    found[token, 0, byte] ^= 1 << data.draw(st.integers(0, 7))
    out, near = forgiven(one, rows.k, rows.v, slots, found)
    assert (out == slots).all()
    assert near.sum() == 0


def test_an_index_at_a_midpoint_may_go_either_way_and_is_counted() -> None:
    one = codec()
    rows = rows_that_hurt(one, 0)
    k, v = rows.k[-1:], rows.v[-1:]
    # rotate a vector back whose first coordinate sits on a midpoint
    rotated = exact(one, k, v).rotated[0, 0]
    rotated[0] = float(one.midpoints[9])
    rotated[1:] *= np.sqrt((1 - rotated[0] ** 2) / (rotated[1:] ** 2).sum())
    k = np.repeat((rotated @ one.rotation.T.astype(np.float64)).astype(np.float32)[None, None], 2, axis=1)
    slots = one.encode(k, v)
    found = slots.copy()
    index = unpack(found[..., one.slices["k"]], 4, 64)
    other = 9 if index[0, 0, 0] == 10 else 10
    index[0, 0, 0] = other
    found[..., one.slices["k"]] = pack(index, 4)
    out, near = forgiven(one, k, v, slots, found)
    assert (out == found).all()
    assert near.tolist() == [1]
    index[0, 0, 0] = other + (1 if other == 10 else -1)  # the next one is wrong
    found[..., one.slices["k"]] = pack(index, 4)
    out, near = forgiven(one, k, v, slots, found)
    assert (out == slots).all()
    assert near.tolist() == [0]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_rows_are_clear_of_boundaries_unless_they_cancel(preset: str, dtype: str) -> None:
    one = codec(preset)
    rows = rows_that_hurt(one, 11, dtype=dtype)
    clear = np.atleast_1d(clear_of_boundaries(one, rows.k, rows.v).all(-1))
    assert clear[~np.array(rows.cancelling)].all()
    assert len(set(rows.names)) == len(rows.names)


def test_rows_hold_what_hurts() -> None:
    rows = rows_that_hurt(codec(), 0)
    norms = np.linalg.norm(rows.k.astype(np.float64), axis=-1)
    assert (norms == 0).any()
    assert 50000 < norms.max() < 65504
    assert ((rows.v != 0) & (np.abs(rows.v) < 2.0**-14)).any()  # fp16 subnormals
    assert (rows.v.max(-1) == rows.v.min(-1)).any()
    assert (rows.k.astype(np.float16) == rows.k).all()


def test_decoded_keys_may_differ_by_a_rounding_only_where_it_is_open() -> None:
    one = codec()
    rows = rows_that_hurt(one, 0)
    slots = one.encode(rows.k, rows.v)
    fields = {name: slots[..., where] for name, where in one.slices.items()}
    k = one.decode_rotated(slots).k.astype(np.float16)
    assert decoded_keys_allowed(one, fields, k).all()
    up = decoded_keys_allowed(one, fields, np.nextafter(k, np.float16(np.inf)))
    assert up[rows.names.index("ordinary 0")].mean() < 0.01
