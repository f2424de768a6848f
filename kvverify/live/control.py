"""Control requests to a server: settings, metrics, flushes. They go to the given URL and nowhere else."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from typing import Any, Self
from urllib.parse import urlsplit

import httpx2

from kvverify.errors import KvverifyError, UsageError

KEY_VARIABLES = ("KVVERIFY_API_KEY", "OPENAI_API_KEY")
CONNECT_SECONDS = 10.0
# after which no connection is used again; uvicorn, which serves vLLM, SGLang and LMCache, closes it after 5
IDLE_SECONDS = 2.0
LONGEST_QUOTE = 300  # characters of a server's own words in one error line


class ServerProblem(KvverifyError):
    """A server did not answer, or not as agreed; ``status`` is the HTTP status where there was one."""

    def __init__(self, line: str, status: int | None = None) -> None:
        super().__init__(line)
        self.status = status


def api_key_from_environment() -> str:
    """Return the server's key, empty where none is set."""
    return next((os.environ[name] for name in KEY_VARIABLES if os.environ.get(name)), "")


def server_root(url: str) -> str:
    """Return ``url`` without a trailing slash or ``/v1``.

    Raises:
        UsageError: not an http(s) URL, or one that holds a password.
    """
    try:
        parts = urlsplit(url)
        complete = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:  # a port that is no number
        complete = False
    if not complete:
        raise UsageError(f"{url!r} is not the URL of a server: expected http://HOST:PORT")
    if parts.username is not None or parts.password is not None:
        raise UsageError(f"the URL of {parts.hostname} holds a password: set {KEY_VARIABLES[0]} instead")
    if parts.query or parts.fragment:
        raise UsageError(f"the URL {url!r} has a query: expected http://HOST:PORT")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def transport_options(url: str, *, reuse: bool = False) -> dict[str, Any]:
    """Return the options of an HTTP client that talks to ``url`` alone: no redirects, no proxy of the environment.

    A request that meets the server closing its connection is lost, for nothing is sent twice. So each has a connection of its own, but
    for TLS, where a new one costs round trips, and where many small requests follow each other (``reuse``).
    """
    kept = None if reuse or url.startswith("https:") else 0
    limits = httpx2.Limits(max_keepalive_connections=kept, keepalive_expiry=IDLE_SECONDS)
    options: dict[str, Any] = {"follow_redirects": False, "trust_env": False, "limits": limits}
    if url.startswith("https:"):
        options["verify"] = ssl.create_default_context()  # honours SSL_CERT_FILE, which trust_env=False would ignore
    else:
        options["verify"] = False  # there is nothing to verify without TLS, and loading the certificates takes 90 ms
    return options


def one_line(text: str, key: str = "") -> str:
    """Return a server's own words as one short line that does not hold ``key``."""
    line = " ".join((text.replace(key, "***") if key else text).split())
    return line if len(line) <= LONGEST_QUOTE else f"{line[:LONGEST_QUOTE]}…"


def no_answer(where: str, error: Exception, key: str) -> ServerProblem:
    """Return that the request ``where`` (method and URL) got no answer, in the words of ``error``."""
    return ServerProblem(f"{where}: no answer ({one_line(str(error), key) or type(error).__name__}); is the server up?")


def check_status(where: str, response: httpx2.Response, key: str) -> None:
    """Raise a ServerProblem where the answer to the request ``where`` has a status other than 200."""
    if response.status_code != httpx2.codes.OK:
        words = one_line(response.text, key) or "nothing"
        raise ServerProblem(f"{where}: status {response.status_code}, said {words}", response.status_code)


def document_of(response: httpx2.Response, key: str) -> Any:
    """Return the JSON document of an answer.

    Raises:
        ServerProblem: it is none.
    """
    try:
        return response.json()
    except ValueError as error:  # undecodable bytes are a ValueError, too
        words = one_line(response.text, key) or "nothing"
        where = f"{response.request.method} {response.request.url}"
        raise ServerProblem(f"{where}: expected JSON, got {words}") from error


class Control:
    """Sends control requests to the server at ``url``.

    ``api_key`` None takes the key of the environment; a server that the key is not meant for (LMCache's own, say) gets ``""``.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 30.0) -> None:
        self.url = server_root(url)
        self._key = api_key_from_environment() if api_key is None else api_key
        self._timeout_s = timeout_s
        self._http = httpx2.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx2.Timeout(timeout_s, connect=min(CONNECT_SECONDS, timeout_s)),
            **transport_options(self.url),
        )

    async def get_text(self, path: str, **params: str) -> str:
        """Return the body of ``GET path``.

        Raises:
            ServerProblem: no answer, or a status other than 200.
        """
        return (await self._send("GET", path, params)).text

    async def get_json(self, path: str, **params: str) -> Any:
        """Return the JSON document that ``GET path`` answers.

        Raises:
            ServerProblem: no answer, a status other than 200, or no JSON.
        """
        return document_of(await self._send("GET", path, params), self._key)

    async def post_json(self, path: str, body: Any = None, *, params: Mapping[str, str] | None = None) -> Any:
        """Post ``body`` as JSON and return the JSON answer, None where the answer is empty.

        Raises:
            ServerProblem: no answer, a status other than 200, or no JSON.
        """
        response = await self._send("POST", path, params or {}, body)
        return document_of(response, self._key) if response.content else None

    async def close(self) -> None:
        """Close connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _send(self, method: str, path: str, params: Mapping[str, str], body: Any = None) -> httpx2.Response:
        where = f"{method} {self.url}{path}"
        try:
            response = await self._http.request(method, f"{self.url}{path}", params=dict(params), json=body)
        except httpx2.TimeoutException as error:
            raise ServerProblem(f"{where}: no answer within {self._timeout_s:g} s") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise no_answer(where, error, self._key) from error
        check_status(where, response, self._key)
        return response
