"""Samples asked from the workers of a Ray cluster: when sending, parsing and scoring outgrow one machine. The driver writes the events.

One actor for each endpoint and each ``ACTOR_WIDTH`` requests in flight. An actor asks one sample at a call, so that a run that
is killed resumes by sample, as without Ray. kvverify with its extras must be importable where the actors run.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvverify.accuracy.ask import Asker, Manner, Question, Received, answered, scored
from kvverify.accuracy.dispatch import Lane
from kvverify.accuracy.scoring import MAKERS
from kvverify.errors import EnvironmentProblem, KvverifyError, UsageError
from kvverify.events_accuracy import SampleAnswered
from kvverify.live.answer import Answer
from kvverify.live.client import Client
from kvverify.live.control import CONNECT_SECONDS, Control, ServerProblem, api_key_from_environment

if TYPE_CHECKING:
    from kvverify.accuracy.endpoints import Endpoint
    from kvverify.accuracy.options import AccuracyOptions

AUTO = "auto"
ACTOR_WIDTH = 64  # requests in flight that one process reads without delaying their parts


@dataclass(frozen=True, slots=True)
class Post:
    """What an actor is told of its endpoint."""

    url: str
    model: str
    number: int
    width: int
    timeout_s: float
    key: str


class Worker:
    """The actor: asks one endpoint."""

    def __init__(self, post: Post, manner: Manner) -> None:
        client = Client(post.url, post.model, api_key=post.key, timeout_s=post.timeout_s, concurrency=post.width)
        self._control = Control(post.url, api_key=post.key)
        self._asker = Asker(client, manner, post.number, self._control)

    async def ask(self, question: Question) -> SampleAnswered | Received:
        """Return the scored answer, or the error; or what the driver has to score."""
        if question.sample.metric in MAKERS:
            return await self._asker.receive(question)
        return await self._asker.ask(question)

    async def alive(self) -> bool:
        """Does the endpoint answer from where the actor runs?"""
        try:
            await self._control.get_json("/v1/models")
        except ServerProblem:
            return False
        return True


@dataclass(slots=True)
class Remote:
    """A lane through an actor; ``lost`` are the errors by which Ray says that it is gone."""

    name: str
    width: int
    actor: Any
    number: int
    lost: tuple[type[BaseException], ...]

    async def ask(self, question: Question) -> SampleAnswered:
        """Return what the actor answers; that it is gone is an error of the request."""
        try:
            got: SampleAnswered | Received = await self.actor.ask.remote(question)
        except self.lost as problem:
            if isinstance(
                cause := getattr(problem, "cause", None), KvverifyError
            ):  # raised there, meant for the user here
                raise cause from problem
            return answered(
                question, Answer("", error=f"the Ray worker is gone: {str(problem).splitlines()[0]}"), self.number
            )
        return await scored(got, self.number) if isinstance(got, Received) else got

    async def alive(self) -> bool:
        """Do the actor and its endpoint still answer?"""
        try:
            return bool(await self.actor.alive.remote())
        except self.lost:
            return False


@asynccontextmanager
async def lanes_on_ray(
    options: AccuracyOptions, endpoints: Sequence[Endpoint], manner: Manner
) -> AsyncIterator[list[Lane]]:
    """Give the lanes of all endpoints; what was started here is ended after.

    Raises:
        EnvironmentProblem: Ray is missing, or the cluster cannot be reached.
    """
    try:
        import ray
        from ray.exceptions import RayActorError, RayTaskError
    except ImportError as error:
        raise EnvironmentProblem(f"--ray: {error}; pip install 'kvverify[ray]'") from error
    started = not ray.is_initialized()
    if started:
        await asyncio.to_thread(_connect, ray, options.ray or AUTO)
    lanes: list[Lane] = []
    actors = []
    try:
        kind = ray.remote(Worker)
        for endpoint in endpoints:
            left, part = options.concurrency, 0
            while left > 0:
                width = min(left, ACTOR_WIDTH)
                post = Post(
                    url=endpoint.url,
                    model=endpoint.server.client.model,
                    number=endpoint.number,
                    width=width,
                    timeout_s=options.timeout_s,
                    key=api_key_from_environment(),
                )
                actor = kind.options(num_cpus=1, max_concurrency=width + 1, max_restarts=0).remote(post, manner)
                actors.append(actor)
                name = f"endpoint {endpoint.number} ({endpoint.url}), Ray worker {part}"
                lanes.append(Remote(name, width, actor, endpoint.number, (RayActorError, RayTaskError)))
                left, part = left - width, part + 1
        yield lanes
    finally:
        for actor in actors:
            with contextlib.suppress(RayActorError):
                ray.kill(actor)
        if started:
            await asyncio.to_thread(ray.shutdown)


def _connect(ray: Any, address: str) -> None:
    """Connect to the cluster at ``address``, or start one on this machine."""
    if address != AUTO:
        _refuse_silent(address)
    try:
        where: dict[str, Any] = {"include_dashboard": False} if address == AUTO else {"address": address}
        ray.init(**where, log_to_driver=False, configure_logging=False)
    except (ConnectionError, OSError, RuntimeError, ValueError) as error:
        raise EnvironmentProblem(f"--ray {address}: {str(error).splitlines()[0]}") from error


def _refuse_silent(address: str) -> None:
    """Refuse an address where nothing listens: Ray would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"--ray {address!r}: expected HOST:PORT, ray://HOST:PORT, or no address at all")
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise EnvironmentProblem(
            f"--ray {address}: no answer ({error.strerror or error}); is the cluster up?"
        ) from error
