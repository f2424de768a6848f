"""From wrong bytes to words: whose they are, what they hold instead, and where that came from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from kvverify.arena.geometry import Owner, locate
from kvverify.arena.memory import Bytes
from kvverify.arena.oracle import Mismatch, Oracle
from kvverify.arena.origin import Origin, find_origin
from kvverify.layout.placement import Role

_SAMPLES = 2048  # wrong bytes whose owner is looked up
_STRETCHES = 96  # wrong stretches whose origin is searched
_MIN_RUN = 8  # bytes: shorter runs name candidates only


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, in one line and in several; ``first`` locates the first wrong byte for the failure file."""

    headline: str
    details: list[str]
    first: dict[str, object]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Stretch:
    """Wrong bytes in a row (gaps of up to 3 lucky bytes allowed) that belong to one owner cell or to none."""

    start: int  # position in the mapping
    data: Bytes
    owner: Owner | None
    verdict: str  # stale, zero, moved, unknown
    origin: Origin | None


def diagnose(oracle: Oracle, mismatch: Mismatch, loaded: Collection[int], stored: Collection[int]) -> Diagnosis:
    """Explain ``mismatch``.

    Args:
        oracle: the oracle that found it, still in the state of the check.
        mismatch: the wrong bytes.
        loaded: blocks that the steps since the last check were asked to write.
        stored: host slots that they were asked to write.
    """
    first = {
        "region": mismatch.region,
        "position": int(mismatch.positions[0]),
        "expected": mismatch.expected[:16].tobytes().hex(),
        "found": mismatch.found[:16].tobytes().hex(),
        "wrong_bytes": mismatch.total,
    }
    if mismatch.region == "host":
        return _diagnose_host(oracle, mismatch, first)
    return _diagnose_device(oracle, mismatch, loaded, first)


def spans(numbers: Iterable[int]) -> str:
    """Write a set of numbers as ranges.

    >>> spans([3, 1, 2, 7])
    '1-3, 7'
    """
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    shown = [f"{a}" if a == b else f"{a}-{b}" for a, b in parts[:6]]
    return ", ".join(shown) + (", ..." if len(parts) > 6 else "")


def _diagnose_host(oracle: Oracle, mismatch: Mismatch, first: dict[str, object]) -> Diagnosis:
    arena = oracle.arena
    slots, rests = np.divmod(mismatch.positions - arena.host_base, arena.slot_stride)
    inside = (slots >= 0) & (slots < arena.host_slots) & (rests < arena.slot_bytes)
    details, where = [], ""
    if inside.any():
        named = sorted({int(s) for s in slots[inside]})
        where = f"host slots {spans(named)} were changed although no step named them"
        details.append(f"bytes {int(rests[inside].min())}-{int(rests[inside].max())} of the slot")
    else:
        before = int(max(0, slots[0]))
        where = f"the guard after host slot {before} was overwritten, {int(rests[0] - arena.slot_bytes)} bytes behind its end"
    found = find_origin(oracle, _memory_bytes(oracle, mismatch, 0))
    if found is not None:
        details.append(f"the bytes found there are those of {found.text}")
    headline = f"{mismatch.total:,} wrong host bytes: {where}"
    return Diagnosis(headline, details, first, _fingerprint("host", "slot" if inside.any() else "guard"))


def _memory_bytes(oracle: Oracle, mismatch: Mismatch, number: int) -> Bytes:
    memory = oracle.arena.host_memory if mismatch.region == "host" else oracle.arena.device
    start = int(mismatch.positions[number])
    stop = next(b for a, b in memory.windows if a <= start < b)
    return memory.array[start : min(stop, start + 64)]


def _diagnose_device(
    oracle: Oracle, mismatch: Mismatch, loaded: Collection[int], first: dict[str, object]
) -> Diagnosis:
    layout = oracle.arena.layout
    groups = {block: content.group for block, content in oracle.contents.items()}
    sample = np.unique(np.linspace(0, len(mismatch.positions) - 1, _SAMPLES).astype(np.int64))
    owners = [locate(layout, int(mismatch.positions[i]) - oracle.arena.base, groups) for i in sample]
    owned = [o for o in owners if o is not None]
    stretches = _stretches(oracle, mismatch, groups)
    in_padding = [o for o in owned if _role(oracle, o) is Role.PADDING]
    foreign = [o for o in owned if o.block not in loaded]
    place = _place(oracle, owned) if owned else _gap(oracle, mismatch)
    verdicts = Counter(s.verdict for s in stretches)
    cause = verdicts.most_common(1)[0][0]
    what, details = _explain(oracle, stretches, cause)
    if in_padding and len(in_padding) == len(owned):
        what = "padding that is neither the old nor the source's: " + what
    if not owned:
        headline = f"{mismatch.total:,} wrong bytes outside every block: {place}; {what}"
    elif len(foreign) == len(owned):
        headline = f"{mismatch.total:,} wrong bytes in blocks that no step named: {place}; {what}"
    else:
        headline = f"{mismatch.total:,} wrong bytes: {place}; {what}"
        if foreign:
            details.append(f"also damaged, though no step named them: blocks {spans(o.block for o in foreign)}")
    if owned and len(owned) < len(owners):
        details.append(f"bytes that belong to no block are damaged too: {_gap(oracle, mismatch)}")
    if owned and owned[0] is owners[0]:
        first = {**first, **_owner_words(oracle, owned[0])}
    fields = sorted({f"{layout.layers[o.layer].kv_format}.{o.field}" for o in owned})
    kind = "gap" if not owned else "foreign" if len(foreign) == len(owned) else "target"
    return Diagnosis(headline, details, first, _fingerprint("device", kind, cause, *fields))


def _role(oracle: Oracle, owner: Owner) -> Role:
    fields = oracle.arena.layout.layers[owner.layer].fields
    return next(f.role for f in fields if f.name == owner.field)


def _owner_words(oracle: Oracle, owner: Owner) -> dict[str, object]:
    layer = oracle.arena.layout.layers[owner.layer]
    return {
        "layer": layer.name,
        "kv_format": layer.kv_format,
        "block": owner.block,
        "token": owner.token,
        "head": owner.head,
        "field": owner.field,
        "byte": owner.cell_byte,
    }


def _place(oracle: Oracle, owned: list[Owner]) -> str:
    layout = oracle.arena.layout
    formats = sorted({layout.layers[o.layer].kv_format for o in owned})
    fields = list(dict.fromkeys(o.field for o in sorted(owned, key=lambda o: o.cell_byte)))
    return (
        f"block {spans(o.block for o in owned)}, layer {spans(layout.layers[o.layer].index for o in owned)} "
        f"({', '.join(formats)}), token {spans(o.token for o in owned)}, head {spans(o.head for o in owned)}, "
        f"bytes {spans(o.cell_byte for o in owned)} of the cell ({', '.join(fields)})"
    )


def _gap(oracle: Oracle, mismatch: Mismatch) -> str:
    layout, arena = oracle.arena.layout, oracle.arena
    outside = [int(p) - arena.base for p in mismatch.positions[:: max(1, len(mismatch.positions) // 64)]]
    outside = [p for p in outside if locate(layout, p) is None] or outside
    position = outside[0]
    if position < 0:
        return f"the guard {-position:,} bytes before the buffer"
    if position >= layout.size_bytes:
        return f"the guard {position - layout.size_bytes:,} bytes behind the end of the buffer"
    return f"the gap at byte {position:,} of the buffer"


def _stretches(oracle: Oracle, mismatch: Mismatch, groups: dict[int, int]) -> list[Stretch]:
    positions = mismatch.positions
    cuts = np.nonzero(np.diff(positions) > 4)[0] + 1
    pieces = [part for piece in np.split(positions, cuts) for part in _cut_up(piece)]
    step = max(1, len(pieces) // _STRETCHES)
    layout, base, memory = oracle.arena.layout, oracle.arena.base, oracle.arena.device.array
    found = []
    for piece in pieces[::step]:
        start, stop = int(piece[0]), int(piece[-1]) + 1
        data = memory[start : min(stop, start + 256)].copy()
        owner = locate(layout, start - base, groups)
        verdict, origin = _judge(oracle, owner, start, data)
        found.append(Stretch(start, data, owner, verdict, origin))
    return found


def _cut_up(piece: np.ndarray) -> list[np.ndarray]:
    """Cut a long stretch, so that several of its owners are looked at."""
    return [piece] if len(piece) <= 512 else np.array_split(piece, min(8, len(piece) // 256))


def _judge(oracle: Oracle, owner: Owner | None, start: int, data: Bytes) -> tuple[str, Origin | None]:
    if owner is not None:
        layer = oracle.arena.layout.layers[owner.layer]
        for position, occupant in oracle.occupant_bytes(layer, owner.block):
            before = occupant[start - position : start - position + len(data)] if position <= start else occupant[:0]
            if len(before) and np.array_equal(before, data[: len(before)]):
                return "stale", None
    if not data.any() and len(data) >= 2:
        return "zero", None
    origin = find_origin(oracle, data) if len(data) >= _MIN_RUN else None
    if origin is not None:
        return "moved", origin
    return ("short" if len(data) < _MIN_RUN else "unknown"), None


def _explain(oracle: Oracle, stretches: list[Stretch], cause: str) -> tuple[str, list[str]]:
    chosen = [s for s in stretches if s.verdict == cause]
    if cause == "stale":
        return "still the previous occupant's bytes: never written" + _cut(oracle, chosen), []
    if cause == "zero":
        return "zeros", []
    if cause == "moved":
        lines = [_moved(oracle, s) for s in chosen]
        common = [line for line, _ in Counter(lines).most_common(4)]
        return f"they hold {common[0]}", [f"also: {line}" for line in common[1:]]
    if cause == "short":
        return "runs too short to name their origin (neither the previous occupant's bytes nor zeros)", []
    return "bytes that nobody wrote in this sequence: changed on the way", []


def _cut(oracle: Oracle, stretches: list[Stretch]) -> str:
    """Say what a stale stretch at the end of something was cut from."""
    owner = stretches[0].owner
    if owner is None:
        return ""
    layer = oracle.arena.layout.layers[owner.layer]
    cell = sum(f.length for f in layer.fields if f.role is not Role.PADDING)
    length = len(stretches[0].data)
    if owner.cell_byte and owner.cell_byte + length == cell:
        return f" (the last {length} of {cell} bytes of the cell were cut off)"
    return ""


def _moved(oracle: Oracle, stretch: Stretch) -> str:
    origin = stretch.origin
    if origin is None:
        raise AssertionError("a moved stretch has an origin")
    source, owner = origin.owner, stretch.owner
    if source is None or owner is None:
        return origin.text
    layout = oracle.arena.layout
    content = oracle.contents.get(owner.block)
    wanted_block = content.block if content is not None else owner.block
    differences = []
    if source.layer != owner.layer:
        differences.append(f"layer {layout.layers[source.layer].index}'s (here {layout.layers[owner.layer].index})")
    if source.block != wanted_block:
        differences.append(f"block {source.block}'s (wanted block {wanted_block}'s)")
    if source.head != owner.head:
        differences.append(f"head {source.head}'s (here {owner.head})")
    if source.token != owner.token:
        differences.append(f"token {source.token}'s (here {owner.token})")
    if (source.field, source.cell_byte) != (owner.field, owner.cell_byte):
        differences.append(f"{source.field} byte {source.cell_byte} (here {owner.field} byte {owner.cell_byte})")
    if content is not None and origin.key != content.key:
        differences.append(f"written by {origin.writer}")
    return ", ".join(differences) if differences else origin.text


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]
