"""The byte map of a page: which byte of a cell is what, in which order memory holds it, and which bytes a failure damaged."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvverify.report.signoff.svg import LEFT, RIGHT, WIDTH, Figure, Picture
from kvverify.report.words import plural

ROWS_PX = 9
MOST_ROWS = 64
MOST_PIECES = 64  # of the strip, which is about 640 px wide
_TOP, _STRIP, _GAP = 34, 16, 44
# the words of kvverify.arena.places, at the start of a failure's headline
_PLACE = re.compile(r"token (?P<token>[\d, .-]+?), head (?P<head>[\d, .-]+?), bytes? (?P<cell>[\d, .-]+?) of the cell")
_WHOLE = "whole pages"
_MIXED = re.compile(r"layer [^()]*\([^()]*,")  # places of several formats in one: they are not those of one page


@dataclass(frozen=True, slots=True)
class PageField:
    """A run of ``length`` bytes of every cell, at ``cell_byte`` in it; in the page at offset + head and token strides."""

    name: str
    role: str  # data or scale
    cell_byte: int
    length: int
    offset: int
    head_stride: int
    token_stride: int


@dataclass(frozen=True, slots=True)
class PageMap:
    """One page (a row of a block) of one layer. ``layout`` and ``layer`` name it."""

    layout: str
    layer: str
    kv_format: str
    order: str
    heads: int
    tokens: int
    page_bytes: int
    fields: Sequence[PageField]

    @property
    def cell_bytes(self) -> int:
        """Bytes of one token of one head."""
        return max(f.cell_byte + f.length for f in self.fields)


@dataclass(frozen=True, slots=True)
class Damage:
    """What a failure says of the page: ``first`` is its first wrong byte (head, token, byte of the cell).

    ``heads``, ``tokens`` and ``cell`` are the (first, last) ranges that its headline names; empty where it names none.
    """

    where: str
    headline: str
    replay: str
    first: tuple[int, int, int] | None = None
    heads: Sequence[tuple[int, int]] = field(default_factory=tuple)
    tokens: Sequence[tuple[int, int]] = field(default_factory=tuple)
    cell: Sequence[tuple[int, int]] = field(default_factory=tuple)

    def share(self, page: PageMap) -> float:
        """Return the share of the page's cells that the headline names; 1 where it names none."""
        every = ((self.heads, page.heads), (self.tokens, page.tokens), (self.cell, page.cell_bytes))
        named = [sum(last - first + 1 for first, last in ranges) / whole for ranges, whole in every]
        return math.prod(named) or 1.0


def damage(document: dict[str, Any], page: PageMap, replay: str) -> Damage:
    """Return what the contents of a failure file say of the page in which its first wrong byte lies."""
    outcome = dict(document.get("outcome") or {})
    first, headline = dict(outcome.get("first") or {}), str(outcome.get("headline") or "")
    numbers = [first.get(name) for name in ("head", "token", "byte")]
    known = [n for n in numbers if isinstance(n, int)]
    where = f"{document.get('kernel')}, block {first.get('block')}, {first.get('layer')}"
    place = headline.partition(";")[0]
    ranges: dict[str, list[tuple[int, int]]] = {}
    if (match := _PLACE.search(place)) and not _MIXED.search(place):
        ranges = {name: _ranges(text) for name, text in match.groupdict().items()}
    elif _WHOLE in place:
        ranges = {"head": [(0, page.heads - 1)], "token": [(0, page.tokens - 1)], "cell": [(0, page.cell_bytes - 1)]}
    at = (known[0], known[1], known[2]) if len(known) == len(numbers) else None
    return Damage(where, headline, replay, at, *(tuple(ranges.get(name, ())) for name in ("head", "token", "cell")))


def _ranges(text: str) -> list[tuple[int, int]]:
    """Return the ranges in words such as ``0-3, 7``."""
    found = (part.strip().partition("-") for part in text.split(","))
    return [(int(a), int(b or a)) for a, _, b in found if a.isdecimal() and (not b or b.isdecimal())]


def byte_map(page: PageMap, hurt: Damage | None, name: str) -> Figure:
    """Return the picture: above the page as memory holds it, below one row for each head and token, byte by byte."""
    title = f"Page of {page.layer} ({page.kv_format}) in {page.layout}"
    words = "; ".join(f"{f.name} ({f.role}) bytes {f.cell_byte}-{f.cell_byte + f.length - 1}" for f in page.fields)
    cells = f"{plural(page.tokens, 'token')} of {plural(page.heads, 'head')}, {page.cell_bytes} bytes each: {words}"
    note = f"{cells}. " + (
        f"Damaged: {hurt.where}: {hurt.headline}. {hurt.replay}" if hurt else "No failure damaged it."
    )
    rows = min(page.heads * page.tokens, MOST_ROWS)
    picture = Picture(name, title, note, _TOP + _STRIP + _GAP + rows * ROWS_PX + 8)
    _draw_memory(picture, page)
    top = _TOP + _STRIP + _GAP
    wide = (WIDTH - LEFT - RIGHT) / page.cell_bytes
    for f in page.fields:
        x = LEFT + f.cell_byte * wide
        tip = f"{f.name}: {f.role}, bytes {f.cell_byte}-{f.cell_byte + f.length - 1} of the cell"
        picture.box(x, top, f.length * wide, rows * ROWS_PX, _colour(page, f), tip=tip)
        if f.length * wide > 7 * len(f.name):
            picture.text(x, top - 4, f.name)
    for head in range(page.heads):
        y = top + head * page.tokens * ROWS_PX
        if head * page.tokens < rows:
            picture.text(LEFT - 6, y + ROWS_PX, f"head {head}", anchor="end")
            picture.line(LEFT, y, WIDTH - RIGHT, y)
    if hurt:
        _draw_damage(picture, page, hurt, top, rows)
    return Figure(title, note, picture.markup())


def _draw_memory(picture: Picture, page: PageMap) -> None:
    """Draw the page as memory holds it; of one with very many pieces only as many bytes as can be told apart."""
    pieces = _pieces(page)
    span = page.page_bytes if len(pieces) <= MOST_PIECES else pieces[MOST_PIECES][1]
    part = f"{span:,} bytes" if span == page.page_bytes else f"the first {span:,} of {page.page_bytes:,} bytes"
    picture.text(LEFT, _TOP - 8, f"in memory, order {page.order}: {part}")
    scale = (WIDTH - LEFT - RIGHT) / span
    for f, start, length in pieces[:MOST_PIECES]:
        picture.box(
            LEFT + start * scale, _TOP, length * scale, _STRIP, _colour(page, f), tip=f"{f.name}, from byte {start}"
        )


def _draw_damage(picture: Picture, page: PageMap, hurt: Damage, top: float, rows: int) -> None:
    wide = (WIDTH - LEFT - RIGHT) / page.cell_bytes
    for first, last in hurt.cell:
        for head in _members(hurt.heads, page.heads):
            for a, b in hurt.tokens:
                row, stop = head * page.tokens + a, min(head * page.tokens + b + 1, rows)
                y, height = top + row * ROWS_PX, (stop - row) * ROWS_PX
                tip = f"damaged: head {head}, token {a}-{b}, bytes {first}-{last} of the cell"
                picture.box(LEFT + first * wide, y, (last - first + 1) * wide, height, "damage", tip=tip)
    if hurt.first and (row := hurt.first[0] * page.tokens + hurt.first[1]) < rows:
        x = LEFT + hurt.first[2] * wide
        tip = f"first wrong byte: byte {hurt.first[2]} of the cell"
        picture.box(x, top + row * ROWS_PX, max(3.0, wide), ROWS_PX, "first", tip=tip)


def _members(ranges: Iterable[tuple[int, int]], limit: int) -> list[int]:
    return [n for first, last in ranges for n in range(first, min(last + 1, limit))]


def _pieces(page: PageMap) -> list[tuple[PageField, int, int]]:
    """Return (field, start, length) of the runs that memory holds, adjoining ones of a field joined."""
    every = sorted(
        (
            (f.offset + head * f.head_stride + token * f.token_stride, f)
            for f in page.fields
            for head in range(page.heads)
            for token in range(page.tokens)
        ),
        key=lambda item: item[0],
    )
    pieces: list[tuple[PageField, int, int]] = []
    for start, f in every:
        if pieces and pieces[-1][0] is f and pieces[-1][1] + pieces[-1][2] == start:
            pieces[-1] = (f, pieces[-1][1], pieces[-1][2] + f.length)
        else:
            pieces.append((f, start, f.length))
    return pieces


def _colour(page: PageMap, f: PageField) -> str:
    number = [own.name for own in page.fields].index(f.name)
    return f"{'data' if f.role == 'data' else 'scale'}{number % 2}"
