"""kvverify's own lab server: vLLM's endpoints and counters, and /lab for what vLLM needs a worker extension for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from kvverify.live.control import ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.geometry import member, number
from kvverify.live.engines.vllm_facts import ServerFacts, read_facts
from kvverify.live.engines.vllm_native import VllmNative


class Lab(VllmNative):
    """The lab counts as vLLM's offloading does; it never hits the last token, and stores before it answers."""

    name = "lab"
    marks: ClassVar[tuple[str, ...]] = ()
    _capacity: Mapping[str, Any] = {}

    async def detect(self) -> bool:
        """Is this the lab? It says so as the owner of its models."""
        try:
            return (await read_facts(self.control)).owner == "kvverify-lab"
        except ServerProblem:
            return False

    async def prepare(self, facts: ServerFacts) -> None:
        """Ask for what is the lab's own."""
        own = member(await self.control.get_json("/server_info"), "kvverify_lab", "capacity_tokens")
        self._capacity = own if isinstance(own, Mapping) else {}

    def lower_capacity(self, facts: ServerFacts) -> dict[str, int | None]:
        """Return the tokens of the lab's DRAM tier."""
        return {"dram": number(self._capacity.get("dram"))}

    def more_notes(self, facts: ServerFacts) -> list[str]:
        """Say what it is."""
        return ["a reference server to try kvverify on, no serving engine"]

    def lower_hit(self, prompt_tokens: int, unit: int) -> int:
        """Return whole blocks of all tokens but the last."""
        return (prompt_tokens - 1) // unit * unit

    async def settle(self) -> None:
        """Wait until counters rest; stores are done when the answer comes."""
        await self.evidence()

    async def poison(self) -> str:
        """Overwrite the HBM blocks that hold nothing to hit.

        Raises:
            FlushFailed: refused, or no block was free.
        """
        answer = await self._post("/lab/poison", {})
        blocks = number(member(answer, "poisoned_blocks"))
        if not blocks:
            raise FlushFailed(
                f"POST {self.control.url}/lab/poison: {answer!r:.200}; no block of HBM was free, flush before"
            )
        return f"/lab/poison: {blocks} blocks"

    async def scramble(self) -> str:
        """Overwrite the packed layers of the HBM blocks that can be hit, and leave them to be hit.

        Raises:
            FlushFailed: refused, or no block holds anything.
        """
        answer = await self._post("/lab/scramble", {})
        blocks = number(member(answer, "scrambled_blocks"))
        if not blocks:
            raise FlushFailed(f"POST {self.control.url}/lab/scramble: {answer!r:.200}; no block of HBM can be hit")
        return f"/lab/scramble: {blocks} blocks in {number(member(answer, 'layers'))} layers"

    async def digests(self, prompt: list[int]) -> list[str]:
        """Return the digest of each full block of ``prompt`` in HBM, in order, empty where HBM does not hold it.

        Raises:
            FlushFailed: the lab refuses.
        """
        found = member(await self._post("/lab/digests", {"prompt": prompt}), "digests")
        if not isinstance(found, list):
            raise FlushFailed(f"POST {self.control.url}/lab/digests: expected a list, got {found!r:.200}")
        return ["" if digest is None else str(digest) for digest in found]

    async def _post(self, path: str, body: dict[str, Any]) -> Mapping[str, Any]:
        try:
            answer = await self.control.post_json(path, body)
        except ServerProblem as problem:
            raise FlushFailed(str(problem)) from problem
        return answer if isinstance(answer, Mapping) else {}
