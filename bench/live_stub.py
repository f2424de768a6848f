"""A completions server that answers at once, always the same: python -m bench.live_stub TOKENS prints its port and serves."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

HEAD = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: {}\r\n\r\n"


def answer(tokens: int) -> bytes:
    """Return a streamed completion of ``tokens`` tokens, one a part, in the form of vLLM's."""
    parts = [_part(number, last=number == tokens - 1) for number in range(tokens)]
    usage = {"prompt_tokens": 20, "completion_tokens": tokens, "total_tokens": 20 + tokens}
    parts.append({**parts[0], "choices": [], "usage": {**usage, "prompt_tokens_details": {"cached_tokens": 16}}})
    body = b"".join(b"data: %s\n\n" % json.dumps(part).encode() for part in parts) + b"data: [DONE]\n\n"
    return HEAD.format(len(body)).encode() + body


def _part(number: int, *, last: bool) -> dict[str, Any]:
    value = -1 / (number + 3)
    text = f" word{number}"
    top = [{text: value}]
    scores = {"tokens": [text], "token_logprobs": [value], "top_logprobs": top, "text_offset": [number]}
    choice = {"index": 0, "text": text, "logprobs": scores, "finish_reason": "length" if last else None}
    choice |= {"stop_reason": None, "prompt_token_ids": None, "token_ids": [1000 + number]}
    return {"id": "cmpl-1", "object": "text_completion", "created": 1, "model": "m", "choices": [choice], "usage": None}


async def serve(tokens: int) -> None:
    """Serve until the process is ended."""
    data = answer(tokens)

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
                writer.write(data)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
