"""llama.cpp's server: a slot's KV cache, and files that it is saved to and restored from on request.

The lower tier is written and read on command, so this adapter has two methods more: ``store`` after a prompt was answered,
and ``restore`` before it is asked again. Start the server with ``-np 1 --slot-save-path FOLDER --metrics``, and ``--cache-ram 0`` where it
knows that: else erased slots come back from the server's own memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import EngineInfo, Evidence, Expected, FlushFailed
from kvverify.live.engines.geometry import member, number
from kvverify.live.engines.options import EngineOptions
from kvverify.live.engines.owner import owned_by
from kvverify.live.engines.vllm import count
from kvverify.live.engines.vllm_facts import read_metrics
from kvverify.live.metrics import settled

_HOW = "start llama-server with -np 1 --slot-save-path FOLDER --metrics --cache-ram 0"
_SLOT = 0


@dataclass(frozen=True, slots=True)
class _Look:
    """One reading: the slot's task, prompt and cached tokens, and counters of all requests; ``cached`` is not in older builds."""

    slot: tuple[int | None, ...]
    computed: int | None = None
    cached: int | None = None
    running: int | None = None


class LlamaCpp:
    """llama.cpp at one URL, with one slot.

    A hit is what the slot shows of its last request, so there must be one request between two readings.
    """

    name = "llamacpp"

    def __init__(self, url: str, options: EngineOptions | None = None) -> None:
        self.options = options or EngineOptions()
        self.control = Control(url, timeout_s=self.options.timeout_s)
        self.info: EngineInfo | None = None
        self._task: int | None = None  # the request that was last seen in the slot
        self._from_file = False  # is what the slot holds from a file?
        self._hbm = self._disk = self._asked = 0
        self._read_bytes = self._restored_tokens = 0
        self._written: dict[str, int] = {}  # bytes of each file
        self._bytes_of: dict[int, int] = {}  # bytes of the file of a prompt of so many tokens

    async def detect(self) -> bool:
        """Is this llama.cpp? By the owner of its models."""
        return await owned_by(self.control, "llamacpp")

    async def describe(self) -> EngineInfo:
        """Return what the server says of itself.

        Raises:
            ServerProblem: it does not answer.
        """
        models = await self.control.get_json("/v1/models")
        props = await self.control.get_json("/props")
        slots, context = number(member(props, "total_slots")), _context(props)
        metrics = await read_metrics(self.control)
        notes = []
        if slots != 1:
            notes.append(f"{slots} slots: which one a request gets is not told; {_HOW}")
        if metrics is None:
            notes.append(f"no metrics: nothing can be proved; {_HOW}")
        self.info = EngineInfo(
            engine=self.name,
            model=str(member(models, "data")[0].get("id")),
            build=str(member(props, "build_info") or ""),
            block_tokens=1,
            hit_tokens=1,
            capacity_tokens={} if context is None else {"hbm": context},
            lower_tier="disk",
            dev_endpoints=("slots",),
            max_context=context,
            options={"total_slots": slots},
            notes=tuple(notes),
            prompts_in_hbm=1,
        )
        return self.info

    async def evidence(self) -> Evidence:
        """Return the counters once two readings agree.

        Raises:
            ServerProblem: no answer, or they do not come to rest.
        """
        look = await settled(self._look, self.options.settle_interval_s, self.options.settle_limit_s)
        told = True
        if look.cached is None:
            told = self._book(look.slot)
        else:
            self._count(look.computed or 0, look.cached)
        return Evidence(
            hbm_hit_tokens=self._hbm if told else None,
            dram_hit_tokens=0 if told else None,
            disk_hit_tokens=self._disk if told else None,
            loaded_bytes=self._read_bytes,
            computed_tokens=look.computed,
            queries=self._asked if told else None,
            running=look.running,
            witness={"restored_tokens": self._restored_tokens},
        )

    async def _look(self) -> _Look:
        slots = await self.control.get_json("/slots")
        first = slots[_SLOT] if isinstance(slots, list) and slots and isinstance(slots[_SLOT], Mapping) else {}
        slot = tuple(number(first.get(name)) for name in ("id_task", "n_prompt_tokens", "n_prompt_tokens_cache"))
        metrics = await read_metrics(self.control)
        if metrics is None:
            return _Look(slot)
        names = ("prompt_tokens", "prompt_tokens_cached", "requests_processing")
        return _Look(slot, *(count(metrics, f"llamacpp:{name}") for name in names))

    def _count(self, computed: int, cached: int) -> None:
        """Add what was hit since the last reading, of builds that count it: their slots forget it when a request ends."""
        if self._from_file:
            self._disk += cached - self._hbm - self._disk
        else:
            self._hbm = cached - self._disk
        if computed + cached != self._asked:
            self._asked, self._from_file = computed + cached, False

    def _book(self, slot: tuple[int | None, ...]) -> bool:
        """Add the slot's last request, if it is a new one; return whether the slot tells what it hit."""
        task, prompt, cached = slot
        if task is None:
            return True  # a slot that was never used
        if prompt is None or cached is None:
            return False
        if task != self._task:
            self._asked += prompt
            if self._from_file:
                self._disk += cached
            else:
                self._hbm += cached
            self._task, self._from_file = task, False
        return True

    def expected(self, prompt_tokens: int) -> Expected:
        """Return what a prompt must show: all tokens but the last are hit, the bytes are those of its file once stored."""
        hit = prompt_tokens - 1
        return Expected(hit, hit, 1, loaded_bytes=self._bytes_of.get(prompt_tokens))

    async def store(self, name: str, prompt_tokens: int) -> None:
        """Save the slot, which holds a prompt of ``prompt_tokens`` tokens and its answer, to the file ``name``.

        Raises:
            FlushFailed: refused, or nothing was written.
        """
        answer = await self._act("save", {"filename": name})
        written, saved = number(member(answer, "n_written")), number(member(answer, "n_saved"))
        if not written or saved is None or saved < prompt_tokens:
            raise FlushFailed(
                f"slot {_SLOT} save: {saved} tokens in {written} bytes, expected {prompt_tokens} tokens or more"
            )
        self._written[name] = self._bytes_of[prompt_tokens] = written

    async def restore(self, name: str) -> None:
        """Fill the slot from the file ``name``; :meth:`flush` it before.

        Raises:
            FlushFailed: refused, or not as many bytes were read as written.
        """
        answer = await self._act("restore", {"filename": name})
        read, restored = number(member(answer, "n_read")), number(member(answer, "n_restored"))
        if not read or not restored or read != self._written.get(name, read):
            raise FlushFailed(f"slot {_SLOT} restore: {read} bytes read, {self._written.get(name)} were written")
        self._read_bytes, self._restored_tokens = self._read_bytes + read, self._restored_tokens + restored
        self._from_file = True

    async def flush(self, tier: str) -> None:
        """Erase the slot.

        Raises:
            FlushFailed: refused, or a tier of files, which outlive everything.
        """
        if tier != "hbm":
            raise FlushFailed(
                f"llamacpp: {tier} is a folder on the server's disk; remove what is under --slot-save-path"
            )
        if number(member(await self._act("erase", {}), "n_erased")) is None:
            raise FlushFailed(f"slot {_SLOT} erase: the server does not say what it erased")
        self._from_file = False

    async def _act(self, action: str, body: dict[str, Any]) -> Mapping[str, Any]:
        try:
            answer = await self.control.post_json(f"/slots/{_SLOT}", body, params={"action": action})
        except ServerProblem as problem:
            raise FlushFailed(f"{problem}; {_HOW}") from problem
        return answer if isinstance(answer, Mapping) else {}

    async def settle(self) -> None:
        """Wait until counters rest."""
        await self.evidence()

    async def close(self) -> None:
        """Close connections."""
        await self.control.close()


def _context(props: Any) -> int | None:
    told = member(props, "default_generation_settings", "n_ctx") if isinstance(props, Mapping) else None
    return number(told)
