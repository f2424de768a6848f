"""LMCache's serdes against the reference: alone, and through its StorageManager onto a disk and back.

An object is ``[2, layers, tokens, heads * head_size]``. TurboQuant's blob: raw first layers, then ``[layer, block, token, head, slot]``
of the others, then raw last layers; slots beyond the last token are whatever was in memory and are not compared.
"""

from __future__ import annotations

import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from kvverify.codecs.plain import Fp8Codec
from kvverify.codecs.turboquant import TurboQuantCodec
from kvverify.conformance.check import Comparison
from kvverify.conformance.difference import Difference, compare_numbers, compare_plain, compare_slots, joined
from kvverify.conformance.exact import U, forgiven, fp16_allowed
from kvverify.conformance.inputs import Rows, rows_that_hurt

if TYPE_CHECKING:
    from kvverify.kernels.lmcache_serde import LmcacheSerdes, Serialised

Bytes = NDArray[np.uint8]
Result = tuple[Difference, int, str]

LAYERS, SKIPPED, BLOCK_TOKENS = 6, 2, 16  # LMCache's defaults keep two layers raw at either end
FP8 = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
_HEADER = "<8sHHHHHHqqqqqqq"  # lmcache/v1/kv_codec/encoded_kv.py, version 1
_INVALID = ("turboquant_5bit_nc", "turboquant_4bit", "fp8", "")


def check_lmcache(serdes: LmcacheSerdes, presets: tuple[str, ...], head_size: int, seed: int) -> Iterator[Comparison]:
    """Yield the comparisons of all serdes at one head size."""
    for name, dtype in FP8.items():
        yield from _each("lmcache", name, head_size, _Fp8(serdes, name, dtype, head_size, seed).checks())
    yield from _each("lmcache", "asym_k16_v8", head_size, _Asymmetric(serdes, head_size, seed).checks())
    for preset in presets:
        yield from _each("lmcache", preset, head_size, _TurboQuant(serdes, preset, head_size, seed).checks())
    yield Comparison("lmcache", "turboquant", head_size, "refuses", partial(_refusals, serdes, head_size))


def check_storage(serdes: LmcacheSerdes, presets: tuple[str, ...], head_size: int, seed: int) -> Iterator[Comparison]:
    """Yield the comparisons through the StorageManager: the file that L2 holds, and the object that comes back from it."""
    cases: list[tuple[str, Any, dict[str, Any]]] = [
        ("fp8_e4m3", _Fp8(serdes, "fp8_e4m3", FP8["fp8_e4m3"], head_size, seed), {"type": "fp8"}),
        *(
            (
                preset,
                _TurboQuant(serdes, preset, head_size, seed),
                {"type": "turboquant", "preset": preset, "head_dim": head_size, "block_size": BLOCK_TOKENS},
            )
            for preset in presets
        ),
    ]
    for name, serde, spec in cases:
        yield Comparison(
            "lmcache", name, head_size, "through StorageManager and disk", partial(_storage, serdes, serde, spec)
        )


def _each(library: str, fmt: str, head_size: int, checks: Mapping[str, Callable[[], Result]]) -> Iterator[Comparison]:
    for what, run in checks.items():
        yield Comparison(library, fmt, head_size, what, run)


def _storage(serdes: LmcacheSerdes, serde: _Fp8 | _TurboQuant, spec: Mapping[str, Any]) -> Result:
    with tempfile.TemporaryDirectory() as folder, serdes.storage(spec, Path(folder)) as storage:
        data = storage.put(serde.x)
        back = storage.get(serde.x)
    file = np.frombuffer(data, np.uint8)
    on_disk, near, note = serde.compare_data(file)
    if on_disk.headline:
        return on_disk, near, note
    returned, near_back, _ = serde.compare_back(back, file)
    return joined(on_disk, returned), near + near_back, note


class _Fp8:
    """The fp8 serde: a cast of every element, no scale."""

    def __init__(self, serdes: LmcacheSerdes, name: str, dtype: str, head_size: int, seed: int) -> None:
        self.serdes, self.dtype = serdes, dtype
        self.codec = Fp8Codec(name, head_size)
        rows = rows_that_hurt(TurboQuantCodec("turboquant_k8v4", head_size, strict=False), seed)
        if name == "fp8_e5m2":  # torch's E5M2 cast overflows to infinity, which no reference should imitate
            rows = Rows(rows.k, np.clip(rows.v, -57344, 57344), rows.names, rows.cancelling)
        self.k, self.v = rows.k, rows.v
        self.x = _object([rows])

    def checks(self) -> dict[str, Callable[[], Result]]:
        return {"serialise": self._serialise, "deserialise": self._deserialise}

    def _serialise(self) -> Result:
        return _written(self.serdes.serialise(self.serdes.fp8(self.dtype)[0], self.x), self.compare_data)

    def _deserialise(self) -> Result:
        serializer, deserializer = self.serdes.fp8(self.dtype)
        data = self.serdes.serialise(serializer, self.x).data
        return self.compare_back(self.serdes.deserialise(deserializer, data, self.x)[0], data.numpy())

    def compare_data(self, data: Bytes) -> Result:
        slots = self.codec.encode(self.k, self.v)
        expected = np.stack([slots[..., self.codec.slices[n]] for n in ("k", "v")])
        return compare_plain(expected.tobytes(), data.tobytes(), "fp8 blob"), 0, ""

    def compare_back(self, back: torch.Tensor, data: Bytes) -> Result:
        """Compare the object with what the reference reads from ``data``."""
        k, v = data.reshape(2, *self.k.shape)
        decoded = np.stack(self.codec.decode(np.concatenate([k, v], -1))).astype(np.float16)
        return compare_plain(decoded.tobytes(), back.numpy().tobytes(), "object from fp8"), 0, ""


class _Asymmetric:
    """K as it is, V as fp8 with one scale, behind a header with a checksum."""

    def __init__(self, serdes: LmcacheSerdes, head_size: int, seed: int) -> None:
        self.serdes = serdes
        rows = rows_that_hurt(TurboQuantCodec("turboquant_k8v4", head_size, strict=False), seed)
        self.k, self.v = torch.from_numpy(rows.k).half(), torch.from_numpy(rows.v).half()
        largest = np.abs(rows.v).max()
        self.scale = np.float32(largest) / np.float32(448)
        self.codec = Fp8Codec("fp8_e4m3", head_size, v_scale=float(self.scale))
        slots = self.codec.encode(np.zeros_like(rows.v), rows.v)
        self.payload = b"".join(
            (self.k.numpy().tobytes(), slots[..., self.codec.slices["v"]].tobytes(), self.scale.tobytes())
        )
        self.decoded = self.codec.decode(slots).v

    def checks(self) -> dict[str, Callable[[], Result]]:
        return {"serialise": self._serialise, "deserialise": self._deserialise}

    def _serialise(self) -> Result:
        done = self.serdes.serialise(self.serdes.asymmetric()[0], self.k, self.v)
        blob = done.data[: done.written].numpy().tobytes()
        header = len(blob) - len(self.payload)
        found = compare_plain(self.payload, blob[max(0, header) :], "payload (K, V fp8, scale)")
        broken = _header_problem(blob, header, self.payload)
        if not broken and not 0 <= done.estimated - done.written <= 1024:
            broken = f"estimated {done.estimated:,} bytes, wrote {done.written:,}"
        note = f"the estimate is an upper bound, {done.estimated - done.written} bytes above what is written"
        return joined(found, Difference(0, 0, broken)), 0, note

    def _deserialise(self) -> Result:
        serializer, deserializer = self.serdes.asymmetric()
        done = self.serdes.serialise(serializer, self.k, self.v)
        k, v = self.serdes.deserialise(deserializer, done.data[: done.written], self.k, self.v)
        whole = compare_plain(self.k.numpy().tobytes(), k.numpy().tobytes(), "K")
        return joined(whole, compare_plain(self.decoded.astype(np.float16).tobytes(), v.numpy().tobytes(), "V")), 0, ""


def _header_problem(blob: bytes, header: int, payload: bytes) -> str:
    """Return what the header says wrongly, nothing where magic, lengths and checksum are right."""
    fixed = struct.calcsize(_HEADER)
    if header < fixed:
        return f"blob has {len(blob):,} bytes, expected a header of at least {fixed} before {len(payload):,}"
    magic, version, *_ = struct.unpack_from(_HEADER, blob)
    if magic[:5] != b"LMCKV" or version != 1:
        return f"header begins with {magic!r}, version {version}; expected LMCKV, version 1"
    k_bytes, v_bytes, scale_bytes = struct.unpack_from("<qqq", blob, fixed)  # the scale of one tensor has no dimensions
    if k_bytes + v_bytes + scale_bytes != len(payload) or scale_bytes != 4:
        return f"header promises {k_bytes} + {v_bytes} + {scale_bytes} bytes, expected {len(payload)} with a scale of 4"
    (checksum,) = struct.unpack_from("<I", blob, header - 4)
    return "" if checksum == zlib.crc32(payload) else "the header's checksum is not that of the payload"


class _TurboQuant:
    """The TurboQuant serde, each layer rotated with its own signs."""

    def __init__(self, serdes: LmcacheSerdes, preset: str, head_size: int, seed: int) -> None:
        self.serdes, self.preset, self.head_size = serdes, preset, head_size
        self.layers = [
            TurboQuantCodec(preset, head_size, signs_layer=layer, strict=False)
            for layer in range(SKIPPED, LAYERS - SKIPPED)
        ]
        # one head: a program a token and head, and the interpreter takes its time for each
        self.rows = [rows_that_hurt(c, seed + i, heads=1) for i, c in enumerate(self.layers)]
        outside = [self.rows[0]] * SKIPPED
        self.x = _object([*outside, *self.rows, *outside])

    def checks(self) -> dict[str, Callable[[], Result]]:
        return {"serialise": self._serialise, "deserialise": self._deserialise}

    def _serdes(self) -> tuple[Any, Any]:
        return self.serdes.turboquant(
            self.preset, self.head_size, block_tokens=BLOCK_TOKENS, skip_first=SKIPPED, skip_last=SKIPPED
        )

    def _serialise(self) -> Result:
        return _written(self.serdes.serialise(self._serdes()[0], self.x), self.compare_data)

    def _deserialise(self) -> Result:
        data = self.expected()
        return self.compare_back(self.serdes.deserialise(self._serdes()[1], torch.from_numpy(data), self.x)[0], data)

    def expected(self) -> Bytes:
        """Return the blob that the reference writes; slots beyond the last token are zeros."""
        tokens = len(self.rows[0].names)
        room = -(-tokens // BLOCK_TOKENS) * BLOCK_TOKENS
        planes = []
        for codec, rows in zip(self.layers, self.rows, strict=True):
            plane = np.zeros((room, 1, codec.bytes_per_token_and_head), np.uint8)
            plane[:tokens] = codec.encode(rows.k, rows.v)
            planes.append(plane.reshape(-1))
        first, last = (x.contiguous().view(torch.uint8).flatten().numpy() for x in self._raw())
        return np.concatenate([first, *planes, last])

    def _raw(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[:, :SKIPPED], self.x[:, LAYERS - SKIPPED :]

    def compare_data(self, data: Bytes) -> Result:
        first, last = (x.numel() * 2 for x in self._raw())
        expected = self.expected()
        if data.size != expected.size:
            return compare_plain(expected.tobytes(), data.tobytes(), "blob"), 0, ""
        parts = [
            compare_plain(expected[:first].tobytes(), data[:first].tobytes(), "raw first layers"),
            compare_plain(expected[-last:].tobytes(), data[-last:].tobytes(), "raw last layers"),
        ]
        left_out = ["k"] if self.layers[0].preset.key_bits == 8 and self.interpreted else []
        near = 0
        for codec, rows, found in zip(self.layers, self.rows, self._cells(data), strict=True):
            want = codec.encode(rows.k, rows.v)
            allowed, moved = forgiven(codec, rows.k, rows.v, want, found)
            lenient = np.array(rows.cancelling) | (not self.interpreted)
            want[lenient] = allowed[lenient]
            near += int(moved[lenient].sum())
            part = compare_slots(codec, want, found, rows.names, left_out=left_out)
            parts.append(_in_layer(part, codec))
        note = "fp8 key bytes left out: the interpreter's fp8 cast is not exact" if left_out else ""
        return joined(*parts), near, note

    def compare_back(self, back: torch.Tensor, data: Bytes) -> Result:
        """Compare the object with what the reference reads from ``data``."""
        parts, near = [], 0
        for end, layers in (("first", slice(0, SKIPPED)), ("last", slice(LAYERS - SKIPPED, LAYERS))):
            raw = self.x[:, layers].contiguous().numpy().tobytes()
            parts.append(compare_plain(raw, back[:, layers].contiguous().numpy().tobytes(), f"raw {end} layers"))
        for i, (codec, rows, cells) in enumerate(zip(self.layers, self.rows, self._cells(data), strict=True)):
            found = [back[n, SKIPPED + i].numpy().reshape(rows.k.shape) for n in (0, 1)]
            k, v = codec.decode_rotated(cells)
            want, moved = _rotated_back(codec, k, found[0]) if codec.preset.key_bits != 8 else (k.astype(np.float16), 0)
            near += moved
            parts.append(_in_layer(compare_numbers(want, found[0], "K", rows.names), codec))
            with np.errstate(over="ignore"):
                parts.append(_in_layer(compare_numbers(v.astype(np.float16), found[1], "V", rows.names), codec))
        note = "K is rotated back by a float32 matrix product, whose order of additions is open" if near else ""
        return joined(*parts), near, note

    @property
    def interpreted(self) -> bool:
        """Do the Triton kernels run under the interpreter?"""
        return self.serdes.device.type == "cpu"

    def _cells(self, data: Bytes) -> list[Bytes]:
        """Return the slots of each compressed layer, uint8 [tokens, 1, slot bytes]."""
        first, last = (x.numel() * 2 for x in self._raw())
        planes = data[first : data.size - last].reshape(len(self.layers), -1)
        size, tokens = self.layers[0].bytes_per_token_and_head, len(self.rows[0].names)
        return [plane.reshape(-1, 1, size)[:tokens] for plane in planes]


def _in_layer(found: Difference, codec: TurboQuantCodec) -> Difference:
    headline = f"layer {codec.signs_layer}, {found.headline}" if found.headline else ""
    return Difference(found.compared_bytes, found.different_bytes, headline)


def _rotated_back(
    codec: TurboQuantCodec, rotated: NDArray[np.float32], found: NDArray[np.float16]
) -> tuple[NDArray[np.float16], int]:
    """Return the fp16 keys that the reference rotates back, with those of ``found`` that float32 error explains, and how many."""
    with np.errstate(over="ignore", invalid="ignore"):
        want = (rotated @ np.ascontiguousarray(codec.rotation.T)).astype(np.float16)
    wide = rotated.astype(np.float64)
    exact = wide @ codec.rotation.T.astype(np.float64)
    error = (codec.head_size + 8) * U * np.abs(wide).sum(-1, keepdims=True) / codec.head_size**0.5
    moved = (want.view(np.uint16) != found.view(np.uint16)) & fp16_allowed(found.astype(np.float32), exact, error)
    return np.where(moved, found, want), int(moved.sum())


def _written(done: Serialised, compare: Callable[[Bytes], Result]) -> Result:
    """Compare what was written; a size other than the estimated one is a finding of its own."""
    if done.written != done.estimated:
        return Difference(0, 0, f"estimated {done.estimated:,} bytes, wrote {done.written:,}"), 0, ""
    return compare(done.data.numpy())


def _refusals(serdes: LmcacheSerdes, head_size: int) -> Result:
    """Ask for what cannot be done; a serde that estimates a size for it has accepted it."""
    x = torch.zeros((2, LAYERS, BLOCK_TOKENS, head_size), dtype=torch.float16)
    wrong: list[tuple[str, Callable[[], tuple[Any, Any]], torch.Tensor]] = [
        *((f"preset {name!r}", partial(serdes.turboquant, name, head_size), x) for name in _INVALID),
        ("negative skipped layers", partial(serdes.turboquant, "turboquant_4bit_nc", head_size, skip_first=-1), x),
        ("head size that does not divide", partial(serdes.turboquant, "turboquant_4bit_nc", head_size + 8), x),
        ("K and V in one plane", partial(serdes.turboquant, "turboquant_4bit_nc", head_size), x[:1]),
    ]
    accepted = []
    for what, make, shaped in wrong:
        try:
            serdes.estimate(make()[0], shaped)
        except ValueError:
            continue
        accepted.append(what)
    note = f"{len(wrong)} invalid configurations; an unknown preset is refused with the first object, not at start"
    return Difference(0, 0, f"accepts {', '.join(accepted)}" if accepted else ""), 0, note


def _object(layers: list[Rows]) -> torch.Tensor:
    """Return rows of several layers as one object, fp16 [2, layers, tokens, heads * head_size]."""
    planes = [np.stack([getattr(rows, name) for rows in layers]) for name in ("k", "v")]
    x = np.stack(planes).astype(np.float16)
    return torch.from_numpy(x.reshape(*x.shape[:3], -1))
