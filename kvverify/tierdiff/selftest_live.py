"""Faults planted into a server while it runs: would tier-diff and isolation have seen them?

A target switches faults: the lab by ``POST /lab/plant``, vLLM with the fault connector through the worker extension. Every fault is
run through the commands that must see it; without any, each command must say PASS. INCONCLUSIVE is a kill only where it was
declared in advance; a fault that no client can see is run as well, and counts as declared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from kvverify.errors import KvverifyError, UsageError, nearest
from kvverify.events import Event, FaultPlanted, ProblemMet, RequestAnswered, RunFinished, RunStarted, Verdict
from kvverify.inserver.kv_faults import FAULTS
from kvverify.live.control import Control, ServerProblem
from kvverify.live.engine import FlushFailed
from kvverify.live.engines.vllm_workers import call
from kvverify.tierdiff.isolation_run import IsolationPlan, isolation
from kvverify.tierdiff.options import TierDiffOptions
from kvverify.tierdiff.run import tier_diff
from kvverify.tierdiff.server import Emit
from kvverify.verdicts import reasons, verdict_of

COMMANDS = ("tier-diff", "isolation")


@dataclass(frozen=True, slots=True)
class LivePlant:
    """A fault of a server; ``verdict`` is what the commands ``seen_by`` must say. Without those, ``missing`` says why.

    ``timeout_s``: answers that come later than this are late; 0 for the usual time.
    """

    id: str
    name: str
    breaks: str
    seen_by: tuple[str, ...] = ()
    verdict: str = ""
    missing: str = ""
    timeout_s: float = 0.0


class Target(Protocol):
    """A server whose faults can be switched."""

    @property
    def plants(self) -> Sequence[LivePlant]:
        """The faults it can have."""
        ...

    def switch(self, plant: str) -> str:
        """Plant this fault, none if empty, and return the URL to test.

        Raises:
            KvverifyError: it cannot be switched.
        """
        ...

    def withdraw(self) -> int | None:
        """Switch the fault off and return how often it was planted; None: the server does not count."""
        ...


@dataclass
class VllmTarget:
    """vLLM that was started with a connector of ``kvverify.inserver.fault_connector`` and with the worker extension."""

    url: str
    plants: tuple[LivePlant, ...] = tuple(
        LivePlant(name, name, breaks, ("tier-diff",), "FAIL") for name, breaks in FAULTS.items()
    )

    def switch(self, plant: str) -> str:
        """Switch every rank."""
        self._call(plant)
        return self.url

    def withdraw(self) -> int:
        """Switch the fault off and return how often the rank that did so least planted it."""
        return min(int(answer.get("planted", 0)) for answer in self._call(""))

    def _call(self, plant: str) -> list[dict[str, Any]]:
        async def ask() -> list[dict[str, Any]]:
            async with Control(self.url) as control:
                return await call(control, "kvverify_plant", plant)

        try:
            return asyncio.run(ask())
        except FlushFailed as problem:
            hint = "start it with kv_connector FaultyX and kv_connector_module_path kvverify.inserver.fault_connector"
            raise ServerProblem(f"{problem}; {hint}") from problem


@dataclass
class LabTarget:
    """A running lab."""

    url: str
    plants: tuple[LivePlant, ...]

    def switch(self, plant: str) -> str:
        """Let the lab serve with this fault from now on; its caches are empty then."""

        async def ask() -> None:
            async with Control(self.url) as control:
                await control.post_json("/lab/plant", {"plant": plant})

        asyncio.run(ask())
        return self.url

    def withdraw(self) -> None:
        """Serve without a fault; the lab does not count."""
        self.switch("")


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked for each fault."""

    requests: int = 3
    sessions: int = 6
    rounds: int = 1
    timeout_s: float = 60.0


@dataclass
class SelfTestLive:
    """The run over ``target``. ``faults`` are ids or names, all if empty; ``done`` are (fault, command) of an earlier run."""

    target: Target
    seed: int
    sizes: Sizes = field(default_factory=Sizes)
    faults: Sequence[str] = ()
    done: frozenset[tuple[str, str]] = frozenset()

    def chosen(self) -> list[LivePlant]:
        """Return the faults that are meant.

        Raises:
            UsageError: there is no such fault.
        """
        by_name = {name.lower(): p for p in self.target.plants for name in (p.id, p.name)}
        unknown = next((fault for fault in self.faults if fault.lower() not in by_name), None)
        if unknown is not None:
            raise UsageError(f"unknown fault {unknown!r}; {nearest(unknown, [p.id for p in self.target.plants])}")
        wanted = [by_name[fault.lower()] for fault in self.faults]
        return list(dict.fromkeys(wanted)) or list(self.target.plants)

    def run(self, emit: Emit) -> None:
        """Run the commands without a fault, then with each, and emit what became of it."""
        plants = self.chosen()
        commands = [c for c in COMMANDS if any(c in (p.seen_by or COMMANDS[:1]) for p in plants)]
        try:
            url = self.target.switch("")
            for command in commands:
                verdict, why, _, _ = self.command(command, url, self.sizes.timeout_s)
                if verdict is not Verdict.PASS:
                    emit(ProblemMet(where=command, problem=f"{verdict} without any planted fault: {why}"))
                    return
            for plant in plants:
                for command in plant.seen_by or COMMANDS[:1]:
                    if (plant.id, command) not in self.done:
                        emit(self.plant(plant, command))
        except KvverifyError as problem:
            emit(ProblemMet(where="planting faults", problem=str(problem)))
        finally:
            self._clean(emit)

    def _clean(self, emit: Emit) -> None:
        try:
            self.target.switch("")
        except KvverifyError as problem:
            emit(ProblemMet(where="taking the last fault away", problem=str(problem)))

    def plant(self, plant: LivePlant, command: str) -> FaultPlanted:
        """Run ``command`` with ``plant`` switched on and return what became of the fault."""
        url = self.target.switch(plant.id)
        verdict, why, asked, seconds = self.command(command, url, plant.timeout_s or self.sizes.timeout_s)
        outcome, reason = judged(plant, verdict, self.target.withdraw())
        return FaultPlanted(
            fault=plant.id,
            name=plant.name,
            kernel=command,
            outcome=outcome,
            reason=reason,
            by=str(verdict) if outcome == "killed" else "",
            headline=why,
            examples=asked,
            seconds=seconds,
        )

    def command(self, name: str, url: str, timeout_s: float) -> tuple[Verdict, str, int, float]:
        """Run a command and return its verdict, its first reason, the number of requests and the seconds."""
        began = time.monotonic()
        events: list[Event] = []
        sizes = self.sizes
        self.seed += 1  # the server remembers the prompts of the last run
        run: Callable[[], None]
        if name == "tier-diff":
            diff = TierDiffOptions(
                url=url, requests=sizes.requests, concurrency=2, long_requests=0, timeout_s=timeout_s
            )
            options, run = diff.to_log(), lambda: tier_diff(diff, self.seed, events.append)
        else:
            plan = IsolationPlan(url=url, sessions=sizes.sessions, rounds=sizes.rounds, timeout_s=timeout_s)
            options, run = plan.to_log(), lambda: isolation(plan, self.seed, events.append)
        events.append(RunStarted(command=name, version="", seed=self.seed, options=options))
        run()
        seconds = time.monotonic() - began
        events.append(RunFinished(seconds=seconds))
        asked = sum(isinstance(e, RequestAnswered) for e in events)
        return verdict_of(events), _first(events), asked, seconds


def judged(plant: LivePlant, verdict: Verdict, planted: int | None) -> tuple[str, str]:
    """Return the outcome of ``plant`` and the reason.

    What was declared FAIL and came out INCONCLUSIVE survived: nobody would look for a fault there.
    """
    if planted == 0:
        return "n/a", "the server loaded nothing that it could have been planted into"
    if verdict is Verdict.FAIL or (plant.seen_by and str(verdict) == plant.verdict):
        return "killed", plant.breaks
    if not plant.seen_by and verdict in (Verdict.PASS, Verdict.INCONCLUSIVE):
        return "declared", plant.missing
    return "survived", f"{plant.breaks}: {verdict}, expected {plant.verdict or 'none'}"


def _first(events: Iterable[Event]) -> str:
    found = reasons(events)
    return found[0].text if found else ""
