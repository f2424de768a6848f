"""The operations of :mod:`kvverify.arena.payload_triton` in plain torch, for devices without Triton: the same results, slower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from kvverify.arena.contents import STEP
from kvverify.arena.payload import FACTOR, GOLDEN, signed

if TYPE_CHECKING:
    from kvverify.arena.payload_launch import Launch, Records

_AT_ONCE = 1 << 21  # units computed together: about 150 MB of temporaries


def check(
    memory: torch.Tensor, launch: Launch, records: Records, special: torch.Tensor, *, by_bytes: bool
) -> torch.Tensor:
    """Return how many bytes, or units, of each program are not what they must be: int32 [blocks * tiles]."""
    counts = []
    for positions, inside, expected, _ in _programs(launch, records, special):
        found = memory.view(torch.uint8)[positions]
        wrong = (found != expected) & inside
        if not by_bytes and launch.tiles.unit > 1:
            wrong = wrong.unflatten(1, (-1, launch.tiles.unit)).any(2)  # type: ignore[no-untyped-call]
        counts.append(wrong.sum(1, dtype=torch.int32))
    return torch.cat(counts)


def fill(memory: torch.Tensor, launch: Launch, records: Records, special: torch.Tensor) -> None:
    """Write what must be there."""
    for positions, inside, expected, _ in _programs(launch, records, special):
        memory.view(torch.uint8)[positions[inside]] = expected[inside]


def occupy(memory: torch.Tensor, launch: Launch, records: Records, special: torch.Tensor, flip: int) -> None:
    """Write bytes that differ from what must come in every single one."""
    for positions, inside, expected, tiles in _programs(launch, records, special):
        extreme = launch.extremes[tiles]
        scale = torch.where(expected == extreme, extreme ^ 0x80, extreme)
        occupant = torch.where(launch.masks[tiles] > 0, scale, expected ^ flip)
        memory.view(torch.uint8)[positions[inside]] = occupant[inside]


def settle(memory: torch.Tensor, launch: Launch, carried: Records, own: Records, special: torch.Tensor) -> None:
    """Put what a block's padding was back where a load brought the source's along, byte by byte."""
    both = zip(_programs(launch, carried, special, moved_gaps=True), _programs(launch, own, special), strict=True)
    for (positions, inside, theirs, _), (_, _, ours, _) in both:
        same = inside & (memory.view(torch.uint8)[positions] == theirs)
        memory.view(torch.uint8)[positions[same]] = ours[same]


_Piece = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _programs(launch: Launch, records: Records, special: torch.Tensor, *, moved_gaps: bool = False) -> Iterator[_Piece]:
    """Yield for some programs at a time: positions, which of them are inside, expected bytes (all [programs, bytes]), tiles."""
    count = len(launch.starts)
    lane = torch.arange(launch.tiles.tile_bytes, device=launch.starts.device)
    programs = torch.arange(count * records.count, device=launch.starts.device)
    for some in torch.split(programs, max(1, _AT_ONCE // launch.tiles.tile_bytes)):
        tile, nth = some % count, some // count
        block = nth if records.blocks is None else records.blocks[nth]
        kind = launch.kinds[tile]
        known = kind != 0
        at = torch.where(known | moved_gaps, kind * records.kind_step + nth, 0)
        keys = torch.where(known, records.keys[at], special[16])
        sources = torch.where(known | moved_gaps, records.sources[at], block)
        positions = (launch.starts[tile] + block * launch.strides[tile])[:, None] + lane
        inside = lane < launch.lengths[tile][:, None]
        origins = positions + ((sources - block) * launch.strides[tile])[:, None]
        expected = _bytes(torch.where(inside, origins, 0), keys[:, None], special)
        yield torch.where(inside, positions, 0), inside, expected, tile


def _bytes(positions: torch.Tensor, keys: torch.Tensor, special: torch.Tensor) -> torch.Tensor:
    """The bytes that ``keys`` put at ``positions``."""
    index = positions >> 3
    word = _mixed((index + 1) * signed(GOLDEN)) ^ keys
    odd = _logical(word, 58) == 0
    rich = torch.where(odd, special[torch.where(odd, word & 15, 0)], word)
    rich = torch.where(((((index >> 6) * int(STEP) + keys) & 0xFFFFFFFF) >> 25) == 0, 0, rich)
    word = torch.where(keys == special[16], word, rich)
    return ((word >> ((positions & 7) * 8)) & 0xFF).to(torch.uint8)


def _mixed(x: torch.Tensor) -> torch.Tensor:
    x = (x ^ _logical(x, 32)) * signed(FACTOR)
    return x ^ _logical(x, 29)


def _logical(x: torch.Tensor, by: int) -> torch.Tensor:
    # int64 is shifted with its sign; torch has no shifts of uint64
    return (x >> by) & ((1 << (64 - by)) - 1)
