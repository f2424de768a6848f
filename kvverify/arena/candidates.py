"""Where wrong bytes may come from that are too few to name their address: guesses that fit all of them.

Many short stretches together prove as much as one long one: a guess that predicts eight bytes or more is named without doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kvverify.arena.contents import contents
from kvverify.arena.expectation import BEFORE, Content, Expectation
from kvverify.arena.geometry import Owner, position_of
from kvverify.arena.memory import Bytes
from kvverify.arena.origin import MIN_RUN
from kvverify.arena.payload import rows
from kvverify.arena.places import counted
from kvverify.arena.relation import wanted_of
from kvverify.arena.stretch import Stretch, owners_of
from kvverify.layout.placement import Field, Layer

_SHOWN = 4
NAN_WORDS = "NaN patterns were altered: the bytes went through float arithmetic"
_NAN = {
    "float16": ("<u2", 0x7C00, 0x03FF),
    "bfloat16": ("<u2", 0x7F80, 0x007F),
    "float32": ("<u4", 0x7F80_0000, 0x7F_FFFF),
}


@dataclass(frozen=True, slots=True)
class Guess:
    """A place the bytes may come from: ``predict`` gives its bytes for a stretch, None where there is no such place."""

    words: str
    name: str  # of the cause it would be: as of stretches long enough to name their origin
    predict: Callable[[Stretch], Bytes | None]


def explain_short(oracle: Expectation, stretches: list[Stretch]) -> tuple[str, str]:
    """Return words for ``stretches`` of under 8 bytes each, and a name of the cause without ids."""
    if nan_altered(oracle, stretches):
        return NAN_WORDS, "nan"
    fitting = _fitting(oracle, stretches)
    if not fitting:
        few = "too few bytes in a row to name their origin"
        return f"{few}, and they fit no other block, layer, head, token, field or shift", "short"
    if sum(len(s.wrong) for s in stretches) >= MIN_RUN:
        name, words = next(iter(fitting.items()))
        return f"they hold {', '.join(words[:_SHOWN])}", name
    listed = [w for words in fitting.values() for w in words]
    more = "; or ..." if len(listed) > _SHOWN else ""
    return f"too few bytes to be sure of their origin, candidates: {'; or '.join(listed[:_SHOWN])}{more}", "short"


def _fitting(oracle: Expectation, stretches: list[Stretch]) -> dict[str, list[str]]:
    """Return the kinds of guesses of which nearly every stretch fits one, with the words of those that do, best first."""
    fits: dict[str, dict[str, set[int]]] = {}
    for guess in _guesses(oracle, stretches):
        hits = {i for i, s in enumerate(stretches) if _fits(guess, s)}
        if hits:
            fits.setdefault(guess.name, {}).setdefault(guess.words, set()).update(hits)
    found = {}
    for name, by_words in fits.items():
        left, words = set(range(len(stretches))), []
        for text, hits in sorted(by_words.items(), key=lambda item: -len(item[1])):
            if hits & left or len(hits) == len(stretches):
                words.append(text)
                left -= hits
        if len(left) <= len(stretches) // 10:
            found[name] = words
    return found


def known_cause(oracle: Expectation, stretches: list[Stretch], known: Collection[str]) -> str:
    """Return the name of a cause found elsewhere that ``stretches`` fit as well, '' when there is none."""
    fitting = _fitting(oracle, stretches)
    if not fitting and "unknown" in known:
        return "unknown"
    return next((name for name in fitting if name in known), "")


def nan_altered(oracle: Expectation, stretches: list[Stretch]) -> bool:
    """Do all wrong bytes lie in elements of a float view that should be NaN patterns?"""
    layers = oracle.arena.layout.layers
    for stretch in stretches:
        if stretch.owner is None or layers[stretch.owner.layer].element not in _NAN:
            return False
        kind, exponent, mantissa = _NAN[layers[stretch.owner.layer].element]
        size = np.dtype(kind).itemsize
        base = oracle.arena.base
        for wrong in np.unique((stretch.wrong + stretch.start - base) // size):
            expected = oracle.expected_bytes(base + int(wrong) * size, size).view(kind)[0]
            if expected & exponent != exponent or not expected & mantissa:
                return False
    return bool(stretches)


def _fits(guess: Guess, stretch: Stretch) -> bool:
    predicted = guess.predict(stretch)
    return predicted is not None and np.array_equal(predicted, stretch.data)


def _guesses(oracle: Expectation, stretches: list[Stretch]) -> Iterator[Guess]:
    yield Guess("zeros", "zero", lambda s: np.zeros_like(s.data))
    yield Guess("the expected bytes with one bit flipped in each", "bit", partial(_one_bit_each, oracle))
    if len(owners_of(stretches)) < len(stretches):
        return
    yield from _other_contents(oracle)
    for step in (1, -1, 2, -2, 3, -3, 4, -4, 5, -5, 6, -6, 7, -7, 8, -8):
        for name in ("layer", "head", "token"):
            yield Guess(f"{name} n{step:+d}'s where {name} n's belong", f"moved {name}", _moved(oracle, name, step))
        words = f"what lies {counted(abs(step), 'byte')} {'further on' if step > 0 else 'earlier'}"
        yield Guess(words, "moved byte", partial(_at, oracle, change=_unchanged, step=step))
    yield Guess(
        "K's where V's belong and V's where K's belong", "moved field", partial(_at, oracle, change=_partner(oracle))
    )


def _other_contents(oracle: Expectation) -> Iterator[Guess]:
    held = [*oracle.contents.values(), *(s.content for stored in oracle.slots.values() for s in stored)]
    for content in dict.fromkeys(held):
        words = f"block {content.block}'s, written by {oracle.keys[content.key]}"
        yield Guess(words, "moved block", partial(_of_content, oracle, content=content))
    before = next(key for key, writer in oracle.keys.items() if writer == BEFORE)
    for key, writer in oracle.keys.items():
        words = f"an older content, written by {writer}"
        yield Guess(words, "moved content", partial(_at, oracle, change=_unchanged, key=key))
    yield Guess(
        "what lay there before the sequence",
        "moved content",
        lambda s: rows([before], [s.start], len(s.data))[0],
    )


def _of_content(oracle: Expectation, stretch: Stretch, content: Content) -> Bytes | None:
    owner = stretch.owner
    if owner is None or oracle.arena.layout.layers[owner.layer].group != content.group:
        return None
    position = position_of(oracle.arena.layout, replace(owner, block=content.block)) + oracle.arena.base
    return _written(oracle, content.key, position, len(stretch.data))


def _unchanged(owner: Owner) -> Owner:
    return owner


def _at(
    oracle: Expectation,
    stretch: Stretch,
    *,
    change: Callable[[Owner], Owner | None],
    step: int = 0,
    key: int | None = None,
) -> Bytes | None:
    """Return what would be found had the changed owner's bytes, ``step`` further on, been taken from the right source."""
    if stretch.owner is None:
        return None
    wanted, owner = wanted_of(oracle, stretch.owner), change(stretch.owner)
    if wanted is None or owner is None:
        return None
    position = position_of(oracle.arena.layout, replace(owner, block=wanted.block)) + oracle.arena.base + step
    if position < 0:
        return None
    return _written(oracle, wanted.key if key is None else key, position, len(stretch.data))


def _written(oracle: Expectation, key: int, position: int, length: int) -> Bytes:
    written = rows if oracle.keys[key] == BEFORE else contents
    found: Bytes = written([key], [position], length)[0]
    return found


def _moved(oracle: Expectation, name: str, step: int) -> Callable[[Stretch], Bytes | None]:
    def change(owner: Owner) -> Owner | None:
        layers = oracle.arena.layout.layers
        here = layers[owner.layer]
        if name == "layer":
            number = owner.layer + step
            same = 0 <= number < len(layers) and (layers[number].kv_format, layers[number].group) == (
                here.kv_format,
                here.group,
            )
            return replace(owner, layer=number) if same else None
        field = _field(here, owner.field)
        count = field.heads if name == "head" else field.tokens * here.rows_per_block
        value = (owner.head if name == "head" else owner.token) + step
        if not 0 <= value < count:
            return None
        return replace(owner, head=value) if name == "head" else replace(owner, token=value)

    return partial(_at, oracle, change=change)


def _partner(oracle: Expectation) -> Callable[[Owner], Owner | None]:
    def change(owner: Owner) -> Owner | None:
        layer = oracle.arena.layout.layers[owner.layer]
        name = {"k": "v", "v": "k"}.get(owner.field[0], "") + owner.field[1:]
        other = next((f for f in layer.fields if f.name == name), None)
        if other is None or other.length != _field(layer, owner.field).length:
            return None
        return replace(owner, field=name)

    return change


def _field(layer: Layer, name: str) -> Field:
    return next(f for f in layer.fields if f.name == name)


def _one_bit_each(oracle: Expectation, stretch: Stretch) -> Bytes | None:
    expected = oracle.expected_bytes(stretch.start, len(stretch.data))
    flipped = (expected ^ stretch.data)[stretch.wrong]
    return stretch.data if all(int(f).bit_count() == 1 for f in flipped) else None
