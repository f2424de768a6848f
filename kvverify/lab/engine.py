"""The engine: looks a prompt up, loads, computes the rest, decodes greedily. One request after the other."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvverify.lab.cache import Hit, Key, TieredCache
from kvverify.lab.model import Transformer
from kvverify.lab.plants import Plant


@dataclass(frozen=True)
class Request:
    """What to compute. ``adapter`` empty: the base model. ``stopped`` says of the tokens generated so far whether the answer ends there."""

    prompt: tuple[int, ...]
    max_tokens: int
    salt: str = ""
    adapter: str = ""
    end: frozenset[int] = frozenset()
    stopped: Callable[[Sequence[int]], bool] = lambda _: False


@dataclass(frozen=True)
class Step:
    """Generated token ``number``, its logprob and the most probable tokens; ``cached`` is the prompt's hit in tokens.

    ``finish`` of the last one says why: stop or length.
    """

    number: int
    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]
    cached: int
    finish: str | None = None


@dataclass
class Counters:
    """What the server counts; the names are vLLM's without prefix, with the label's value after a slash."""

    values: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    running: int = 0
    waiting: list[Request] = field(default_factory=list)


class Engine:
    """A model over a tiered cache. ``lock`` is held while a request, or anything that looks into the cache, runs."""

    def __init__(self, model: Transformer, cache: TieredCache, plant: Plant) -> None:
        self.model = model
        self.cache = cache
        self.counters = Counters()
        self.lock = threading.Lock()
        self._plant = plant
        self._size = cache.pages.layout.block_tokens

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer: the model's context, or the HBM pool if that is smaller."""
        return min(self.model.shape.context, self.cache.pages.layout.num_blocks * self._size)

    @torch.inference_mode()
    def answer(self, request: Request, top: int = 1) -> Generator[Step, None, None]:
        """Yield the tokens of the answer; the request's blocks are given back when it ends or is closed."""
        with self.lock:
            self.counters.running += 1
            try:
                yield from self._answer(request, top)
            finally:
                self.counters.running -= 1

    def _answer(self, request: Request, top: int) -> Generator[Step, None, None]:
        prompt = request.prompt
        keys = self.cache.keys(prompt, request.salt, request.adapter)
        hit = self.cache.find(keys[: (len(prompt) - 1) // self._size])  # the last token is always computed
        blocks = self.cache.take(hit, -(-(len(prompt) + request.max_tokens) // self._size))
        try:
            self._admit(hit, len(prompt))
            if self._plant.id == "stale-block":
                self.cache.store(keys, blocks)
            self._restore(hit, blocks, request)
            start = len(hit) * self._size
            alone = self._plant.id == "lost-prefix" and bool(start) and self._longer_new_prompt_waits(request)
            logits = self._compute(prompt[start:], start, blocks, request.adapter, alone=alone)
            self.cache.index(keys, blocks)
            self._count("kv_offload_store_bytes", self.cache.store(keys, blocks))
            yield from self._decode(logits, request, blocks, top, start)
        finally:
            self.cache.give_back(blocks)

    def _longer_new_prompt_waits(self, request: Request) -> bool:
        """Does a request that hits nothing, and is no shorter, wait? The lab computes one at a time, so none runs beside."""
        others = [other for other in tuple(self.counters.waiting) if len(other.prompt) >= len(request.prompt)]
        return any(not len(self.cache.find(self.cache.keys(o.prompt, o.salt, o.adapter))) for o in others)

    def _admit(self, hit: Hit, tokens: int) -> None:
        """Count at admission, before anything is loaded, as engines do."""
        device, host = len(hit.blocks) * self._size, len(hit.slots) * self._size
        self._count("prefix_cache_queries", tokens)
        self._count("prefix_cache_hits", device)
        self._count("external_prefix_cache_queries", tokens - device)
        self._count("external_prefix_cache_hits", host)
        self._count("prompt_tokens_cached_by_source/device", device)
        self._count("prompt_tokens_cached_by_source/host", host)
        self._count("prompt_tokens_by_source/local_compute", tokens - device - host)
        self._count("prompt_tokens_by_source/local_cache_hit", device)
        self._count("prompt_tokens_by_source/external_kv_transfer", host)
        self._count("prompt_tokens_cached", device + host)
        self._count("prompt_tokens", tokens)
        self._count("request_prefill_kv_computed_tokens", tokens - device - host)

    def _restore(self, hit: Hit, blocks: Sequence[int], request: Request) -> None:
        """Bring the DRAM part of a hit into the request's blocks."""
        if not hit.slots:
            return
        began = time.perf_counter()
        slots = list(hit.slots)
        if self._plant.id == "wrong-block":
            slots = [(slot - len(slots)) % self.cache.slots for slot in slots]
        if self._plant.id == "swapped-blocks":
            slots.reverse()
        if self._plant.id in ("hits-recomputed", "counters-lie"):
            self._compute(request.prompt, 0, blocks, request.adapter)  # as when cold, hence the same bits
        else:
            self.cache.pages.load(slots, blocks[len(hit.blocks) : len(hit)])
        if self._plant.id != "hits-recomputed":
            self._count("kv_offload_load_bytes", len(slots) * self.cache.pages.block_bytes)
            self._count("kv_offload_load_time", time.perf_counter() - began)

    def _decode(
        self, logits: Tensor, request: Request, blocks: Sequence[int], top: int, cached: int
    ) -> Generator[Step, None, None]:
        position, made = len(request.prompt), list[int]()
        for number in range(request.max_tokens):
            logprobs = logits.log_softmax(-1)
            values, tokens = logprobs.topk(max(top, 1))
            token = int(tokens[0])
            best = tuple(zip(tokens.tolist(), values.tolist(), strict=True))
            self._count("generation_tokens")
            made.append(token)
            stopped = token in request.end or request.stopped(made)
            finish = "stop" if stopped else "length" if number == request.max_tokens - 1 else None
            yield Step(number, token, float(values[0]), best, cached, finish)
            if finish is not None:
                self._count(f"request_success/{finish}")
                return
            logits = self._compute((token,), position, blocks, request.adapter)
            position += 1

    def _compute(
        self, tokens: Sequence[int], start: int, blocks: Sequence[int], adapter: str, *, alone: bool = False
    ) -> Tensor:
        """Run ``tokens`` from position ``start`` on, write their K and V into ``blocks``; return the logits after the last.

        ``alone``: they attend to each other and to nothing before them.
        """
        attend = _Attention(self.cache, blocks, start, len(tokens), alone=alone)
        return self.model.forward(tokens, start, attend, self._shift(adapter))

    def _shift(self, adapter: str) -> Tensor | None:
        """What an adapter does: it moves every embedding a little, in a direction that its name decides."""
        if not adapter:
            return None
        random = torch.Generator().manual_seed(sum(adapter.encode()))
        table = self.model.embedding
        return torch.randn(table.shape[1], generator=random) * table.std() * 0.05

    def _count(self, name: str, amount: float = 1) -> None:
        self.counters.values[name] += amount

    def digests(self, keys: Sequence[Key]) -> list[str | None]:
        """Return the digest of each HBM block that holds a part of the prefix, None where none does."""
        found = self.cache.find(keys).blocks
        return [*(self.cache.pages.digest(block) for block in found), *[None] * (len(keys) - len(found))]


class _Attention:
    """Writes K and V of the new tokens and attends to all so far.

    A prompt without a hit attends to its own K and V as computed where the layer is packed, like vLLM's first prefill chunk; all
    else reads the pages.
    """

    def __init__(
        self, cache: TieredCache, blocks: Sequence[int], start: int, count: int, *, alone: bool = False
    ) -> None:
        self._alone = alone
        self._pages = cache.pages
        size = cache.pages.layout.block_tokens
        positions = torch.arange(start + count)
        self._places = torch.tensor(blocks)[positions // size] * size + positions % size
        self._start = start
        later = torch.ones(count, start + count, dtype=torch.bool).tril(start)
        self._mask = later if count > 1 and start and not alone else None

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pages = self._pages
        pages.write(layer, self._places[self._start :], k, v)
        if not self._alone and (self._start or not pages.packed(layer)):
            q = pages.turned(layer, q)
            k, v = pages.read(layer, self._places)
        queries, keys, values = (x.transpose(0, 1) for x in (q, k, v))  # [heads, tokens, head_size]
        if len(q) == 1:  # the query heads of a KV head are then rows of one product, and nothing is copied
            queries = queries.view(k.shape[1], -1, q.shape[2])
        else:
            keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=0) for x in (keys, values))
        causal = self._mask is None and len(q) > 1
        out = scaled_dot_product_attention(queries[None], keys[None], values[None], self._mask, is_causal=causal)
        return out.reshape(q.shape[1], len(q), -1).transpose(0, 1).reshape(len(q), -1)
