"""Blocks of the KV tensors inside a serving process: views by block, digests, poison. Needs torch alone.

vLLM's tensors differ in shape and strides with the version and the attention backend. Only one fact is used here: one dimension
counts blocks, or the smaller kernel blocks that a block is made of. Which tensor bytes a block owns follows from that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

POISON = 0xA5  # finite in every float format: attention multiplies masked slots by 0, and 0 times NaN would spread
_CHUNK_BYTES = 64 << 20  # of KV that a digest takes at once; it needs about five times that
_MIX = 0x9E3779B97F4A7C15  # 2**64 / golden ratio, odd


def flat(caches: Iterable[Any]) -> list[torch.Tensor]:
    """Return the tensors of ``caches``, in order; a layer's entry may be a list of them (state-space layers)."""
    found: list[torch.Tensor] = []
    for cache in caches:
        found += flat(cache) if isinstance(cache, list | tuple) else [cache]
    return found


def by_block(tensor: torch.Tensor, blocks: int) -> torch.Tensor:
    """Return ``tensor`` as integers of its element size and as a view whose first dimension is the block.

    Args:
        tensor: ``[B, ...]`` or, with K and V apart, ``[2, B, ...]``; B is ``blocks`` times the kernel blocks in a block. Any
            strides, any element type.
        blocks: blocks of the pool, as the scheduler counts them.

    Raises:
        ValueError: no dimension, or both, can be the one that counts blocks.
    """
    import torch

    fits = [d for d in (0, 1) if d < tensor.dim() and tensor.shape[d] >= blocks and tensor.shape[d] % blocks == 0]
    if 1 in fits and tensor.shape[0] != 2:
        fits.remove(1)  # only a dimension of K and V may stand before the blocks
    if len(fits) == 2 and tensor.shape[0] != blocks:
        fits.remove(0)
    if len(fits) != 1:
        raise ValueError(
            f"KV tensor of shape {tuple(tensor.shape)}: cannot tell which dimension counts the {blocks} blocks of the pool"
        )
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    moved = tensor.view(integers).movedim(fits[0], 0)
    shape = (blocks, moved.shape[0] // blocks, *moved.shape[1:])
    strides = (moved.stride(0) * shape[1], *moved.stride())
    return moved.as_strided(shape, strides)


def digests(views: Sequence[torch.Tensor], ids: Sequence[int]) -> list[list[str]]:
    """Return for each block of ``ids`` one digest for each of ``views``, 16 hexadecimal digits each.

    The digest is a multilinear hash over 32-bit words with odd 64-bit weights, computed where the tensor lies. A change of one
    word always changes it; several escape with a chance of about 2**-32. It is no defence against an adversary.
    """
    columns = [_column(view, ids) for view in views]
    return [[f"{column[row] & (2**64 - 1):016x}" for column in columns] for row in range(len(ids))]


def combined(by_layer: Sequence[str]) -> str:
    """Return one digest of a block over its layers' :func:`digests`."""
    return hashlib.blake2b("".join(by_layer).encode(), digest_size=8).hexdigest()


def _column(view: torch.Tensor, ids: Sequence[int]) -> list[int]:
    import torch

    page = view[0].numel() * view.element_size()
    step = max(1, _CHUNK_BYTES // max(page, 1))
    weights = _weights(-(-page // 4), view.device)
    found: list[int] = []
    for start in range(0, len(ids), step):
        chosen = torch.tensor(ids[start : start + step], dtype=torch.int64, device=view.device)
        raw = view.index_select(0, chosen).reshape(len(chosen), -1).contiguous().view(torch.uint8)
        if raw.shape[1] % 4:
            raw = torch.nn.functional.pad(raw, (0, 4 - raw.shape[1] % 4))
        words = raw.view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        found += [int(value) for value in (words * weights).sum(dim=1).cpu()]
    return found


def _weights(count: int, device: Any) -> torch.Tensor:
    """Return ``count`` odd int64 numbers that are the same in every process: the finaliser of splitmix64 of the position."""
    import torch

    def signed(value: int) -> int:
        return value - 2**64 if value >= 2**63 else value

    def shifted(value: torch.Tensor, bits: int) -> torch.Tensor:  # logical shift; torch's is arithmetic
        return (value >> bits) & ((1 << (64 - bits)) - 1)

    x = torch.arange(1, count + 1, dtype=torch.int64, device=device) * signed(_MIX)
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return (x ^ shifted(x, 31)) | 1


def poison(views: Sequence[torch.Tensor], ids: Sequence[int], pattern: int = POISON) -> int:
    """Fill every byte of the blocks ``ids`` with ``pattern``; return how many bytes that were."""
    import torch

    written = 0
    for view in views:
        chosen = torch.tensor(ids, dtype=torch.int64, device=view.device)
        view.index_fill_(0, chosen, _filled(view, pattern))  # in place: a second pool would not fit
        written += len(ids) * view[0].numel() * view.element_size()
    return written


def poisoned(views: Sequence[torch.Tensor], ids: Sequence[int], pattern: int = POISON) -> list[int]:
    """Return those blocks of ``ids`` all of whose bytes are ``pattern``, in every layer."""
    import torch

    if not views:
        return []
    whole = torch.ones(len(ids), dtype=torch.bool)
    for view in views:
        value = _filled(view, pattern)
        page = max(1, view[0].numel() * view.element_size())
        step = max(1, _CHUNK_BYTES // page)
        for start in range(0, len(ids), step):
            chosen = torch.tensor(ids[start : start + step], dtype=torch.int64, device=view.device)
            same = (view.index_select(0, chosen) == value).flatten(1).all(dim=1)
            whole[start : start + len(chosen)] &= same.cpu()
    return [block for block, is_whole in zip(ids, whole.tolist(), strict=True) if is_whole]


def _filled(view: torch.Tensor, pattern: int) -> int:
    """Return the integer of ``view``'s type whose bytes are all ``pattern``."""
    return int.from_bytes(bytes([pattern]) * view.element_size(), "little", signed=view.dtype.is_signed)
