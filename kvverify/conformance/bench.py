"""What each format costs on a sample of KV: bytes, time of encoding and decoding, errors, and what attention makes of them.

Numbers come from the reference codecs, which real kernels are held against by ``kvverify codecs verify``. Times on the CPU are those
of the numpy reference, on a GPU those of vLLM's kernels where there is one for the format.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kvverify.codecs import codec
from kvverify.codecs.plain import fp8_scales
from kvverify.codecs.quality import Quality, quality
from kvverify.conformance.real_kv import KvSample, LayerKv
from kvverify.errors import CodecError, LayoutError

if TYPE_CHECKING:
    from kvverify.codecs.interface import Codec, Pair

QUERIES = 32  # the last positions of the text: a decode step sees a full cache
BF16_BYTES = 2

Timer = Callable[["Codec", LayerKv], tuple[float, float] | None]


@dataclass(frozen=True, slots=True)
class BenchFormat:
    """One line of the table: a codec with its options; ``scales`` calibrates fp8 per tensor or per head."""

    title: str
    codec: str
    scales: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    def made(self, layer: LayerKv) -> Codec:
        """Return the codec for a layer; fp8 scales are those of its largest magnitude."""
        size = layer.k.shape[-1]
        options = dict(self.options)
        if self.scales:
            options |= fp8_scales(self.codec, layer.k, layer.v, size, per=self.scales)
        return codec(self.codec, size, **options)


FORMATS = (
    BenchFormat("bf16", "bf16"),
    BenchFormat("fp8_e4m3, per tensor", "fp8_e4m3", "tensor"),
    BenchFormat("fp8_e4m3, per head", "fp8_e4m3", "head"),
    BenchFormat("fp8_e5m2, per tensor", "fp8_e5m2", "tensor"),
    BenchFormat("fp8_per_token_head", "fp8_per_token_head"),
    BenchFormat("int8_per_token_head", "int8_per_token_head"),
    BenchFormat("turboquant_k8v4", "turboquant_k8v4"),
    BenchFormat("int4_per_token_head", "int4_per_token_head"),
    BenchFormat("ultraquant_4bit", "ultraquant_4bit"),
    BenchFormat("turboquant_4bit_nc", "turboquant_4bit_nc"),
    BenchFormat("turboquant_k3v4_nc", "turboquant_k3v4_nc"),
    BenchFormat("turboquant_3bit_nc", "turboquant_3bit_nc"),
    BenchFormat("kvquant_cached, 4 bit", "kvquant_cached", options={"bits": 4}),
    BenchFormat("kivi, 2 bit", "kivi", options={"bits": 2}),
)


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One format on one sample. Bytes and times are sums over the layers, ``raw_bytes`` those of bf16; seconds.

    ``correlation_blind`` is over K and V of all layers, as others publish it. Errors: absolute, over all elements; ``k_error`` and
    ``v_error`` |x' - x| / |x|, ``attention_error`` |o' - o| / |o| averaged over layers, heads and queries. ``steps`` is the largest
    error in units of the format's own step, ``over_bound`` the largest error over the derived bound (never above 1).
    None: not defined, or not measured.
    """

    sample: str
    format: str
    head_size: int
    raw_bytes: int
    encoded_bytes: int
    encode_s: float
    decode_s: float
    kernel_encode_s: float | None
    kernel_decode_s: float | None
    correlation_blind: float | None
    mean_error: float
    max_error: float
    k_error: float
    v_error: float
    max_steps: float
    over_bound: float
    attention_error: float
    max_attention_error: float
    top1_flips: int
    queries: int

    @property
    def ratio(self) -> float:
        """How many times smaller than bf16."""
        return self.raw_bytes / self.encoded_bytes

    @property
    def bytes_per_token(self) -> float:
        """Bytes of one token and KV head, K and V together."""
        return 4 * self.head_size / self.ratio


@dataclass(frozen=True, slots=True)
class Refusal:
    """A format that cannot hold a sample, and why."""

    sample: str
    format: str
    reason: str


def bench(
    samples: Iterable[KvSample],
    formats: Iterable[BenchFormat] = FORMATS,
    *,
    timer: Timer | None = None,
    say: Callable[[str], object] = lambda _: None,
) -> tuple[list[BenchRow], list[Refusal]]:
    """Measure every format on every sample; ``timer`` measures real kernels, ``say`` hears what is done next."""
    rows: list[BenchRow] = []
    refusals: list[Refusal] = []
    chosen = tuple(formats)
    for sample in samples:
        for one in chosen:
            say(f"{sample.title}: {one.title}")
            try:
                rows.append(_row(sample, one, timer))
            except (CodecError, LayoutError) as error:
                refusals.append(Refusal(sample.title, one.title, str(error)))
    return rows, refusals


@dataclass(slots=True)
class _Sums:
    """Running sums over layers."""

    raw_bytes: int = 0
    encoded_bytes: int = 0
    encode_s: float = 0.0
    decode_s: float = 0.0
    kernel: list[tuple[float, float]] = field(default_factory=list)
    moments: np.ndarray[Any, np.dtype[np.float64]] = field(default_factory=lambda: np.zeros(6))
    found: list[Quality] = field(default_factory=list)


def _row(sample: KvSample, one: BenchFormat, timer: Timer | None) -> BenchRow:
    sums = _Sums()
    for layer in sample.layers:
        _add_layer(sums, layer, one.made(layer), timer)
    parts = [part for found in sums.found for part in (found.k, found.v)]
    attention = [found.attention for found in sums.found]
    return BenchRow(
        sample=sample.title,
        format=one.title,
        head_size=sample.head_size,
        raw_bytes=sums.raw_bytes,
        encoded_bytes=sums.encoded_bytes,
        encode_s=sums.encode_s,
        decode_s=sums.decode_s,
        kernel_encode_s=sum(e for e, _ in sums.kernel) if sums.kernel else None,
        kernel_decode_s=sum(d for _, d in sums.kernel) if sums.kernel else None,
        correlation_blind=_correlation(sums.moments),
        mean_error=float(np.mean([part.mean_error for part in parts])),
        max_error=max(part.max_error for part in parts),
        k_error=float(
            np.mean([found.k.relative_rms_error for found in sums.found if found.k.relative_rms_error is not None])
        ),
        v_error=float(
            np.mean([found.v.relative_rms_error for found in sums.found if found.v.relative_rms_error is not None])
        ),
        max_steps=max(part.max_steps for part in parts if part.max_steps is not None),
        over_bound=max(part.over_bound for part in parts),
        attention_error=float(np.mean([a.mean_relative_error for a in attention if a.mean_relative_error is not None])),
        max_attention_error=max(a.max_relative_error for a in attention if a.max_relative_error is not None),
        top1_flips=sum(a.top1_flips for a in attention),
        queries=sum(a.queries for a in attention),
    )


def _add_layer(sums: _Sums, layer: LayerKv, codec_: Codec, timer: Timer | None) -> None:
    began = time.perf_counter()
    encoded = codec_.encode_sequence(layer.k, layer.v)
    half = time.perf_counter()
    decoded = codec_.decode_sequence(encoded)
    sums.decode_s += time.perf_counter() - half
    sums.encode_s += half - began
    sums.raw_bytes += BF16_BYTES * (layer.k.size + layer.v.size)
    sums.encoded_bytes += encoded.nbytes
    sums.moments += _moments(layer, decoded)
    sums.found.append(quality(codec_, layer.k, layer.v, layer.q[-QUERIES:]))
    if timer is not None and (measured := timer(codec_, layer)) is not None:
        sums.kernel.append(measured)


def _moments(layer: LayerKv, decoded: Pair) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return n, sum x, sum y, sum x², sum y², sum xy over K and V."""
    x = np.concatenate([layer.k.ravel(), layer.v.ravel()]).astype(np.float64)
    y = np.concatenate([decoded.k.ravel(), decoded.v.ravel()]).astype(np.float64)
    return np.array([x.size, x.sum(), y.sum(), x @ x, y @ y, x @ y])


def _correlation(moments: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    n, x, y, xx, yy, xy = (float(m) for m in moments)
    spread = (xx - x * x / n) * (yy - y * y / n)
    return (xy - x * y / n) / spread**0.5 if spread > 0 else None
