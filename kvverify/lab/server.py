"""HTTP/1.1 over asyncio streams: as much as the openai client and httpx need, and the ways in which a server can go wrong.

A table of routes in, a listening socket out. Tests build servers that lie, stall or die from the same parts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from kvverify.errors import EnvironmentProblem

MAX_BODY = 64 << 20
_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    500: "Internal Server Error",
}


@dataclass(frozen=True)
class Call:
    """One request as it arrived; header names are lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the body as a JSON object.

        Raises:
            Refusal: it is none.
        """
        try:
            found = json.loads(self.body or b"{}")
        except ValueError as error:
            raise Refusal(400, f"the body is not JSON: {error}") from error
        if not isinstance(found, dict):
            raise Refusal(400, f"the body is a JSON {type(found).__name__}, expected an object")
        return found


@dataclass(frozen=True)
class Reply:
    """What goes back: a body at once, or ``stream`` in chunks. ``cut`` closes the connection where more was promised."""

    body: bytes = b""
    status: int = 200
    content_type: str = "application/json"
    stream: AsyncGenerator[bytes, None] | None = None
    cut: bool = False


class Refusal(Exception):
    """A request that gets an error in OpenAI's form."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    def reply(self) -> Reply:
        """Return the error's reply."""
        kind = "NotFoundError" if self.status == 404 else "BadRequestError"
        return json_reply(
            {"error": {"message": str(self), "type": kind, "param": None, "code": self.status}}, self.status
        )


def json_reply(content: Any, status: int = 200) -> Reply:
    """Return ``content`` as JSON; NaN stays NaN, as Python servers write it."""
    return Reply(json.dumps(content).encode(), status)


Handler = Callable[[Call], Awaitable[Reply]]
Routes = Mapping[tuple[str, str], Handler]  # (method, path)


class HttpServer:
    """Serves ``routes`` until closed; ``url`` is known once it listens."""

    def __init__(self, routes: Routes) -> None:
        self._routes = routes
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.url = ""

    async def listen(self, host: str = "127.0.0.1", port: int = 0) -> str:
        """Start to listen and return the URL; port 0 takes a free one.

        Raises:
            EnvironmentProblem: the port cannot be had.
        """
        try:
            self._server = await asyncio.start_server(self._serve, host, port, limit=1 << 20)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise EnvironmentProblem(
                f"cannot listen on {host} port {port}: {reason}; take another --port, or 0"
            ) from error
        self.url = f"http://{host}:{self._server.sockets[0].getsockname()[1]}"
        return self.url

    async def close(self) -> None:
        """Stop to listen and end all connections."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            while (call := await _read(reader)) is not None:
                if not await _write(writer, await self._handle(call)):
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError, Refusal):
            pass  # the client is gone or does not speak HTTP, or a stream failed midway: nobody to tell
        except asyncio.CancelledError:
            pass  # the server closes
        finally:
            self._connections.discard(task)
            writer.close()

    async def _handle(self, call: Call) -> Reply:
        handler = self._routes.get((call.method, call.path))
        if handler is None:
            known = [method for method, path in self._routes if path == call.path]
            status = 405 if known else 404
            return Refusal(
                status, f"{call.method} {call.path}: {'expected ' + known[0] if known else 'no such path'}"
            ).reply()
        try:
            return await handler(call)
        except Refusal as refusal:
            return refusal.reply()


async def _read(reader: asyncio.StreamReader) -> Call | None:
    """Return the next request of a connection, None where the client closed it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip().split("\r\n")
    method, target, _ = first.split(" ", 2)
    headers = {name.strip().lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
    length = int(headers.get("content-length", 0))
    if not 0 <= length <= MAX_BODY:
        raise ValueError(f"a body of {length} bytes")
    parts = urlsplit(target)
    return Call(method, parts.path, dict(parse_qsl(parts.query)), headers, await reader.readexactly(length))


async def _write(writer: asyncio.StreamWriter, reply: Reply) -> bool:
    """Send ``reply``; return whether the connection can be used again."""
    head = f"HTTP/1.1 {reply.status} {_REASONS.get(reply.status, '')}\r\ncontent-type: {reply.content_type}\r\n"
    if reply.stream is None:
        promised = len(reply.body) * (2 if reply.cut else 1)
        writer.write(f"{head}content-length: {promised}\r\n\r\n".encode() + reply.body)
    else:
        writer.write(f"{head}transfer-encoding: chunked\r\n\r\n".encode())
        try:
            async for part in reply.stream:
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                await writer.drain()
        finally:
            await reply.stream.aclose()
        if not reply.cut:
            writer.write(b"0\r\n\r\n")
    await writer.drain()
    return not reply.cut
