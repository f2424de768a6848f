"""A server's own tokenizer, asked over HTTP in the forms of vLLM and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

pytest.importorskip("httpx2")
pytest.importorskip("openai")

from kvverify.accuracy.tokens import load_tokenizer
from kvverify.errors import UsageError
from kvverify.live.control import ServerProblem

Answer = Callable[[dict[str, Any]], tuple[int, Any]]


@contextmanager
def server(tokenize: Answer) -> Iterator[str]:
    """Serve one model, and ``tokenize`` at /tokenize."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(200, {"data": [{"id": "model-1"}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._reply(*tokenize(body))

        def _reply(self, status: int, document: Any) -> None:
            content = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *args: object) -> None:
            pass

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=served.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{served.server_address[1]}"
    finally:
        served.shutdown()
        thread.join()
        served.server_close()


def as_vllm(body: dict[str, Any]) -> tuple[int, Any]:
    if "prompt" not in body:
        return 400, {"error": "no prompt"}
    start = [1] * body["add_special_tokens"]
    return 200, {"tokens": [*start, *body["prompt"].encode()], "model": body["model"]}


def as_llama_cpp(body: dict[str, Any]) -> tuple[int, Any]:
    return 200, {"tokens": [*([1] if body.get("add_special") else []), *body.get("content", "").encode()]}


@pytest.mark.parametrize("form", [as_vllm, as_llama_cpp])
def test_a_servers_tokens_are_asked_in_the_form_it_knows(form: Answer) -> None:
    with server(form) as url:
        tokens = load_tokenizer(f"{url}/v1")
        assert tokens.ids("ab") == [97, 98]
        assert tokens.ids("ab", start=True) == [1, 97, 98]
        assert tokens.counts(["a", "", "naïve", *["abc"] * 50]) == [1, 0, 6, *[3] * 50]


def test_the_identity_is_what_the_server_makes_of_a_text() -> None:
    with server(as_vllm) as one, server(as_llama_cpp) as same:
        assert load_tokenizer(one).identity == load_tokenizer(same).identity
    with server(lambda body: (200, {"tokens": [7]})) as other:
        assert len(load_tokenizer(other).identity) == 64


def test_a_server_that_does_not_tokenize_is_one_line() -> None:
    with (
        server(lambda body: (404, {"detail": "Not Found"})) as url,
        pytest.raises(ServerProblem, match=r"POST http\S+/tokenize: status 404, said"),
    ):
        load_tokenizer(url)
    with (
        server(lambda body: (200, {"tokens": ["a"]})) as url,
        pytest.raises(ServerProblem, match=r"/tokenize: expected token ids, got \"\{'tokens': \['a'\]\}\""),
    ):
        load_tokenizer(url)


def test_no_server_is_one_line() -> None:
    with pytest.raises(ServerProblem, match=r"GET http://127\.0\.0\.1:9/v1/models: no answer .*; is the server up\?"):
        load_tokenizer("http://127.0.0.1:9")
    with pytest.raises(UsageError, match="is not the URL of a server"):
        load_tokenizer("http://")
