"""Connections to a server's OpenAI interface, which everything that asks a model shares."""

from __future__ import annotations

from typing import Self

import openai

from kvverify.live.control import CONNECT_SECONDS, server_root, transport_options

_NO_KEY = "none"  # openai insists on a key; servers without one ignore it


class OpenAIServer:
    """Connections to the server at ``url``, as an asynchronous context; the openai package never sends again by itself.

    ``key`` is empty for a server without one. ``timeout_s`` bounds a whole request, from its first byte to the last of the answer.
    """

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url, self.timeout_s = server_root(url), timeout_s
        self._key = key
        timeout = openai.Timeout(timeout_s, connect=min(CONNECT_SECONDS, timeout_s))
        self._openai = openai.AsyncOpenAI(
            api_key=key or _NO_KEY,
            base_url=f"{self.url}/v1",
            timeout=timeout,
            max_retries=0,
            http_client=openai.DefaultAsyncHttpxClient(timeout=timeout, **transport_options(self.url)),
        )
        self._openai.organization = self._openai.project = (
            None  # of the environment; they belong to openai's own service
        )

    async def close(self) -> None:
        """Close connections."""
        await self._openai.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()
