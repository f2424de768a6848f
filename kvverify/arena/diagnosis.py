"""From wrong bytes to words: whose they are, what they hold instead, and where that came from."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np

from kvverify.arena.candidates import NAN_WORDS, explain_short, known_cause, nan_altered
from kvverify.arena.compare import Mismatch
from kvverify.arena.expectation import Expectation
from kvverify.arena.geometry import Owner, locate
from kvverify.arena.host_diagnosis import host_place, host_what
from kvverify.arena.places import (
    cell_place,
    common_end,
    counted,
    groups_of,
    neighbour,
    outside_place,
    owner_words,
    role_of,
    spans,
    whole_pages,
)
from kvverify.arena.relation import describe, relation_of, signature
from kvverify.arena.stretch import Stretch, owners_of, stretches_of
from kvverify.layout.placement import Role

__all__ = ["Diagnosis", "diagnose", "spans"]

_SAMPLES = 2048  # wrong bytes whose owner is looked up
_NOT_WRITTEN = ("stale", "moved host")  # what a copy that ends too early leaves behind
_ORIGIN_UNKNOWN = (
    "unknown",
    "short",
    "zero",
    "constant",
)  # in this order they are put to a cause that is known by then
_DETAILS = 4  # further causes that are told


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What is wrong, in one line and in several; ``first`` locates the first wrong byte for the failure file."""

    headline: str
    details: list[str]
    first: dict[str, object]
    fingerprint: str


@dataclass(frozen=True, slots=True)
class _Cause:
    """Stretches that went wrong in the same way. ``name`` holds no ids."""

    name: str
    words: str
    stretches: list[Stretch]

    @property
    def weight(self) -> int:
        return sum(len(s.wrong) for s in self.stretches)


def diagnose(oracle: Expectation, mismatch: Mismatch, loaded: Collection[int], stored: Collection[int]) -> Diagnosis:
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
        kind, where = host_place(oracle, mismatch, stored)
        what = host_what(oracle, mismatch)
        headline = f"{counted(mismatch.total, 'wrong host byte')}: {where}"
        return Diagnosis(headline, [what] if what else [], first, _fingerprint("host", kind))
    return _diagnose_device(oracle, mismatch, loaded, first)


def _diagnose_device(
    oracle: Expectation, mismatch: Mismatch, loaded: Collection[int], first: dict[str, object]
) -> Diagnosis:
    layout, groups = oracle.arena.layout, groups_of(oracle)
    sample = np.unique(np.linspace(0, len(mismatch.positions) - 1, _SAMPLES).astype(np.int64))
    owners = [locate(layout, int(mismatch.positions[i]) - oracle.arena.base, groups) for i in sample]
    owned = [o for o in owners if o is not None]
    foreign = [o for o in owned if o.block not in loaded]
    causes = _causes(oracle, stretches_of(oracle, mismatch, groups))
    what = causes[0].words
    kind, where = _where(oracle, mismatch, owned, foreign, groups)
    beside = neighbour(oracle, mismatch, loaded, groups) if kind != "target" else ""
    details = [f"also {_cause_place(oracle, c)}: {c.words}" for c in causes[1 : 1 + _DETAILS]]
    if len(causes) > 1 + _DETAILS:
        details.append(f"and {len(causes) - 1 - _DETAILS} further causes")
    if foreign and kind == "target":
        details.append(f"also damaged, though no step named them: blocks {spans(o.block for o in foreign)}")
    if owned and len(owned) < len(owners):
        outside = outside_place(oracle, mismatch.positions, groups)
        details.append(f"bytes that belong to no block are damaged too: {outside}")
    if owners[0] is not None:
        first = {**first, **owner_words(layout, owners[0])}
    headline = "; ".join(part for part in (f"{_total(mismatch)}{where}", beside, what) if part)
    fields = sorted({f"{layout.layers[o.layer].kv_format}.{o.field}" for o in owned})
    return Diagnosis(headline, details, first, _fingerprint("device", kind, causes[0].name, *fields))


def _total(mismatch: Mismatch) -> str:
    return counted(mismatch.total, "wrong byte")


def _where(
    oracle: Expectation, mismatch: Mismatch, owned: list[Owner], foreign: list[Owner], groups: dict[int, int]
) -> tuple[str, str]:
    """Return the kind of place (gap, foreign or target) and words for it."""
    layout = oracle.arena.layout
    if not owned:
        return "gap", f" outside every block: {outside_place(oracle, mismatch.positions, groups)}"
    place = whole_pages(layout, owned, mismatch.total) or cell_place(layout, owned)
    if all(role_of(layout, o) is Role.PADDING for o in owned):
        place += ", padding that is neither what it was nor the source's"
    if len(foreign) == len(owned):
        return "foreign", f" in blocks that no step named: {place}"
    return "target", f": {place}"


def _cause_place(oracle: Expectation, cause: _Cause) -> str:
    owners = owners_of(cause.stretches)
    return cell_place(oracle.arena.layout, owners) if owners else "outside every block"


def _causes(oracle: Expectation, stretches: list[Stretch]) -> list[_Cause]:
    """Put together what went wrong in the same way, that of the most bytes first."""
    alike: dict[str, list[Stretch]] = {}
    for stretch in stretches:
        name = stretch.verdict
        if name == "moved":
            name = f"moved {signature(relation_of(oracle, stretch))}"
        alike.setdefault(name, []).append(stretch)
    causes: dict[str, _Cause] = {}
    for name in sorted(alike, key=lambda name: _ORIGIN_UNKNOWN.index(name) if name in _ORIGIN_UNKNOWN else -1):
        cause = _known(oracle, name, alike[name], causes) or _cause(oracle, name, alike[name])
        earlier = causes[cause.name].stretches if cause.name in causes else []
        causes[cause.name] = replace(cause, stretches=earlier + cause.stretches)
    return sorted(causes.values(), key=lambda c: -c.weight)


def _known(oracle: Expectation, name: str, stretches: list[Stretch], causes: dict[str, _Cause]) -> _Cause | None:
    """Return the cause found so far that also explains stretches which, by their length or by chance, do not name their origin."""
    if name in _ORIGIN_UNKNOWN and causes:
        found = known_cause(oracle, stretches, causes)
        return replace(causes[found], stretches=stretches) if found else None
    return None


def _cause(oracle: Expectation, name: str, stretches: list[Stretch]) -> _Cause:
    if name == "short":
        words, name = explain_short(oracle, stretches)
    elif name == "unknown" and nan_altered(oracle, stretches):
        words, name = NAN_WORDS, "nan"
    else:
        words = _words(oracle, name, stretches)
    end = common_end(oracle, stretches)
    if end:
        words += f" ({end} were cut off)" if name in _NOT_WRITTEN else f" ({end})"
    return _Cause(name, words, stretches)


def _words(oracle: Expectation, name: str, stretches: list[Stretch]) -> str:
    match name.split(maxsplit=1)[0]:
        case "stale":
            return "still the previous occupant's bytes: never written"
        case "zero":
            return "zeros"
        case "constant":
            values = sorted({int(s.data[0]) for s in stretches})
            return f"the same byte over and over: {', '.join(f'0x{v:02X}' for v in values[:4])}"
        case "moved":
            return f"they hold {describe(oracle, stretches)}"
        case "occupant":
            blocks = spans(
                s.origin.owner.block for s in stretches if s.origin is not None and s.origin.owner is not None
            )
            return (
                f"they hold what lay in the place of block {blocks}'s bytes before a load brought those: read too early"
            )
        case _:
            change = _same_change(oracle, stretches)
            if change:
                return f"each is the expected byte with the bits 0x{change:02X} flipped"
            return "bytes that nobody wrote in this sequence: changed on the way"


def _same_change(oracle: Expectation, stretches: list[Stretch]) -> int:
    """Return the bits that are flipped in every wrong byte of ``stretches``, 0 where they are not the same everywhere."""
    changes = [s.data ^ oracle.expected_bytes(s.start, len(s.data)) for s in stretches]
    found = np.unique(np.concatenate([c[s.wrong] for c, s in zip(changes, stretches, strict=True)]))
    return int(found[0]) if len(found) == 1 else 0


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:12]
