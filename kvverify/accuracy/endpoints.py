"""The servers of a run: all found and described, refused unless they are alike and can do what the run needs, before a sample is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from kvverify.accuracy.arm_identity import of_server
from kvverify.accuracy.options import LOWER, AccuracyOptions
from kvverify.errors import KvverifyError
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import Evidence
from kvverify.tierdiff.connect import Connection, connect
from kvverify.tierdiff.server import Emit, Server

PROBE = "The grass is green. The sky is blue. The sun is"
_CLOSED = 503  # what a server answers whose engine has died


@dataclass(slots=True)
class Endpoint:
    """One server, number ``number``. ``served`` are all names that it lists; ``before`` its counters when the run began."""

    number: int
    server: Server
    control: Control
    served: tuple[str, ...]
    identity: dict[str, Any]
    before: Evidence | None = None

    @property
    def url(self) -> str:
        """Where it is."""
        return self.control.url

    async def alive(self) -> bool:
        """Does it still answer?"""
        try:
            await self.control.get_json("/v1/models")
        except ServerProblem:
            return False
        try:
            await self.control.get_text("/health")
        except ServerProblem as problem:
            return problem.status is not None and problem.status < _CLOSED
        return True

    async def evidence(self) -> Evidence | None:
        """Return its counters, None where it does not tell."""
        try:
            return await self.server.engine.evidence()
        except KvverifyError:
            return None


async def open_all(options: AccuracyOptions, seed: int, emit: Emit, stack: AsyncExitStack) -> list[Endpoint]:
    """Connect to every URL; ``stack`` closes the connections.

    Raises:
        ServerProblem: nothing answers at one of them.
        KvverifyError: a model that is not served, or servers that differ.
    """
    found = []
    for number, url in enumerate(options.urls):
        to = Connection(
            url=url,
            engine=options.engine,
            tier=options.tier if options.tier in LOWER else None,
            concurrency=options.concurrency,
            shared=options.shared,
            model=options.model,
            lmcache_url=options.lmcache_url,
            timeout_s=options.timeout_s,
            settle_s=options.settle_s,
        )
        server = await stack.enter_async_context(connect(to, seed, emit))
        control = await stack.enter_async_context(Control(url))
        served = tuple(_names(await control.get_json("/v1/models")))
        model = options.served or server.info.model
        if model not in served:
            raise KvverifyError(f"{url}: model {model!r} is not served there; it serves {', '.join(served) or 'none'}")
        server.client.model = model
        found.append(Endpoint(number, server, control, served, of_server(server.info, model)))
    _refuse_different(found)
    return found


def _refuse_different(endpoints: Sequence[Endpoint]) -> None:
    first = endpoints[0]
    for other in endpoints[1:]:
        if wrong := different(first.identity, other.identity):
            raise KvverifyError(f"{other.url} is not like {first.url}: {wrong}; endpoints of one run must be alike")


def different(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return in what two identities differ, in words."""
    names = [name for name in dict.fromkeys([*one, *other]) if one.get(name) != other.get(name)]
    return ", ".join(f"{name} is {other.get(name, 'not told')}, and was {one.get(name, 'not told')}" for name in names)


async def probe(endpoint: Endpoint, expected_tokens: int) -> None:
    """Send one short prompt: it warms the server up, and shows whether it gives logprobs and counts as we do.

    Raises:
        KvverifyError: it does not; accuracy runs are refused there.
    """
    answer = await endpoint.server.client.complete(PROBE, max_tokens=4)
    if answer.error:
        hint = "; completions with logprobs are needed" if "logprobs" in answer.error else ""
        raise KvverifyError(f"{endpoint.url}: the first, short prompt failed: {answer.error}{hint}")
    if answer.prompt_tokens != expected_tokens:
        raise KvverifyError(
            f"{endpoint.url}: a short prompt has {answer.prompt_tokens} tokens there and {expected_tokens} by --tokenizer: "
            "it is another tokenizer, or a start token is missing or doubled; give the served model's own folder"
        )


def refuse_long(endpoints: Sequence[Endpoint], lengths: Iterator[int]) -> None:
    """Refuse size classes that no sample of fits.

    Raises:
        KvverifyError: a length beyond the context of an endpoint.
    """
    longest = max(lengths, default=0)
    for endpoint in endpoints:
        context = endpoint.server.info.max_context
        if context is not None and longest > context:
            raise KvverifyError(
                f"{endpoint.url}: its context of {context} tokens is smaller than samples of {longest}; "
                "serve the model with a longer one, or give --lengths"
            )


def _names(models: Any) -> Iterator[str]:
    cards = models.get("data") if isinstance(models, Mapping) else None
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, Mapping) and card.get("id"):
            yield str(card["id"])
