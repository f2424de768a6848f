from __future__ import annotations

import asyncio
import re
import socket

import pytest

pytest.importorskip("openai", reason="the live extra is not installed")
pytest.importorskip("httpx2", reason="the live extra is not installed")

from kvverify.live.client import Answer, Client
from kvverify.live.prompt import Prompt, prompt_hash
from kvverify.live.stream import name_of
from tests.live.stub import Stub, serve


def ask(stub: Stub, prompt: str | list[int] | Prompt = "hello", **options: object) -> Answer:
    timeout = options.pop("timeout_s", 5.0)
    key = options.pop("api_key", None)

    async def one() -> Answer:
        async with Client(stub.url, "m", timeout_s=timeout, api_key=key) as client:  # type: ignore[arg-type]
            return await client.complete(prompt, max_tokens=4, **options)  # type: ignore[arg-type]

    return asyncio.run(one())


def test_a_good_answer_has_ids_texts_and_logprobs_of_one_length() -> None:
    with serve(Stub(cached=16)) as stub:
        answer = ask(stub, [1, 2, 3])
    assert answer.error == ""
    assert answer.tokens == (1000, 1001, 1002, 1003)
    assert answer.texts == (" t0", " t1", " t2", " t3")
    assert answer.logprobs == (-0.25, -0.265625, -0.28125, -0.296875)
    assert (answer.text, answer.prompt_tokens, answer.cached_tokens) == (" t0 t1 t2 t3", 20, 16)
    assert 0 < answer.ttft <= answer.seconds
    assert answer.itl >= 0
    assert answer.prompt_hash == prompt_hash([1, 2, 3]) != prompt_hash([1, 2, 4])


def test_the_request_is_greedy_asks_for_usage_and_ids_and_never_for_prompt_logprobs() -> None:
    with serve(Stub()) as stub:
        ask(stub, Prompt([5, 6], 2), salt="pepper", extra={"ignore_eos": True})
    (body,) = stub.bodies
    assert body == {
        "model": "m",
        "prompt": [5, 6],
        "max_tokens": 4,
        "logprobs": 1,
        "temperature": 0.0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "cache_salt": "pepper",
        "ignore_eos": True,
    }


def test_usage_without_details_leaves_cached_tokens_unknown() -> None:
    with serve(Stub(cached=None)) as stub:
        assert ask(stub).cached_tokens == -1


def test_tokens_without_ids_are_named_by_their_strings() -> None:
    with serve(Stub(ids=False)) as stub:
        answer = ask(stub)
    assert answer.tokens == tuple(map(name_of, (" t0", " t1", " t2", " t3")))
    assert len(set(answer.tokens)) == 4
    assert max(answer.tokens) < 0


def test_logprobs_in_the_form_of_llama_cpp() -> None:
    with serve(Stub(mode="llama", ids=False, cached=None)) as stub:
        answer = ask(stub)
    assert (answer.tokens, answer.logprobs, answer.cached_tokens) == ((50, 51, 52, 53), (-0.5,) * 4, 7)


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("500", "status 500: .*engine core died"),
        ("503-html", "status 503: .*upstream down"),
        ("404-model", "status 404: .*model `m` does not exist"),
        ("400-context", "status 400: .*maximum context length is 64"),
        ("redirect", "status 307"),
        ("reset", "after 0 parts"),
        ("dies", "after 2 parts"),
        ("cut", "the stream was cut: 2 parts and 2 tokens"),
        ("no-usage", "cut before the usage came"),
        ("not-sse", "the stream was cut: 0 parts"),
        ("bad-json", "expected JSON in the stream"),
        ("bad-utf8", "expected JSON in the stream"),
        ("list", "part 0 of the answer is of another form"),
        ("no-choices", "part 0 of the answer is of another form"),
        ("choice-is-text", "part 0 of the answer is of another form"),
        ("error-inside", "EngineDeadError"),
        ("null", "token 1 is None"),
        ("nan", "token 1 is nan"),
        ("infinite", "token 0 is -inf"),
        ("text", "token 0 is '-1'"),
        ("bool", "token 0 is True"),
        ("no-logprobs", "generated 4 tokens, logprobs came for 3"),
        ("unpaired", "5 token strings and 4 logprobs"),
        ("fewer-ids", "3 token ids and 4 logprobs"),
        ("odd-ids", "token id of generated token 0 is 'x'"),
        ("odd-usage", "usage is not in tokens"),
    ],
)
def test_what_a_server_does_wrong_is_an_error_and_never_a_value(mode: str, words: str) -> None:
    with serve(Stub(mode=mode)) as stub:
        answer = ask(stub)
    assert re.search(words, answer.error)
    assert "\n" not in answer.error
    assert (answer.tokens, answer.logprobs, answer.text, answer.prompt_tokens) == ((), (), "", -1)
    assert len(stub.bodies) == 1  # never sent twice


@pytest.mark.parametrize(("mode", "parts"), [("slow", "0 parts"), ("drip", "[12] parts")])
def test_the_time_limit_holds_for_the_whole_answer(mode: str, parts: str) -> None:
    with serve(Stub(mode=mode)) as stub:
        answer = ask(stub, timeout_s=0.5)
    assert re.search(f"no complete answer within 0.5 s, {parts}", answer.error)
    assert answer.seconds < 2


def test_a_server_that_is_down() -> None:
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        answer = ask(Stub(url=f"http://127.0.0.1:{taken.getsockname()[1]}"))
    assert "Connection error" in answer.error


def test_the_key_comes_from_the_environment_and_never_into_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "another")
    monkeypatch.setenv("KVVERIFY_API_KEY", "s3cr3t-key-9")
    monkeypatch.setenv("OPENAI_ORG_ID", "my-organisation")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "my-project")
    with serve(Stub(mode="500-key")) as stub:
        answer = ask(stub)
    assert "authorization: bearer s3cr3t-key-9" in stub.headers[0].lower()
    assert "my-organisation" not in stub.headers[0]
    assert "my-project" not in stub.headers[0]
    assert "bad key *** here" in answer.error


def test_the_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    with serve(Stub()) as stub:
        assert ask(stub).error == ""


@pytest.mark.parametrize("concurrency", [1, 3])
def test_no_more_requests_at_once_than_asked_for(concurrency: int) -> None:
    async def many(url: str) -> list[Answer]:
        async with Client(url, "m", concurrency=concurrency) as client:
            return await asyncio.gather(*(client.complete(f"p{i}", max_tokens=4) for i in range(9)))

    with serve(Stub(mode="pause")) as stub:
        answers = asyncio.run(many(stub.url))
    assert [a.error for a in answers] == [""] * 9
    assert stub.most_active == concurrency


def test_no_request_is_lost_on_a_connection_that_the_server_is_about_to_close() -> None:
    """82 of 10,500 samples asked of vLLM on an H200 ended in a ReadError; llama.cpp closed a connection right after an answer."""

    async def two() -> list[Answer]:
        async with Client(stub.url, "m") as client:
            return [await client.complete(prompt, max_tokens=4) for prompt in "ab"]

    with serve(Stub(closing=True)) as stub:
        assert [answer.error for answer in asyncio.run(two())] == ["", ""]
