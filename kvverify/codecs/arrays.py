"""What comes in: K and V as numbers, slots as bytes. Anything else is refused with one line that says what was expected."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvverify.errors import CodecError

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]

CHUNK_ELEMENTS = 1 << 20
"""Elements of K worked on at a time: 4 MiB of float32, so that a codec's temporaries stay below 100 MiB."""


def as_float32(x: Any, what: str, head_size: int) -> Floats:
    """Return ``x`` as a C-contiguous float32 array [tokens, heads, head_size].

    Accepts numpy float16 and float32 and torch float16, bfloat16 and float32 on any device: these fit float32 exactly,
    as in the engines' kernels. Views of any strides are copied.

    Raises:
        CodecError: another type, dtype, rank or head size, no elements, NaN or infinity.
    """
    array = _floats(x, what)
    if array.ndim != 3 or array.shape[-1] != head_size:
        raise CodecError(
            f"{what} has shape {list(array.shape)}; expected [tokens, heads, {head_size}] "
            f"(reshape it, or take the codec for its head size)"
        )
    if array.size == 0:
        raise CodecError(f"{what} is empty, shape {list(array.shape)}; expected at least one token and one head")
    array = np.ascontiguousarray(array, dtype=np.float32)
    if not all(np.isfinite(array[part]).all() for part in token_chunks(len(array), array[0].size)):
        token, head, dim = (int(i[0]) for i in np.nonzero(~np.isfinite(array)))
        raise CodecError(
            f"{what} holds {array[token, head, dim]} at token {token}, head {head}, dimension {dim}; "
            f"expected finite numbers: no KV format keeps NaN or infinity"
        )
    return array


def pair(k: Any, v: Any, head_size: int) -> tuple[Floats, Floats]:
    """Return K and V as float32 of one shape [tokens, heads, head_size].

    Raises:
        CodecError: as :func:`as_float32`, or the two shapes differ.
    """
    keys, values = as_float32(k, "K", head_size), as_float32(v, "V", head_size)
    if keys.shape != values.shape:
        raise CodecError(f"K has shape {list(keys.shape)} and V {list(values.shape)}; expected the same shape")
    return keys, values


def as_slots(x: Any, slot_bytes: int, owner: str) -> Bytes:
    """Return ``x`` as a C-contiguous uint8 array [tokens, heads, slot_bytes]; views of any strides are copied.

    Raises:
        CodecError: not uint8, not of rank 3, no slots, or another slot size.
    """
    array = _numpy(x)
    if array is None or array.dtype != np.uint8:
        got = type(x).__name__ if array is None else str(array.dtype)
        raise CodecError(f"{owner}: slots are {got}; expected uint8, the bytes as they lie in the cache")
    if array.ndim != 3 or array.shape[-1] != slot_bytes:
        raise CodecError(
            f"{owner}: slots have shape {list(array.shape)}; expected [tokens, heads, {slot_bytes}]: "
            f"{slot_bytes} bytes a token and KV head"
        )
    if array.size == 0:
        raise CodecError(
            f"{owner}: slots are empty, shape {list(array.shape)}; expected at least one token and one head"
        )
    return np.ascontiguousarray(array)


def every(x: Bools) -> Bools:
    """Return whether all of the last axis hold, bool [...]."""
    return np.asarray(x.all(-1), np.bool_)


def some(x: Bools) -> Bools:
    """Return whether any of the last axis holds, bool [...]."""
    return np.asarray(x.any(-1), np.bool_)


def token_chunks(tokens: int, elements_per_token: int) -> list[slice]:
    """Return slices over the tokens that hold at most ``CHUNK_ELEMENTS`` elements each (at least one token)."""
    step = max(1, CHUNK_ELEMENTS // elements_per_token)
    return [slice(first, min(first + step, tokens)) for first in range(0, tokens, step)]


def _numpy(x: Any) -> NDArray[Any] | None:
    if isinstance(x, np.ndarray):
        return x
    if _is_torch(x):
        return np.asarray(x.detach().cpu().numpy())
    return None


def _floats(x: Any, what: str) -> NDArray[Any]:
    dtype = str(getattr(x, "dtype", type(x).__name__)).removeprefix("torch.")
    if dtype not in ("float16", "bfloat16", "float32"):
        raise CodecError(
            f"{what} is {dtype}, shape {list(getattr(x, 'shape', []))}; expected float16, bfloat16 or float32 "
            f"(cast it first: which rounding a cast makes is yours to decide)"
        )
    if _is_torch(x):
        return np.asarray(x.detach().float().cpu().numpy())
    if not isinstance(x, np.ndarray):
        raise CodecError(f"{what} is a {type(x).__name__}; expected a numpy array or a torch tensor")
    return x


def _is_torch(x: Any) -> bool:
    return type(x).__module__.split(".")[0] == "torch" and hasattr(x, "detach")
