"""A completions server of raw asyncio streams that answers at once, or misbehaves as told; it runs in a thread."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD = "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: {connection}\r\n"


@dataclass
class Stub:
    """What the server does next, and what it was asked. ``mode`` names a misbehaviour, empty for none."""

    url: str = ""
    mode: str = ""
    tokens: int = 4
    cached: int | None = 0
    prompt_tokens: int = 20
    ids: bool = True
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[str] = field(default_factory=list)
    keep: bool = True  # requests are kept in ``bodies``
    pages: dict[str, str] = field(default_factory=dict)  # path without the query -> body of the answer
    replies: dict[str, Callable[[Any], Any]] = field(default_factory=dict)  # path -> JSON answer to a JSON body
    echo: Callable[[Any], Any] | None = None  # the answer to a completion request with `echo`
    count: Callable[[Any], int] | None = None  # tokens of a prompt
    closing: bool = False  # the second request on a connection is lost, as if the server were just closing it
    active: int = 0
    most_active: int = 0
    answers: dict[tuple[int, bool], bytes] = field(default_factory=dict)

    def part(self, number: int, **changes: Any) -> dict[str, Any]:
        """Return the part of the stream that holds token ``number``."""
        value = -0.25 - number / 64
        scores = {"tokens": [f" t{number}"], "token_logprobs": [value], "top_logprobs": None, "text_offset": [number]}
        choice: dict[str, Any] = {"index": 0, "text": f" t{number}", "logprobs": scores, "finish_reason": None}
        if self.ids:
            choice["token_ids"] = [1000 + number]
        if number == self.tokens - 1:
            choice["finish_reason"] = "length"
        return {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [choice | changes]}

    def parts(self) -> list[Any]:
        """Return the stream of a good answer, with the usage at its end."""
        details = None if self.cached is None else {"cached_tokens": self.cached}
        usage = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.tokens,
            "total_tokens": self.prompt_tokens + self.tokens,
            "prompt_tokens_details": details,
        }
        end = {"id": "c", "object": "text_completion", "created": 1, "model": "m", "choices": [], "usage": usage}
        return [*(self.part(n) for n in range(self.tokens)), end]


def events(parts: list[Any]) -> bytes:
    """Return ``parts`` as server-sent events."""
    return b"".join(f"data: {p if isinstance(p, str) else json.dumps(p)}\n\n".encode() for p in parts)


@contextmanager
def serve(stub: Stub) -> Iterator[Stub]:
    """Serve ``stub`` on a free port of this machine until the block ends."""
    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(lambda r, w: _connection(stub, r, w), "127.0.0.1", 0))
    stub.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        asyncio.run_coroutine_threadsafe(_stop(server), loop).result(5)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(5)
        loop.close()


async def _stop(server: asyncio.Server) -> None:
    server.close()
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _connection(stub: Stub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while await _exchange(stub, reader, writer):
            if stub.closing:
                await reader.readuntil(b"\r\n\r\n")
                break
    except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
        pass
    finally:
        writer.close()


async def _exchange(stub: Stub, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; return whether the connection stays open."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    lengths = [line.split(":")[1] for line in head.lower().split("\r\n") if line.startswith("content-length:")]
    body = await reader.readexactly(int(lengths[0]) if lengths else 0)
    path = head.split(" ")[1]
    if stub.keep:
        stub.headers.append(head)
        stub.bodies.append(json.loads(body) if body else {})
    if path in stub.replies:
        await _send(writer, "200 OK", json.dumps(stub.replies[path](json.loads(body))).encode())
        return True
    stub.active += 1
    stub.most_active = max(stub.most_active, stub.active)
    try:
        if path.startswith("/v1/completions"):
            return await _complete(stub, writer, body)
        return await _page(stub, path, writer)
    finally:
        stub.active -= 1


async def _page(stub: Stub, path: str, writer: asyncio.StreamWriter) -> bool:
    await _misbehave(stub, writer)
    text = stub.pages.get(path.partition("?")[0])
    await _send(writer, "200 OK" if text is not None else "404 Not Found", (text or "").encode())
    return True


async def _send(writer: asyncio.StreamWriter, status: str, body: bytes, kind: str = "application/json") -> None:
    head = HEAD.format(status=status, kind=kind, connection="keep-alive")
    writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    await writer.drain()


async def _misbehave(stub: Stub, writer: asyncio.StreamWriter) -> None:
    """Do what any path can do wrong; raise where the connection is to be dropped."""
    if stub.mode == "reset":
        raise ConnectionResetError
    if stub.mode == "slow":
        await asyncio.sleep(30)
    if stub.mode == "pause":
        await asyncio.sleep(0.05)


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "code": 1}}).encode()


REFUSALS = {
    "500": ("500 Internal Server Error", _error("engine core died")),
    "500-key": ("500 Internal Server Error", _error("bad key s3cr3t-key-9 here")),
    "503-html": ("503 Service Unavailable", b"<html><body>upstream down</body></html>"),
    "404-model": ("404 Not Found", _error("The model `m` does not exist.")),
    "400-context": ("400 Bad Request", _error("maximum context length is 64 tokens, you requested 99")),
    "redirect": ("307 Temporary Redirect\r\nLocation: http://127.0.0.1:9/v1/completions", b""),
}


async def _complete(stub: Stub, writer: asyncio.StreamWriter, body: bytes) -> bool:
    await _misbehave(stub, writer)
    if stub.echo is not None and json.loads(body).get("echo"):
        await _send(writer, "200 OK", json.dumps(stub.echo(json.loads(body))).encode())
        return True
    if stub.mode in REFUSALS:
        await _send(writer, *REFUSALS[stub.mode])
        return True
    key = (stub.tokens, stub.ids)
    if stub.mode in {"", "pause"} and stub.cached == 0 and stub.count is None:
        data = stub.answers.get(key) or stub.answers.setdefault(key, events(stub.parts()) + b"data: [DONE]\n\n")
        await _send(writer, "200 OK", data, "text/event-stream")
        return True
    if stub.count is not None:
        stub.prompt_tokens = stub.count(json.loads(body)["prompt"])
    return await _misshape(stub, writer)


async def _misshape(stub: Stub, writer: asyncio.StreamWriter) -> bool:
    """Answer with a stream that is not as it should be."""
    parts, kind, done = stub.parts(), "text/event-stream", b"data: [DONE]\n\n"
    if stub.mode == "not-sse":
        await _send(writer, "200 OK", json.dumps(parts[0]).encode())
        return True
    changes: dict[str, Any] = {
        "cut": parts[:2],
        "no-usage": parts[:-1],
        "bad-json": [parts[0], '{"id": "c", "choices": [{"tex'],
        "list": [[1, 2, 3]],
        "no-choices": [{"id": "c"}, *parts],
        "choice-is-text": [{**parts[0], "choices": ["hello"]}, *parts[1:]],
        "error-inside": [parts[0], {"error": {"message": "EngineDeadError", "code": 500}}],
        "null": [parts[0], stub.part(1, logprobs={"tokens": [" a"], "token_logprobs": [None]}), *parts[2:]],
        "nan": [parts[0], stub.part(1, logprobs={"tokens": [" a"], "token_logprobs": [float("nan")]}), *parts[2:]],
        "infinite": [stub.part(0, logprobs={"tokens": [" a"], "token_logprobs": [-float("inf")]}), *parts[1:]],
        "text": [stub.part(0, logprobs={"tokens": [" a"], "token_logprobs": ["-1"]}), *parts[1:]],
        "bool": [stub.part(0, logprobs={"tokens": [" a"], "token_logprobs": [True]}), *parts[1:]],
        "no-logprobs": [parts[0], stub.part(1, logprobs=None), *parts[2:]],
        "unpaired": [parts[0], stub.part(1, logprobs={"tokens": [" a", "b"], "token_logprobs": [-1.0]}), *parts[2:]],
        "fewer-ids": [stub.part(0, token_ids=[]), *parts[1:]],
        "odd-ids": [stub.part(0, token_ids=["x"]), *parts[1:]],
        "odd-usage": [*parts[:-1], {**parts[-1], "usage": {"prompt_tokens": "many", "completion_tokens": 4}}],
        "llama": [_llama(stub, n) for n in range(stub.tokens)] + [parts[-1] | {"timings": {"cache_n": 7}}],
    }
    data = events(changes.get(stub.mode, parts)) + done
    if stub.mode == "bad-utf8":
        data = b'data: {"id": "\xff\xfe"}\n\n' + done
    if stub.mode in {"dies", "drip"}:
        head = HEAD.format(status="200 OK", kind=kind, connection="keep-alive") + "Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        for part in parts if stub.mode == "drip" else parts[:2]:
            piece = events([part])
            writer.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            await writer.drain()
            await asyncio.sleep(0.3 if stub.mode == "drip" else 0)
        raise ConnectionResetError
    await _send(writer, "200 OK", data, kind)
    return True


def _llama(stub: Stub, number: int) -> dict[str, Any]:
    content = [{"id": 50 + number, "token": f" t{number}", "bytes": [], "logprob": -0.5}]
    return stub.part(number, logprobs={"content": content}) | {"x": 1}
