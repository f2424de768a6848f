"""Words for places: blocks, layers, tokens, heads and bytes; gaps and guards; what lies beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

import numpy as np

from kvverify.arena.compare import Mismatch
from kvverify.arena.expectation import Expectation
from kvverify.arena.geometry import Owner, Positions, Run, block_start, content_runs, locate
from kvverify.arena.stretch import Stretch
from kvverify.layout.placement import Layout, Role

_CHANCE = 3
_MOST = 0.9
_WHOLE = 0.97  # of random wrong bytes 1 in 256 is right by chance


def spans(numbers: Iterable[int], step: int = 1) -> str:
    """Write a set of numbers as ranges; numbers up to ``step`` apart are one range.

    >>> spans([3, 1, 2, 7])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number <= parts[-1][1] + step:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:6]]
    return ", ".join(shown) + (", ..." if len(parts) > 6 else "")


def counted(number: int, noun: str) -> str:
    """Write a number with its noun.

    >>> counted(1, "wrong byte"), counted(2_000, "wrong byte")
    ('1 wrong byte', '2,000 wrong bytes')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def role_of(layout: Layout, owner: Owner) -> Role:
    """Return the role of the field that the byte belongs to."""
    return next(f.role for f in layout.layers[owner.layer].fields if f.name == owner.field)


def cell_place(layout: Layout, owners: list[Owner]) -> str:
    """Say which blocks, layers, tokens, heads and bytes of the cell ``owners`` are."""
    fields = list(dict.fromkeys(o.field for o in sorted(owners, key=lambda o: o.cell_byte)))
    # a byte that is missing in between was right by chance, or is not in the sample
    cell_bytes = spans((o.cell_byte for o in owners), step=_CHANCE)
    return (
        f"{page_place(layout, owners)}, token {spans(o.token for o in owners)}, head {spans(o.head for o in owners)}, "
        f"{'bytes' if set(cell_bytes) & set('-,') else 'byte'} {cell_bytes} of the cell ({', '.join(fields)})"
    )


def page_place(layout: Layout, owners: list[Owner]) -> str:
    """Say which blocks and layers ``owners`` are, with the formats of the layers."""
    layers = sorted({o.layer for o in owners})
    formats = ", ".join(dict.fromkeys(layout.layers[i].kv_format for i in layers))
    numbers = spans(layout.layers[i].index for i in layers)
    return f"block {spans(o.block for o in owners)}, layer {numbers} ({formats})"


def whole_pages(layout: Layout, owners: list[Owner], total: int) -> str:
    """Say so when ``total`` bytes are all content of the layers and blocks of ``owners``, chance hits left out; else ''."""
    blocks, layers = {o.block for o in owners}, {o.layer for o in owners}
    share = total / (len(blocks) * sum(layout.layers[i].page_bytes for i in layers))
    return f"{page_place(layout, owners)}, whole pages" if share > _WHOLE else ""


def outside_place(oracle: Expectation, positions: Positions, groups: dict[int, int]) -> str:
    """Say which guard or gap the ``positions`` that belong to no block lie in."""
    layout, base = oracle.arena.layout, oracle.arena.base
    few = positions[np.unique(np.linspace(0, len(positions) - 1, 256).astype(np.int64))] - base
    outside = [int(p) for p in few if locate(layout, int(p), groups) is None]
    before, behind = [-p for p in outside if p < 0], [p - layout.size_bytes for p in outside if p >= layout.size_bytes]
    between = [p for p in outside if 0 <= p < layout.size_bytes]
    words = []
    if before:
        words.append(f"the guard before the buffer, {_extent(before)} before its first byte")
    if between:
        words.append(f"a gap between blocks or layers, byte {spans(between)} of the buffer")
    if behind:
        words.append(f"the guard behind the buffer, {_extent([p + 1 for p in behind])} behind its last byte")
    return "; ".join(words)


def _extent(distances: list[int]) -> str:
    low, high = min(distances), max(distances)
    return counted(low, "byte") if low == high else f"{low} to {high} bytes"


def neighbour(oracle: Expectation, mismatch: Mismatch, loaded: Collection[int], groups: dict[int, int]) -> str:
    """Say that the first damage adjoins a block that was loaded: the copy ran past its end, or began too early; else ''."""
    layout, base, wrong = oracle.arena.layout, oracle.arena.base, mismatch.positions
    cuts = np.nonzero(np.diff(wrong) > 1)[0]
    last = int(wrong[cuts[0]] if len(cuts) else wrong[-1])
    for position, words in ((int(wrong[0]) - 1, "right behind the end"), (last + 1, "right before the start")):
        owner = locate(layout, position - base, groups)
        if owner is not None and owner.block in loaded:
            layer = layout.layers[owner.layer].index
            how = "the copy ran past its end" if "behind" in words else "the copy began too early"
            return f"{words} of block {owner.block} in layer {layer}, which was loaded: {how}"
    return ""


def common_end(oracle: Expectation, stretches: list[Stretch]) -> str:
    """Say that ``stretches`` are the ends of their pages or cells, the few left out that are right there by chance; else ''."""
    pages: Counter[Run] = Counter()  # (length of the end, length of the page)
    cells: Counter[Run] = Counter()
    joined = _joined(stretches)
    for first, stop in joined:
        if first.owner is None:
            return ""
        layer, length = oracle.arena.layout.layers[first.owner.layer], stop - first.start
        cell = sum(f.length for f in layer.fields if f.role is not Role.PADDING)
        start, run = content_runs(layer)[-1]
        if (
            stop == oracle.arena.base + block_start(layer, first.owner.block) + start + run
            and length < layer.page_bytes
        ):
            pages[length, layer.page_bytes] += 1
        if first.owner.cell_byte and first.owner.cell_byte + length == cell:
            cells[length, cell] += 1
    for what, ends in (("every page", pages), ("the cell", cells)):
        if ends.total() >= _MOST * len(joined):
            common = [e for e, count in ends.items() if count >= max(ends.values()) / 10]
            sizes = spans(size for _, size in common)
            return f"the last {spans(length for length, _ in common)} of {sizes} bytes of {what}"
    return ""


def _joined(stretches: list[Stretch]) -> list[tuple[Stretch, int]]:
    """Return the first of the stretches that overlap or adjoin, and where the last of them ends."""
    found: list[tuple[Stretch, int]] = []
    for stretch in sorted(stretches, key=lambda s: s.start):
        if found and stretch.start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], stretch.stop))
        else:
            found.append((stretch, stretch.stop))
    return found


def groups_of(oracle: Expectation) -> dict[int, int]:
    """Return the layer group that each block with known contents belongs to."""
    return {block: content.group for block, content in oracle.contents.items()}


def owner_words(layout: Layout, owner: Owner) -> Mapping[str, object]:
    """Return the owner of a byte as the failure file stores it."""
    layer = layout.layers[owner.layer]
    return {
        "layer": layer.name,
        "kv_format": layer.kv_format,
        "block": owner.block,
        "token": owner.token,
        "head": owner.head,
        "field": owner.field,
        "byte": owner.cell_byte,
    }
