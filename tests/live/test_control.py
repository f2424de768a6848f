from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

pytest.importorskip("httpx2", reason="the live extra is not installed")

from kvverify.errors import UsageError
from kvverify.live.control import Control, ServerProblem, server_root
from tests.live.stub import Stub, serve


def call(
    url: str, what: Callable[[Control], Awaitable[Any]], timeout_s: float = 5.0, api_key: str | None = None
) -> Any:
    async def one() -> Any:
        async with Control(url, api_key=api_key, timeout_s=timeout_s) as control:
            return await what(control)

    return asyncio.run(one())


def test_documents_and_texts_come_back() -> None:
    with serve(Stub(pages={"/server_info": '{"a": [1]}', "/metrics": "x 1\n", "/empty": ""})) as stub:
        assert call(f"{stub.url}/v1/", lambda c: c.get_json("/server_info", config_format="json")) == {"a": [1]}
        assert call(stub.url, lambda c: c.get_text("/metrics")) == "x 1\n"
        assert call(stub.url, lambda c: c.post_json("/empty", {"b": 2}, params={"force": "false"})) is None
    assert stub.bodies[-1] == {"b": 2}
    assert "POST /empty?force=false " in stub.headers[-1]


@pytest.mark.parametrize(
    ("mode", "path", "words"),
    [
        ("", "/missing", "status 404"),
        ("", "/words", "expected JSON, got no json here"),
        ("reset", "/words", "is the server up"),
        ("slow", "/words", "no answer within 0.3 s"),
    ],
)
def test_problems_name_the_request_and_what_happened(mode: str, path: str, words: str) -> None:
    with (
        serve(Stub(mode=mode, pages={"/words": "no json here"})) as stub,
        pytest.raises(ServerProblem, match=words) as caught,
    ):
        call(stub.url, lambda c: c.get_json(path), timeout_s=0.3)
    assert f"GET {stub.url}{path}" in str(caught.value)
    assert caught.value.status == (404 if path == "/missing" else None)
    assert caught.value.exit_code == 2


def test_a_server_that_is_down() -> None:
    with socket.socket() as taken:  # bound, not listening
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(ServerProblem, match="is the server up"):
            call(f"http://127.0.0.1:{taken.getsockname()[1]}", lambda c: c.get_text("/health"))


def test_the_key_goes_where_it_is_meant_for_and_into_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVVERIFY_API_KEY", "s3cr3t-key-9")
    with serve(Stub(pages={"/echo": "you said s3cr3t-key-9"})) as stub:
        with pytest.raises(ServerProblem, match=r"got you said \*\*\*$"):
            call(stub.url, lambda c: c.get_json("/echo"))
        call(stub.url, lambda c: c.get_text("/echo"), api_key="")
    assert "authorization: bearer s3cr3t-key-9" in stub.headers[0].lower()
    assert "authorization" not in stub.headers[1].lower()


@pytest.mark.parametrize(
    "url", ["localhost:8000", "ftp://host", "http://", "http://host:port", "http://me:word@host:1", "http://h/?key=1"]
)
def test_urls_that_are_none_of_a_server_are_refused(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        server_root(url)
    assert "word" not in str(caught.value).replace("password", "")


def test_the_root_of_a_url() -> None:
    assert {server_root(u) for u in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/")} == {"http://h:1"}
