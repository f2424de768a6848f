"""``kvverify selftest --live URL``: plant faults into a running server and show which command sees them. No command of its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvverify.cli.options import seed_of
from kvverify.errors import UsageError
from kvverify.logged_options import LoggedOptions

if TYPE_CHECKING:
    from kvverify.cli.resume import Interrupted
    from kvverify.events import Event
    from kvverify.report.folder import RunFolder
    from kvverify.tierdiff.selftest_live import Target

OWN_LAB = "lab"  # in place of a URL: a lab that is started for the run


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveOptions(LoggedOptions):
    """What decides a run: ``live`` is a URL or ``lab``, ``faults`` are ids or names, all if empty."""

    live: str
    faults: tuple[str, ...]
    seed: int


def start(given: Mapping[str, Any]) -> int:
    """Run the self-test that the options of ``kvverify selftest`` ask for, and return the exit code.

    Raises:
        UsageError: options of copy kernels beside ``--live``.
    """
    from kvverify.report.folder import RunFolder

    if given["kernels"] or given["device"] != "cpu":
        raise UsageError("--live plants into a server: --kernel and --device are for copy kernels; leave them out")
    options = LiveOptions(live=given["live"], faults=given["faults"], seed=seed_of(given))
    return _run(RunFolder.create(given["out"], "selftest"), options, [], as_json=given["as_json"])


def resume(run: Interrupted, *, as_json: bool) -> int:
    """Go on with an interrupted run and return the exit code."""
    return _run(run.folder, LiveOptions.from_log(run.start.options), run.events, as_json=as_json)


def _run(folder: RunFolder, options: LiveOptions, earlier: list[Event], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.events import FaultPlanted, RunStarted
    from kvverify.report.console import LiveConsole
    from kvverify.tierdiff.selftest_live import SelfTestLive

    done = frozenset((e.fault, e.kernel) for e in earlier if isinstance(e, FaultPlanted))
    attempt = sum(isinstance(e, RunStarted) for e in earlier)
    with _target(options.live) as target:
        seed = options.seed + 1000 * attempt  # the server remembers the prompts of the first attempt
        plan = SelfTestLive(target, seed, faults=options.faults, done=done)
        total = sum(len(plant.seen_by) or 1 for plant in plan.chosen())

        return run_checks(
            folder,
            plan.run,
            command="selftest",
            seed=options.seed,
            options=options.to_log(),
            earlier=earlier,
            live=LiveConsole(total=total, unit="fault", done=len(done)),
            as_json=as_json,
        )


@contextmanager
def _target(live: str) -> Iterator[Target]:
    """Return what serves ``live``: a lab of our own, a running lab, or vLLM with the fault connector."""
    from kvverify.live.control import server_root
    from kvverify.tierdiff.selftest_live import VllmTarget

    if live == OWN_LAB:
        from kvverify.lab.serving import running

        with running() as url:
            yield _lab(url)
        return
    root = server_root(live)
    yield _lab(root) if _is_lab(root) else VllmTarget(root)


def _lab(url: str) -> Target:
    from kvverify.lab.plants import LATE_SECONDS, PLANTS
    from kvverify.tierdiff.selftest_live import LabTarget, LivePlant

    late = {"late": 0.8 * LATE_SECONDS}  # only where it is the fault: a busy machine is slow without one
    plants = [LivePlant(p.id, p.name, p.breaks, p.seen_by, p.verdict, p.missing, late.get(p.id, 0.0)) for p in PLANTS]
    return LabTarget(url, tuple(plants))


def _is_lab(url: str) -> bool:
    import asyncio

    from kvverify.live.control import Control

    async def ask() -> bool:
        async with Control(url) as control:
            answer = await control.get_json("/version")
            return isinstance(answer, Mapping) and "lab" in str(answer.get("version"))

    return asyncio.run(ask())
