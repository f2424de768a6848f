from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("openai", reason="the live extra is not installed")
pytest.importorskip("httpx2", reason="the live extra is not installed")

from kvverify.errors import UsageError
from kvverify.live.client import Client
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import EngineInfo
from kvverify.live.prompt import Prompt
from kvverify.live.prompts import Tokenizer, Writer, count_by_usage, equal_length
from kvverify.live.story import sentences, tell
from tests.live.stub import Stub, serve

BOS = 1
VOCABULARY: dict[str, int] = {}


def pieces(text: str) -> list[int]:
    """A tokenizer in which long words have several tokens and a space belongs to its word, as in byte-pair encodings."""
    found = re.findall(r" ?[A-Za-z]{1,5}|[0-9]{1,3}|\s|[^\w\s]", text)
    return [VOCABULARY.setdefault(piece, len(VOCABULARY) + 10) for piece in found]


def text_of(ids: list[int]) -> str:
    words = {number: piece for piece, number in VOCABULARY.items()}
    return "".join(words.get(i, "") for i in ids)


def as_vllm(body: Any) -> Any:
    if "prompt" not in body:
        return {"error": "no prompt"}
    return {"tokens": [BOS] * body["add_special_tokens"] + pieces(body["prompt"]), "max_model_len": 4096}


def as_llama(body: Any) -> Any:
    return {"tokens": [BOS] * body.get("add_special", False) + pieces(body.get("content", ""))}


def tokenizing(what: Callable[[Tokenizer], Awaitable[Any]], reply: Callable[[Any], Any] = as_vllm) -> Any:
    async def one(url: str) -> Any:
        async with Control(url) as control:
            return await what(Tokenizer(control, "m"))

    with serve(Stub(replies={"/tokenize": reply})) as stub:
        return asyncio.run(one(stub.url))


@pytest.mark.parametrize("reply", [as_vllm, as_llama])
@pytest.mark.parametrize("tokens", [81, 97, 1_025, 32_769])
def test_prompts_by_ids_have_exactly_so_many_tokens_and_hold_their_secret(tokens: int, reply: Any) -> None:
    async def write(tokenizer: Tokenizer) -> list[Prompt]:
        writer = Writer(tokenizer, seed=1)
        return [await writer.write(tokens, number) for number in range(3)]

    prompts = tokenizing(write, reply)
    for number, prompt in enumerate(prompts):
        assert len(prompt.body) == prompt.tokens == tokens
        assert prompt.body[0] == BOS
        text = text_of(prompt.body)
        story = tell(1, number)
        assert text.startswith(story.opening)
        assert text.endswith(story.question)
        assert text.count(prompt.secret) == 1
        assert story.needle in text
        assert text.index(story.needle) < 0.75 * len(text)
    for one, other in itertools.combinations(prompts, 2):
        assert one.body[:16] != other.body[:16]
        assert one.secret != other.secret
        assert one.hash != other.hash


def test_prompts_as_text_meet_the_length_by_asking_for_usage() -> None:
    async def write(url: str) -> list[Prompt]:
        async with Client(url, "m") as client:
            writer = Writer(count_by_usage(client, "count"), seed=2)
            return [await writer.write(tokens, n) for n, tokens in enumerate((80, 131, 777, 4_001))]

    with serve(Stub(count=lambda text: 1 + len(pieces(text)))) as stub:
        prompts = asyncio.run(write(stub.url))
    for number, prompt in enumerate(prompts):
        assert isinstance(prompt.body, str)
        assert 1 + len(pieces(prompt.body)) == prompt.tokens == (80, 131, 777, 4_001)[number]
        assert tell(2, number).needle in prompt.body
    assert len(stub.bodies) < 25 * len(prompts)
    assert {(b["max_tokens"], b["cache_salt"]) for b in stub.bodies} == {(1, "count")}


def test_fillers_are_never_seen_before_and_cover_what_hbm_holds() -> None:
    info = EngineInfo("engine", "m", block_tokens=16, capacity_tokens={"hbm": 4_000}, max_context=1_024)

    async def write(tokenizer: Tokenizer) -> list[list[Prompt]]:
        writer = Writer(tokenizer, seed=3)
        return [await writer.fillers(info), await writer.fillers(info), [await writer.write(1_000, 0)]]

    first, second, prompts = tokenizing(write)
    assert all(len(p.body) == 1_008 for p in first)  # a multiple of 16, and room for a token of the answer
    assert sum(len(p.body) for p in first) >= 4_000 + 1_008
    everything = [*first, *second, *prompts]
    assert len({tuple(p.body[:16]) for p in everything}) == len(everything)
    assert len({p.secret for p in everything}) == len(everything)


def test_a_pool_smaller_than_the_context_is_filled_by_prompts_that_fit_into_it() -> None:
    info = EngineInfo("engine", "m", block_tokens=16, capacity_tokens={"hbm": 320}, max_context=4_096)
    fillers = tokenizing(lambda tokenizer: Writer(tokenizer, seed=3).fillers(info))
    assert {len(p.body) for p in fillers} == {304}


@pytest.mark.parametrize("field", ["block_tokens", "capacity_tokens", "max_context"])
def test_fillers_need_to_know_the_pool(field: str) -> None:
    known: dict[str, Any] = {"block_tokens": 16, "capacity_tokens": {"hbm": 320}, "max_context": 4_096}
    known.pop(field)
    with pytest.raises(UsageError, match="does not tell"):
        tokenizing(lambda tokenizer: Writer(tokenizer, seed=3).fillers(EngineInfo("engine", "m", **known)))


def test_a_prompt_too_short_for_its_question_is_refused_with_the_least_length() -> None:
    with pytest.raises(UsageError, match="expected at least") as caught:
        tokenizing(lambda tokenizer: Writer(tokenizer, seed=1).write(20, 0))
    least = int(str(caught.value).rsplit(" ", 1)[1])
    assert tokenizing(lambda tokenizer: Writer(tokenizer, seed=1).write(least, 0)).tokens == least


@pytest.mark.parametrize("reply", [lambda _: {"tokens": "none"}, lambda _: [1], lambda _: {"tokens": [1.5]}])
def test_a_server_without_a_usable_tokenizer(reply: Any) -> None:
    assert tokenizing(lambda tokenizer: tokenizer.works(), reply) is False
    with pytest.raises(ServerProblem, match="expected token ids"):
        tokenizing(lambda tokenizer: tokenizer.ids("word"), reply)


def test_secrets_and_openings_are_unique_and_no_secret_stands_in_the_filler_text() -> None:
    stories = [tell(7, number) for number in (*range(2_000), *range(450_000, 452_000))]
    assert len({s.secret for s in stories}) == len({s.opening for s in stories}) == 4_000
    assert all(re.fullmatch(r"\d{6}", s.secret) for s in stories)
    assert not re.search(r"\d{3}", " ".join(sentences()))
    assert tell(7, 3) == tell(7, 3) != tell(8, 3)


@given(st.sampled_from([1, 16, 32, 128, 784]), st.integers(1, 16), st.integers(3, 40), st.data())
def test_the_length_lets_both_tiers_hit_the_same_number_of_tokens(
    block: int, blocks: int, units: int, data: Any
) -> None:
    info = EngineInfo("engine", "m", block_tokens=block, hit_tokens=block * blocks)
    tail = data.draw(st.none() | st.integers(1, max(1, block - 1)))
    tokens = equal_length(info, units, tail=tail)
    hbm = (tokens - 1) // block * block  # never the last token, whole blocks
    lower = tokens // (block * blocks) * block * blocks  # whole units, the last token included where it fills one
    assert hbm == units * block * blocks
    if block > 1:
        assert lower == hbm
        assert 1 <= tokens - hbm < block


@pytest.mark.parametrize(
    ("known", "options", "words"),
    [
        ({}, {}, "does not tell its block size"),
        ({"block_tokens": 16}, {"units": 2}, "at least 3"),
        ({"block_tokens": 16}, {"tail": 16}, "expected 1 to 15"),
        ({"block_tokens": 16}, {"tail": 0}, "expected 1 to 15"),
        (
            {"block_tokens": 16, "hit_tokens": 256, "max_context": 1024},
            {"units": 4, "room": 16},
            "at most 3 units of 256",
        ),
    ],
)
def test_lengths_that_prove_nothing_are_refused(known: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        equal_length(EngineInfo("engine", "m", **known), **options)
