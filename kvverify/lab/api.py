"""The routes: OpenAI's completions and chat, vLLM's control endpoints, and ``/lab`` for what vLLM needs a worker extension for."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch

import kvverify
from kvverify.errors import KvverifyError, UsageError
from kvverify.lab.answers import Wish, Writer
from kvverify.lab.engine import Engine, Request, Step
from kvverify.lab.metrics import render
from kvverify.lab.plants import LATE_SECONDS, Plant
from kvverify.lab.server import Call, Refusal, Reply, Routes, json_reply
from kvverify.lab.stops import Stops
from kvverify.lab.tokens import Tokenizer

_REFUSED = {"echo": "reads no cache", "prompt_logprobs": "reads no cache", "suffix": "is not offered"}
# What OpenAI's and vLLM's interfaces have and the lab has not, with the values that change nothing. Sampling filters (top_p, top_k,
# min_p, seed) are not among them: they leave a greedy answer as it is. Tools may be offered, and none is ever called.
_CHANGES_ANSWERS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("presence_penalty", "frequency_penalty", "min_tokens"), (0,)),
    **dict.fromkeys(("repetition_penalty", "best_of", "length_penalty"), (1,)),
    **dict.fromkeys(("stop_token_ids", "bad_words"), ([],)),
    **dict.fromkeys(("include_stop_str_in_output", "use_beam_search", "continue_final_message"), (False,)),
    **dict.fromkeys(("allowed_token_ids", "truncate_prompt_tokens", "structured_outputs", "chat_template"), ()),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "tool_choice": ("auto", "none"),
}


@dataclass(frozen=True)
class Served:
    """What a server is made of. ``cache_config`` and ``info`` are what it says of itself under vLLM's names.

    ``replant`` makes the same server anew, empty, with another fault or none.
    """

    name: str
    engine: Engine
    tokenizer: Tokenizer
    plant: Plant
    cache_config: dict[str, Any]
    info: dict[str, Any]
    replant: Callable[[str | None], Served]

    @property
    def adapter(self) -> str:
        """The name of the one adapter."""
        return f"{self.name}-adapter"


class Api:
    """Handlers over one engine, whose requests run in one thread, first come first served."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._engine = served.engine
        # one thread inside torch as well: many small steps, and the same sums every time
        self._queue = ThreadPoolExecutor(1, "lab-engine", initializer=torch.set_num_threads, initargs=(1,))

    def routes(self) -> Routes:
        """Return the table of routes."""
        return {
            ("GET", "/health"): self._health,
            ("GET", "/version"): self._version,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/server_info"): self._server_info,
            ("GET", "/v1/models"): self._models,
            ("POST", "/v1/completions"): self._completions,
            ("POST", "/v1/chat/completions"): self._chat,
            ("POST", "/tokenize"): self._tokenize,
            ("POST", "/detokenize"): self._detokenize,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("POST", "/lab/poison"): self._poison,
            ("POST", "/lab/scramble"): self._scramble,
            ("POST", "/lab/digests"): self._digests,
            ("POST", "/lab/plant"): self._plant,
        }

    async def _health(self, call: Call) -> Reply:
        return Reply()

    async def _version(self, call: Call) -> Reply:
        return json_reply({"version": f"kvverify-lab {kvverify.__version__}"})

    async def _metrics(self, call: Call) -> Reply:
        served = self._served
        page = render(self._engine.counters, served.name, self._engine.cache.usage, served.cache_config, served.plant)
        return Reply(page.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")

    async def _server_info(self, call: Call) -> Reply:
        return json_reply(self._served.info)

    async def _models(self, call: Call) -> Reply:
        served = self._served
        card = {"object": "model", "created": 0, "owned_by": "kvverify-lab", "max_model_len": self._engine.longest}
        base = {"id": served.name, **card, "root": served.name, "parent": None}
        adapter = {"id": served.adapter, **card, "root": served.adapter, "parent": served.name}
        return json_reply({"object": "list", "data": [base, adapter]})

    async def _tokenize(self, call: Call) -> Reply:
        body = call.json()
        tokens = self._chat_prompt(body) if "messages" in body else self._prompt(body)
        return json_reply({"count": len(tokens), "max_model_len": self._engine.longest, "tokens": tokens})

    async def _detokenize(self, call: Call) -> Reply:
        return json_reply({"prompt": self._served.tokenizer.decode(self._token_ids(call.json().get("tokens")))})

    async def _reset(self, call: Call) -> Reply:
        """Refuse while a request runs, as vLLM does: 200 and ``success`` false."""
        external = call.query.get("reset_external", "false").lower() == "true"
        try:
            with self._idle():
                return json_reply({"success": self._engine.cache.reset(external=external)})
        except Refusal:
            return json_reply({"success": False})

    async def _poison(self, call: Call) -> Reply:
        """Overwrite the HBM blocks that hold nothing to hit, or, with ``{"tier": "dram"}``, what the DRAM slots hold."""
        body = call.json()
        tier, seed = body.get("tier", "hbm"), body.get("seed", 0)
        if tier not in ("hbm", "dram") or not isinstance(seed, int) or seed < 0:
            raise Refusal(400, f"got tier {tier!r}, seed {seed!r}; expected hbm or dram, and a number")
        with self._idle():
            cache = self._engine.cache
            where = cache.unused_blocks() if tier == "hbm" else cache.held_slots()
            (cache.pages.poison if tier == "hbm" else cache.pages.poison_slots)(where, seed)
        return json_reply({"tier": tier, "poisoned_blocks": len(where)})

    async def _scramble(self, call: Call) -> Reply:
        """Overwrite the packed layers of the HBM blocks that can be hit, which stay to be hit."""
        with self._idle():
            cache = self._engine.cache
            where = cache.held_blocks()
            layers = cache.pages.poison(where, seed=0, packed=True)
        return json_reply({"scrambled_blocks": len(where), "layers": layers})

    async def _digests(self, call: Call) -> Reply:
        """Return a digest of each full block of a prompt in HBM, null where HBM does not hold it."""
        body = call.json()
        adapter = self._adapter(body)
        with self._idle():
            keys = self._engine.cache.keys(self._prompt(body), str(body.get("cache_salt") or ""), adapter)
            return json_reply({"digests": self._engine.digests(keys)})

    async def _plant(self, call: Call) -> Reply:
        """Serve with the fault that ``plant`` names from now on, empty for none; caches and counters begin anew."""
        name = call.json().get("plant")
        if not isinstance(name, str):
            raise Refusal(400, f"got plant {name!r}; expected the name of a fault, empty for none")
        with self._idle():
            try:
                self._served = await asyncio.to_thread(self._served.replant, name or None)
            except UsageError as problem:
                raise Refusal(400, str(problem)) from problem
            self._engine = self._served.engine
        return json_reply({"plant": self._served.plant.id})

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """Hold the engine's lock.

        Raises:
            Refusal: a request runs.
        """
        lock = self._engine.lock
        if not lock.acquire(blocking=False):
            raise Refusal(409, "a request is running; try again when it is done")
        try:
            yield
        finally:
            lock.release()

    async def _completions(self, call: Call) -> Reply:
        body = call.json()
        return await self._answer(body, self._prompt(body), chat=False)

    async def _chat(self, call: Call) -> Reply:
        body = call.json()
        return await self._answer(body, self._chat_prompt(body), chat=True)

    async def _answer(self, body: dict[str, Any], prompt: list[int], *, chat: bool) -> Reply:
        wish, request = self._understood(body, prompt, chat=chat)
        writer = Writer(wish, self._served.tokenizer, self._served.plant)
        steps = self._steps(request, max(wish.logprobs or 0, 1))
        if self._served.plant.id == "late":
            await asyncio.sleep(LATE_SECONDS)
        cut = self._served.plant.id == "cut"
        if body.get("stream"):
            usage = bool((body.get("stream_options") or {}).get("include_usage"))
            return Reply(
                stream=_events(writer, steps, request, usage=usage, cut=cut), content_type="text/event-stream", cut=cut
            )
        made = [step async for step in steps]
        document = writer.document(made, made[-1].finish, stream=False)
        reply = json_reply({**document, "usage": writer.usage(len(made), made[0].cached)})
        return Reply(reply.body, cut=cut)

    async def _steps(self, request: Request, top: int) -> AsyncGenerator[Step, None]:
        """Yield what the engine's thread makes; when the client goes away, the thread stops at the next token."""
        loop, made = asyncio.get_running_loop(), asyncio.Queue[Step | None]()
        gone, waiting = threading.Event(), self._engine.counters.waiting

        def tell(call: Callable[..., None], *given: Step | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server has ended, and nobody waits
                loop.call_soon_threadsafe(call, *given)

        def started() -> None:
            waiting.remove(request)

        def work() -> None:
            tell(started)
            with closing(self._engine.answer(request, top)) as steps:
                for step in steps:
                    tell(made.put_nowait, step)
                    if gone.is_set():
                        break

        waiting.append(request)
        done = self._queue.submit(work)
        done.add_done_callback(lambda _: tell(made.put_nowait, None))
        try:
            while (step := await made.get()) is not None:
                yield step
            done.result()
        except KvverifyError as error:
            raise Refusal(500, f"the lab failed: {error}") from error
        finally:
            gone.set()

    def _understood(self, body: dict[str, Any], prompt: list[int], *, chat: bool) -> tuple[Wish, Request]:
        adapter = self._adapter(body)
        wanted = body.get("max_completion_tokens") if chat else None
        limit = wanted or body.get("max_tokens") or 16
        logprobs = body.get("logprobs")
        if chat:
            logprobs = body.get("top_logprobs") or 0 if logprobs else None
        for name, reason in _REFUSED.items():
            if body.get(name):
                raise Refusal(400, f"{name} {reason}; leave it out")
        for name, neutral in _CHANGES_ANSWERS.items():
            if (given := body.get(name)) is not None and given not in neutral:
                raise Refusal(
                    400, f"the lab does not know {name} and got {given!r}, which would change the answer; leave it out"
                )
        try:
            stops = Stops.of(body.get("stop"))
        except ValueError as error:
            raise Refusal(400, str(error)) from error
        if body.get("temperature") not in (None, 0) or body.get("n") not in (None, 1):
            raise Refusal(400, "the lab decodes greedily, one answer a request: temperature 0, n 1")
        if not isinstance(limit, int) or limit < 1 or (logprobs is not None and not 0 <= int(logprobs) <= 20):
            raise Refusal(400, f"got max_tokens {limit!r}, logprobs {logprobs!r}; expected 1 or more, and 0 to 20")
        longest = self._engine.longest
        if len(prompt) + limit > longest:
            raise Refusal(
                400,
                f"{len(prompt)} prompt tokens and {limit} to generate; this model's maximum context length is {longest}",
            )
        identifier = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        name = self._served.adapter if adapter else self._served.name
        ids = bool(body.get("return_token_ids"))
        wish = Wish(identifier, int(time.time()), name, tuple(prompt), chat, logprobs, ids, stops)
        tokenizer, salt = self._served.tokenizer, str(body.get("cache_salt") or "")
        end = frozenset() if body.get("ignore_eos") else tokenizer.end
        return wish, Request(tuple(prompt), limit, salt, adapter, end, lambda made: stops.ended(made, tokenizer))

    def _adapter(self, body: dict[str, Any]) -> str:
        model = body.get("model") or self._served.name
        if model not in (self._served.name, self._served.adapter):
            raise Refusal(404, f"The model `{model}` does not exist.")
        return "" if model == self._served.name else str(model)

    def _prompt(self, body: dict[str, Any]) -> list[int]:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
            prompt = prompt[0]
        tokens = self._served.tokenizer.encode(prompt) if isinstance(prompt, str) else self._token_ids(prompt)
        if not tokens:
            raise Refusal(400, "the prompt is empty")
        return tokens

    def _chat_prompt(self, body: dict[str, Any]) -> list[int]:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not all(isinstance(m, dict) for m in messages):
            raise Refusal(400, "messages: expected a list of objects with role and content")
        return self._served.tokenizer.chat(messages)

    def _token_ids(self, tokens: Any) -> list[int]:
        size = self._engine.model.shape.vocabulary
        if not isinstance(tokens, list) or not all(type(t) is int and 0 <= t < size for t in tokens):
            raise Refusal(400, f"expected one text, or one list of token ids from 0 to {size - 1}")
        return tokens


async def _events(
    writer: Writer, steps: AsyncGenerator[Step, None], request: Request, *, usage: bool, cut: bool
) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events, one for each token."""
    step = None
    async with aclosing(steps):
        async for step in steps:
            yield _event(writer.document([step], step.finish, stream=True, first=step.number == 0))
            if cut and step.number >= request.max_tokens // 2:
                return
    if usage and step is not None:
        counts = writer.usage(step.number + 1, step.cached)
        yield _event({**writer.envelope([], stream=True), "usage": counts})
    yield b"data: [DONE]\n\n"


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"
