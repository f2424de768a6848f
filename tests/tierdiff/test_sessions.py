"""Prompts of sessions: only the cache can know the secret. Answers: whose content they hold."""

from __future__ import annotations

import asyncio
import itertools
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvverify.live.answer import Answer
from kvverify.live.engine import Evidence, Expected
from kvverify.live.prompt import Prompt
from kvverify.tierdiff.isolation import measured, waves, without_shared
from kvverify.tierdiff.sessions import Session, certain, early_sessions, examine, secret_sessions


async def by_bytes(text: str, special: bool) -> list[int]:
    """A token is a byte; 1 begins a prompt."""
    return [*([1] if special else []), *text.encode()]


async def by_words(text: str, special: bool) -> list[int]:
    """A token is a word with what stands before it."""
    known = [w if w.startswith("\n") else f" {w}" for w in text.replace("\n", " \n").split(" ") if w]
    return [*([1] if special else []), *(2 + sum(word.encode()) * 31 % 997 + len(word) for word in known)]


@given(count=st.integers(1, 12), unit=st.sampled_from([16, 32, 64, 256]), seed=st.integers(0, 2**32))
def test_secrets_stand_in_what_the_lower_tier_holds_and_nowhere_else(count: int, unit: int, seed: int) -> None:
    """All prompts are equally long, share exactly the first units, and end with the same question."""
    made = asyncio.run(
        secret_sessions(by_bytes, count, depths=count, unit=unit, shared_units=1, own_units=2, seed=seed)
    )
    bodies = [s.prompt.body for s in made]
    assert len({len(body) for body in bodies}) == 1
    cached = len(bodies[0]) // unit * unit
    question = len("\nsecret code:")
    assert len(bodies[0]) - question == (len(bodies[0]) - question) // unit * unit
    for session, body in zip(made, bodies, strict=True):
        assert isinstance(body, list)
        text = bytes(body).decode()
        assert text.count(session.secret) == 1
        assert text.index(session.secret) + len(session.secret) <= cached
        assert bytes(body[unit:]).decode().startswith(("\nsecret code:", " "))
        assert body[:unit] == bodies[0][:unit]
        assert body[-question:] == bodies[0][-question:]
    for a, b in itertools.combinations(made, 2):
        assert a.secret[:6] != b.secret[:6]
        assert a.prompt.body[unit:] != b.prompt.body[unit:]


def test_secrets_stand_at_different_places() -> None:
    """Damage to any block costs some session its answer."""
    made = asyncio.run(secret_sessions(by_bytes, 8, depths=8, unit=16, shared_units=1, own_units=8, seed=3))
    blocks = set()
    for s in made:
        assert isinstance(s.prompt.body, list)
        at = bytes(s.prompt.body).decode().index(s.secret)
        blocks |= {at // 16, (at + 7) // 16}
    assert blocks >= set(range(1, 9))


@pytest.mark.parametrize("tokenize", [by_bytes, by_words])
def test_early_sessions_differ_in_one_token(tokenize: object) -> None:
    """It is near the beginning, and all else is equal."""
    made = asyncio.run(early_sessions(tokenize, 6, unit=32, units=3, seed=5))  # type: ignore[arg-type]
    assert len(made) == 6
    for a, b in itertools.combinations(made, 2):
        assert isinstance(a.prompt.body, list)
        assert isinstance(b.prompt.body, list)
        different = [i for i, (x, y) in enumerate(zip(a.prompt.body, b.prompt.body, strict=True)) if x != y]
        assert len(different) == 1
        assert different[0] < 16


def test_no_early_session_holds_the_word_of_another() -> None:
    """SmolLM2 did not know its own word and gave one of the text instead, from HBM as well: that looked like a leak."""
    parts = [""]

    async def whole_words(text: str, special: bool) -> list[int]:
        parts.extend(p for p in re.findall(r" \w+|\W|\w+", text) if p not in parts)
        return [parts.index(p) for p in re.findall(r" \w+|\W|\w+", text)]

    made = asyncio.run(early_sessions(whole_words, 8, unit=32, units=6, seed=11))
    words = {s.secret for s in made}
    assert {"river", "stone"} <= words
    for s in made:
        assert isinstance(s.prompt.body, list)
        held = [parts[token].strip() for token in s.prompt.body]
        assert [word for word in held if word in words] == [s.secret]


def test_a_tokenizer_without_such_words_gives_none() -> None:
    """Every word of another length."""

    async def odd(text: str, special: bool) -> list[int]:
        return list(range(sum(text.encode())))

    assert asyncio.run(early_sessions(odd, 6, unit=32, units=3, seed=5)) == []


def _session(name: str, secret: str) -> Session:
    return Session(name, Prompt([1], 1, secret, name))


ALL = [_session("a", "12345678"), _session("b", "87654321"), _session("c", "55556666")]


@pytest.mark.parametrize(
    ("text", "right", "foreign"),
    [
        (" 12345678\n", True, ()),
        (" 1234567", False, ()),
        (" 87654321", False, ("b",)),
        (" 12345678 or 87654321", True, ("b",)),
        (" 12387654399", False, ("b",)),
        (" 876543 555566", False, ("b", "c")),
        (" 87654 1", False, ()),
        ("", False, ()),
    ],
)
def test_whose_content_an_answer_holds(text: str, right: bool, foreign: tuple[str, ...]) -> None:
    """Its own whole secret is right; six digits of another one are foreign, wherever they stand."""
    found = examine(text, ALL[0], ALL)
    assert (found.right, found.foreign) == (right, foreign)


def test_words_count_only_at_the_beginning() -> None:
    """An answer goes on with whatever follows the secret; that may hold another one's word."""
    words = [_session("early river", "river"), _session("early A", "A")]
    assert examine(" river A stone", words[0], words) == examine(" river", words[0], words)
    assert examine(" A river", words[0], words).foreign == ("early A",)


@given(pool=st.one_of(st.none(), st.integers(0, 5000)), count=st.integers(0, 40), most=st.integers(1, 50))
def test_waves_hold_every_session_once_and_fit(pool: int | None, count: int, most: int) -> None:
    """HBM holds a wave, unless it cannot hold even one session."""
    sessions = [Session(str(n), Prompt([1] * 100, 100, "1", str(n)), 32) for n in range(count)]
    cut = waves(sessions, pool, most=most)
    assert [s for wave in cut for s in wave] == sessions
    assert all(len(wave) <= most for wave in cut)
    if pool is not None:
        assert all(len(wave) == 1 or len(wave) * 116 <= pool for wave in cut)


def test_what_is_left_of_an_expectation_when_hbm_held_the_prefix() -> None:
    """Bytes shrink with the hits; a second source may have counted the lookup or the load."""
    whole = Expected(1000, 1000, 10, 64000, {"looked_up": 1000, "loaded": 50})
    left = without_shared(whole, 200, Evidence(witness={"looked_up": 1000, "loaded": 40}))
    assert left == Expected(800, 200, 10, 51200, {"looked_up": 1000, "loaded": 40})
    assert without_shared(whole, 0, Evidence()) == Expected(1000, 0, 10, 64000, {"looked_up": 1000, "loaded": 50})


def test_nothing_measured_excludes_nothing() -> None:
    """No answers, no rate."""
    assert measured([]).excluded_rate == -1.0


def test_a_secret_is_certain_where_none_of_its_tokens_is_a_toss_up() -> None:
    """What follows the secret does not count, what stands before it does."""

    def answer(*parts: tuple[str, float]) -> Answer:
        return Answer("h", texts=tuple(t for t, _ in parts), logprobs=tuple(math.log(p) for _, p in parts))

    assert certain(answer((" 12", 0.9), ("34", 0.61), (" and", 0.1)), "1234")
    assert not certain(answer((" 12", 0.9), ("34", 0.59)), "1234")
    assert not certain(answer((" well", 0.3), (" 1234", 0.9)), "1234")
