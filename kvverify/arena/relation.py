"""How the place that wrong bytes came from differs from the place they should have come from, said once for many stretches."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from kvverify.arena.expectation import BEFORE, Content, Expectation
from kvverify.arena.geometry import Owner, position_of
from kvverify.arena.origin import Origin
from kvverify.arena.places import counted, page_place, spans
from kvverify.arena.stretch import Stretch
from kvverify.layout.placement import Layout

Pair = tuple[int | str, int | str]  # where the bytes came from, where they should have come from
Relation = dict[
    str, Pair
]  # by what differs: rank, layer, block, head, token, field, byte, content; or outside, host, guard
_NOUNS = {"layer": "layer", "block": "block", "head": "head", "token": "token"}


def relation_of(oracle: Expectation, stretch: Stretch) -> Relation:
    """Return what differs between the origin of a stretch and where its bytes should have come from."""
    origin = stretch.origin
    if origin is None:
        raise ValueError(f"the stretch at {stretch.start} has no origin")
    rank: Relation = {} if origin.rank is None else {"rank": (origin.rank, oracle.arena.rank)}
    return {**rank, **_in_one_rank(oracle, stretch.owner, origin)}


def _in_one_rank(oracle: Expectation, owner: Owner | None, origin: Origin) -> Relation:
    if origin.region == "host":
        slot, rest = divmod(origin.position - oracle.arena.host_base, oracle.arena.slot_stride)
        inside = 0 <= slot < oracle.arena.host_slots and rest < oracle.arena.slot_bytes
        return {"host": (slot, origin.writer)} if inside else {"host guard": (slot, origin.writer)}
    if origin.owner is None:
        return {"guard": (origin.position - oracle.arena.base, 0)}
    if owner is None:
        return {"outside": (origin.owner.block, 0)}
    return _differences(oracle, owner, origin, origin.owner)


def wanted_of(oracle: Expectation, owner: Owner) -> Content | None:
    """Return what the block of ``owner`` must hold, as far as that is contents of the owner's group."""
    content = oracle.contents.get(owner.block)
    same = content is not None and content.group == oracle.arena.layout.layers[owner.layer].group
    return content if same else None


def _differences(oracle: Expectation, owner: Owner, origin: Origin, source: Owner) -> Relation:
    layers = oracle.arena.layout.layers
    wanted = wanted_of(oracle, owner)
    block = owner.block if wanted is None else wanted.block
    found: Relation = {}
    if source.layer != owner.layer:
        found["layer"] = (layers[source.layer].index, layers[owner.layer].index)
    if source.block != block:
        found["block"] = (source.block, block)
    if layers[source.layer].kv_format == layers[owner.layer].kv_format:
        found.update(_inside_the_page(owner, source))
    if wanted is not None and origin.key != wanted.key and not ("block" in found and _is_held(oracle, origin, source)):
        found["content"] = (origin.writer, oracle.keys[wanted.key])
    return found


def _inside_the_page(owner: Owner, source: Owner) -> Relation:
    found: Relation = {}
    if source.head != owner.head:
        found["head"] = (source.head, owner.head)
    if source.token != owner.token:
        found["token"] = (source.token, owner.token)
    if source.field != owner.field and source.byte == owner.byte:
        found["field"] = (source.field, owner.field)
    elif source.cell_byte != owner.cell_byte:
        found["byte"] = (source.cell_byte, owner.cell_byte)
    return found


def _is_held(oracle: Expectation, origin: Origin, source: Owner) -> bool:
    """Is it what the source block holds now, or held when it was stored?"""
    held = [*oracle.contents.values(), *(s.content for stored in oracle.slots.values() for s in stored)]
    return any(c.key == origin.key and c.block == source.block for c in held)


def signature(relation: Collection[str]) -> str:
    """Return what a relation is, without ids: the same in every run and under every seed."""
    return "+".join(sorted(relation)) or "same place"


def describe(oracle: Expectation, stretches: list[Stretch]) -> str:
    """Say once where the bytes of ``stretches``, whose relations have one signature, came from."""
    relations = [relation_of(oracle, s) for s in stretches]
    names = relations[0].keys()
    pairs = {name: sorted({r[name] for r in relations}, key=str) for name in names}
    ranks = pairs.pop("rank", [])
    if not ranks:
        return _described(oracle, stretches, pairs)
    whose = f"rank {_either(r for r, _ in ranks)}'s (expected: rank {oracle.arena.rank}'s)"
    return f"{whose}: {_described(oracle, stretches, pairs)}" if pairs else whose


def _described(oracle: Expectation, stretches: list[Stretch], pairs: dict[str, list[Pair]]) -> str:
    names = pairs.keys()
    if "host" in names or "host guard" in names:
        return _from_host(pairs, guard="host guard" in names)
    if "guard" in names:
        return "what lies in a gap or guard of the buffer"
    if "outside" in names:
        return _of_owners([s.origin.owner for s in stretches if s.origin and s.origin.owner], oracle.arena.layout)
    shift = _constant_shift(oracle, stretches) if {"token", "head", "byte"} & names and len(stretches) > 1 else 0
    if shift and any(not _uniform(pairs[n]) for n in ("token", "head", "byte") if n in pairs):
        kept = [_part(n, p) for n, p in pairs.items() if n in ("layer", "block", "content")]
        return ", ".join([*kept, f"{_shifted(shift)} (the same shift everywhere)"])
    return ", ".join(_part(name, found) for name, found in pairs.items()) or "what belongs there"


def _of_owners(sources: list[Owner], layout: Layout) -> str:
    place = page_place(layout, sources)
    if len(sources) > 1:
        return f"what belongs to {place}"
    first = sources[0]
    return (
        f"what belongs to {place}, from token {first.token}, head {first.head}, byte {first.cell_byte} of the cell on"
    )


def _from_host(pairs: dict[str, list[Pair]], *, guard: bool) -> str:
    ((_, found),) = pairs.items()
    slots, writers = spans(int(slot) for slot, _ in found), {str(w) for _, w in found}
    if guard:
        return "what lies in a guard beside the host slots"
    why = "which no store wrote there" if writers == {BEFORE} else f"written by {' and '.join(sorted(writers))}"
    return f"old bytes of host slot {slots}, {why}"


def _part(name: str, pairs: list[Pair]) -> str:
    if name == "content":
        came, wanted = (_either(x) for x in zip(*pairs, strict=True))
        return f"an older content, written by {came} (expected: that of {wanted})"
    if name == "field":
        return _fields(pairs)
    numbers = [(int(a), int(b)) for a, b in pairs]
    if name == "byte":
        return _bytes(numbers)
    noun = _NOUNS[name]
    if len(numbers) == 1:
        return f"{noun} {numbers[0][0]}'s (expected: {noun} {numbers[0][1]}'s)"
    if len(numbers) == 2 and numbers[0] == numbers[1][::-1]:
        return f"{noun}s {numbers[0][0]} and {numbers[0][1]} swapped"
    if _uniform(pairs):
        return f"{noun} n{numbers[0][0] - numbers[0][1]:+d}'s where {noun} n's belong"
    return f"other {noun}s' ({_examples(numbers)})"


def _shifted(distance: int) -> str:
    return f"what lies {counted(abs(distance), 'byte')} {'further on' if distance > 0 else 'earlier'}"


def _fields(pairs: list[Pair]) -> str:
    if len(pairs) == 1:
        return f"{pairs[0][0]}'s (expected: {pairs[0][1]}'s)"
    if {(b, a) for a, b in pairs} == set(pairs):
        names = sorted({str(a) for a, _ in pairs})
        if all(name[0] in "kv" for name in names):
            return "K and V swapped"
        return f"fields {' and '.join(names)} swapped"
    return f"other fields' ({', '.join(f'{a} for {b}' for a, b in pairs[:3])})"


def _bytes(numbers: list[tuple[int, int]]) -> str:
    if len(numbers) == 1:
        return f"the cell from byte {numbers[0][0]} on (expected: from byte {numbers[0][1]} on)"
    if _uniform(numbers):
        return f"{_shifted(numbers[0][0] - numbers[0][1])} in the cell"
    return f"other bytes of the cell ({_examples(numbers)})"


def _either(words: Iterable[int | str]) -> str:
    return " or ".join(sorted({str(w) for w in words}))


def _uniform(pairs: Collection[tuple[int | str, int | str]]) -> bool:
    return len({int(a) - int(b) for a, b in pairs if isinstance(a, int) and isinstance(b, int)}) == 1


def _examples(numbers: list[tuple[int, int]]) -> str:
    return ", ".join(f"{a} for {b}" for a, b in sorted(numbers, key=lambda p: p[1])[:3]) + ", ..." * (len(numbers) > 3)


def _constant_shift(oracle: Expectation, stretches: list[Stretch]) -> int:
    """Return the distance in bytes from where the bytes should have come from, when it is the same for all; else 0."""
    layout, shifts = oracle.arena.layout, set()
    for stretch in stretches:
        owner, origin = stretch.owner, stretch.origin
        if owner is None or origin is None or origin.owner is None:
            return 0
        here = replace(owner, block=origin.owner.block, layer=origin.owner.layer)
        if layout.layers[owner.layer].kv_format != layout.layers[here.layer].kv_format:
            return 0
        shifts.add(origin.position - oracle.arena.base - position_of(layout, here))
    return shifts.pop() if len(shifts) == 1 else 0
