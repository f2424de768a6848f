"""The interface: streams and whole answers agree, the openai client understands them, what is wrong is refused in OpenAI's form."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from urllib.request import Request, urlopen

import pytest

from tests.lab.asking import BLOCK, MODEL, Asking, lab, secret_prompt

PROMPT = secret_prompt("QZKT-4821")


@pytest.fixture(scope="module")
def server(torch: ModuleType) -> Iterator[Asking]:
    with lab() as asking:
        yield asking


def events(server: Asking, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    request = Request(server.url + path, json.dumps({**body, "stream": True}).encode(), method="POST")  # noqa: S310
    with urlopen(request, timeout=60) as answer:  # noqa: S310 - our own server
        lines = [line for line in answer.read().decode().split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_stream_is_the_whole_answer_in_parts(server: Asking) -> None:
    server.complete(PROMPT)
    whole = server.complete(PROMPT, 12)
    wish = {"prompt": PROMPT, "max_tokens": 12, "logprobs": 1, "return_token_ids": True}
    *parts, last = events(server, "/v1/completions", {**wish, "stream_options": {"include_usage": True}})
    choices = [part["choices"][0] for part in parts]
    assert "".join(choice["text"] for choice in choices) == whole.text
    assert tuple(t for choice in choices for t in choice["token_ids"]) == whole.tokens
    assert tuple(p for choice in choices for p in choice["logprobs"]["token_logprobs"]) == whole.logprobs
    assert bytes(choices[0]["prompt_token_ids"]).decode() == PROMPT
    assert [choice["finish_reason"] for choice in choices] == [None] * 11 + ["length"]
    assert last["usage"]["prompt_tokens_details"] == {"cached_tokens": 9 * BLOCK}
    assert last["usage"]["completion_tokens"] == 12


def test_the_openai_client_understands_it(server: Asking) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        whole = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=10, logprobs=2)
        assert whole.choices[0].text == " QZKT-4821"
        assert len(whole.choices[0].logprobs.top_logprobs[0]) == 2
        messages = [{"role": "user", "content": PROMPT}]
        said = client.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=10, logprobs=True, top_logprobs=2
        )
        assert said.choices[0].message.content == " QZKT-4821"
        assert [entry.token for entry in said.choices[0].logprobs.content] == list(" QZKT-4821")
        stream = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=10, stream=True)
        assert "".join(part.choices[0].delta.content or "" for part in stream) == " QZKT-4821"


def test_ids_and_text_are_one_prompt(server: Asking) -> None:
    assert server.post("/tokenize", {"prompt": "Zoë"})["tokens"] == list("Zoë".encode())
    assert server.post("/detokenize", {"tokens": list("Zoë".encode())}) == {"prompt": "Zoë"}
    assert server.complete(list(PROMPT.encode())).prompt == server.complete(PROMPT).prompt == 300


def test_a_character_of_several_tokens_is_sent_when_it_is_whole(server: Asking) -> None:
    prompt = secret_prompt("Zoë-Ümläut")
    wish = {"prompt": prompt, "max_tokens": 13}
    texts = [part["choices"][0]["text"] for part in events(server, "/v1/completions", wish)]
    assert "".join(texts) == " Zoë-Ümläut."[: len("".join(texts))]
    assert len("".join(texts).encode()) == 13
    assert "�" not in "".join(texts)


def test_an_end_token_ends_the_answer(server: Asking) -> None:
    tokens = list(secret_prompt("QZ@T-4821").encode())
    tokens[tokens.index(ord("@"))] = 255
    assert server.complete(tokens).tokens == (*b" QZ", 255)
    assert server.complete(tokens, ignore_eos=True).tokens[3:6] == (255, *b"T-")


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "gpt-5"}, 404, "The model `gpt-5` does not exist."),
        ({"prompt": "x" * 3000}, 400, "maximum context length is 2048"),
        ({"prompt": ""}, 400, "the prompt is empty"),
        ({"prompt": [256]}, 400, "token ids from 0 to 255"),
        ({"prompt": None}, 400, "expected one text"),
        ({"max_tokens": 0.5}, 400, "expected 1 or more"),
        ({"logprobs": 21}, 400, "0 to 20"),
        ({"temperature": 0.7}, 400, "greedily"),
        ({"echo": True}, 400, "echo reads no cache"),
        ({"stop": ""}, 400, "got stop ''; expected a text or a list of texts, none of them empty"),
        ({"stop": ["x", 1]}, 400, "got stop ['x', 1]; expected a text"),
        ({"stop": {"x": 1}}, 400, "got stop {'x': 1}; expected a text"),
        (
            {"frequency_penalty": 0.5},
            400,
            "the lab does not know frequency_penalty and got 0.5, which would change the answer; leave it out",
        ),
        ({"repetition_penalty": 1.1}, 400, "does not know repetition_penalty"),
        ({"logit_bias": {"65": 100}}, 400, "does not know logit_bias"),
        ({"stop_token_ids": [46]}, 400, "does not know stop_token_ids"),
        ({"response_format": {"type": "json_object"}}, 400, "does not know response_format"),
        ({"tool_choice": "required"}, 400, "does not know tool_choice"),
    ],
)
def test_what_is_wrong_is_refused(server: Asking, change: dict[str, Any], status: int, message: str) -> None:
    code, text = server.refused("/v1/completions", {"prompt": PROMPT, "max_tokens": 4, **change})
    assert (code, message in text) == (status, True), text


def test_what_changes_no_answer_is_taken(server: Asking) -> None:
    same: dict[str, Any] = {"presence_penalty": 0.0, "repetition_penalty": 1, "best_of": 1, "stop": None, "top_p": 0.9}
    more: dict[str, Any] = {
        "response_format": {"type": "text"},
        "tool_choice": "auto",
        "logit_bias": {},
        "min_tokens": 0,
    }
    assert server.complete(PROMPT, **same, **more).tokens == server.complete(PROMPT).tokens


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ("-4821", " QZKT"),
        (["nowhere", "KT"], " QZ"),
        ([" QZKT-4821"], ""),
        (
            ["4821", "T-4"],
            " QZK",
        ),  # both are there when the answer ends or one ends it first: the earliest place counts
        (["21X", "8219"], " QZKT-4821"),  # begun and never ended: shown after all
        ([], " QZKT-4821"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_an_answer_ends_before_a_stop(server: Asking, path: str, stop: str | list[str], text: str) -> None:
    asked = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": PROMPT}]}
    body = {**asked, "max_tokens": 10, "stop": stop, "return_token_ids": True}
    whole = server.post(path, body)
    choice = whole["choices"][0]
    said = choice["message"]["content"] if "messages" in asked else choice["text"]
    assert said == text
    assert choice["finish_reason"] == ("length" if text == " QZKT-4821" else "stop")
    generated = whole["usage"]["completion_tokens"]
    assert len(choice["token_ids"]) == generated  # those of the stop are counted, as vLLM does
    assert bytes(choice["token_ids"]).decode().startswith(text)
    parts = [part["choices"][0] for part in events(server, path, body)]
    shown = [part["delta"]["content"] if "messages" in asked else part["text"] for part in parts]
    assert "".join(shown) == text
    assert (len(parts), parts[-1]["finish_reason"]) == (generated, choice["finish_reason"])


def test_nothing_is_computed_behind_a_stop(server: Asking) -> None:
    before = server.counters()
    server.complete(PROMPT, 10, stop="KT")
    counted = server.counted(before)
    assert counted["generation_tokens"] == 5


def test_paths_and_methods(server: Asking) -> None:
    assert server.get("/health") == ""
    assert server.refused("/nowhere", {}) == (404, "POST /nowhere: no such path")
    assert server.refused("/metrics", {}) == (405, "POST /metrics: expected GET")
    assert [m["parent"] for m in json.loads(server.get("/v1/models"))["data"]] == [None, MODEL]
    assert json.loads(server.get("/server_info"))["kvverify_lab"]["block_bytes"] == 148224


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"POST /health HTTP/1.1\r\ncontent-length: -5\r\n\r\n", b"GET"])
def test_what_is_no_http_ends_the_connection_alone(server: Asking, sent: bytes) -> None:
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(100) == b""
    assert server.get("/health") == ""


def test_a_client_that_leaves_frees_the_engine(server: Asking) -> None:
    request = Request(  # noqa: S310
        f"{server.url}/v1/completions",
        json.dumps({"prompt": PROMPT, "max_tokens": 1500, "stream": True}).encode(),
        method="POST",
    )
    with urlopen(request, timeout=60) as answer:  # noqa: S310
        answer.readline()
        assert server.post("/reset_prefix_cache") == {"success": False}  # a request runs
        assert server.refused("/lab/poison", {})[0] == 409
    limit = time.monotonic() + 5
    while server.counters()["num_requests_running"] and time.monotonic() < limit:
        time.sleep(0.05)
    server.flush()
    assert server.counters()["kv_cache_usage_perc"] == 0
