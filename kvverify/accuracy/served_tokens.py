"""A tokenizer that is a server's ``POST /tokenize``: exact, and a request for each text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2

from kvverify.live.control import (
    ServerProblem,
    api_key_from_environment,
    check_status,
    document_of,
    no_answer,
    server_root,
    transport_options,
)

AT_ONCE = 16  # requests in flight: a text takes the server less than a millisecond, the way there more
TIMEOUT_S = 60.0
_PROBE = "A word, 1234567 numbers; naïve 漢字 🙂\n\tAND\r\n  spaces. http://x.y/?z=[1]{2}<3> don't"


class Served:
    """The tokenizer of the server at ``url``, as vLLM and SGLang or as llama.cpp have it; the first model that it lists.

    ``identity`` is the SHA-256 of what it makes of a text with many kinds of characters, so it does not tell apart two tokenizers that agree on it.

    Raises:
        UsageError: ``url`` is none of a server.
        ServerProblem: no answer, or no ``/tokenize``.
    """

    def __init__(self, url: str) -> None:
        self._url = server_root(url)
        self._key = api_key_from_environment()
        with self._client() as http:
            listed = self._json(http, "GET", "/v1/models")
        models = listed.get("data") if isinstance(listed, dict) else None
        self._model = models[0].get("id", "") if isinstance(models, list) and models else ""
        probe = [self.ids(_PROBE), self.ids(_PROBE, start=True)]
        self.identity = hashlib.sha256(json.dumps(["served", probe]).encode()).hexdigest()

    def ids(self, text: str, *, start: bool = False) -> list[int]:
        """Return the token ids of ``text``; ``start`` puts what the model has at the start of a prompt before them."""
        with self._client() as http:
            return self._ids(http, text, start=start)

    def counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of each text, sixteen requests at once."""
        with self._client() as http, ThreadPoolExecutor(AT_ONCE, thread_name_prefix="tokenize") as threads:
            return [len(ids) for ids in threads.map(lambda text: self._ids(http, text), texts)]

    def _client(self) -> httpx2.Client:
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        return httpx2.Client(headers=headers, timeout=TIMEOUT_S, **transport_options(self._url, reuse=True))

    def _ids(self, http: httpx2.Client, text: str, *, start: bool = False) -> list[int]:
        if not text and not start:
            return []
        forms: list[dict[str, Any]] = [
            {"model": self._model, "prompt": text, "add_special_tokens": start},
            {"content": text, "add_special": start},
        ]
        answer: Any = None
        for form in forms:
            answer = self._json(http, "POST", "/tokenize", form)
            tokens = answer.get("tokens") if isinstance(answer, dict) else None
            if isinstance(tokens, list) and tokens and all(type(t) is int for t in tokens):
                return tokens
        raise ServerProblem(f"POST {self._url}/tokenize: expected token ids, got {str(answer)[:80]!r}")

    def _json(self, http: httpx2.Client, method: str, path: str, body: Any = None) -> Any:
        where = f"{method} {self._url}{path}"
        try:
            response = http.request(method, f"{self._url}{path}", json=body)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise no_answer(where, error, self._key) from error
        check_status(where, response, self._key)
        return document_of(response, self._key)
