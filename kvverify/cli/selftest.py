"""``kvverify selftest``: plant every known fault and show which check kills it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import device_option, refuse_beside_resume, run_options
from kvverify.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvverify.events import Event
    from kvverify.faults.fault import Fault
    from kvverify.report.folder import RunFolder
    from kvverify.roundtrip.selftest import SelfTest


@click.command("selftest")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="SPEC",
    help="Plant into this kernel; repeatable. If not given: torch, lmcache and vllm-triton; on a GPU all that run.",
)
@device_option
@click.option("--fault", "faults", multiple=True, metavar="ID", help="Only this fault, such as F04; repeatable.")
@click.option(
    "--live",
    metavar="URL",
    help="Plant into a server: a lab, vLLM with kvverify's fault connector, or `lab` to start one.",
)
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Plant every known fault and show which check kills it.

    A fault that no check sees is a blind spot of kvverify: the table then says survived, and the exit code is 1. Beside the
    faults, every kernel runs the same sequences without one and must pass. With --live the faults are a server's, and tier-diff and
    isolation must see them.
    """
    import secrets

    from kvverify.cli import selftest_live
    from kvverify.report.folder import RunFolder
    from kvverify.report.log import read_events

    if given["resume"] is not None:
        refuse_beside_resume(context)
        folder = RunFolder.open(given["resume"])
        earlier = read_events(folder.events)
        if _is_live(earlier):
            options = selftest_live.options_of(_start(earlier).options, given["resume"])
            return selftest_live.resume(folder, options, earlier, as_json=given["as_json"])
        return _run(folder, _options_of(earlier, given["resume"]), earlier, as_json=given["as_json"])
    if given["live"] is not None:
        return selftest_live.start(given)
    options = {
        "kernels": _specs(given["kernels"], given["device"]),
        "device": given["device"],
        "faults": [fault.id for fault in _named(given["faults"], given["device"])],
        "given": bool(given["kernels"]),
        "seed": secrets.randbits(32) if given["seed"] is None else given["seed"],
    }
    return _run(RunFolder.create(given["out"], "selftest"), options, [], as_json=given["as_json"])


def _is_live(events: Sequence[Event]) -> bool:
    start = _start(events)
    return start is not None and start.command == "selftest" and "live" in start.options


def _start(events: Sequence[Event]) -> Any:
    from kvverify.events import RunStarted

    return next((e for e in events if isinstance(e, RunStarted)), None)


def _specs(kernels: Sequence[str], device: str) -> list[str]:
    from kvverify.kernels.probe import require_device
    from kvverify.kernels.registry import resolve
    from kvverify.roundtrip.selftest import default_kernels

    specs = list(dict.fromkeys(resolve(spec, device).spec for spec in kernels or default_kernels(device)))
    require_device(device)
    return specs


def _named(faults: Sequence[str], device: str) -> tuple[Fault, ...]:
    from kvverify.faults.catalogue import fault_named
    from kvverify.roundtrip.selftest import plantable

    return tuple(dict.fromkeys(fault_named(name) for name in faults)) if faults else plantable(device)


def _options_of(events: Sequence[Event], where: Path) -> dict[str, Any]:
    start = _start(events)
    wanted = {"kernels", "faults", "given", "seed"}
    if start is None or start.command != "selftest" or not wanted <= set(start.options):
        raise UsageError(
            f"--resume {where}: holds {'a ' + start.command if start else 'no'} run; expected one of selftest"
        )
    return {
        "device": "cpu",
        **{name: start.options[name] for name in (*sorted(wanted), "device") if name in start.options},
    }


def _plan(options: dict[str, Any], folder: RunFolder, earlier: Sequence[Event]) -> SelfTest:
    from kvverify.events import FaultPlanted
    from kvverify.kernels.registry import resolve
    from kvverify.layout.gpu_pool import pool_for
    from kvverify.roundtrip.selftest import SelfTest

    return SelfTest(
        sources=tuple(resolve(spec, options["device"]) for spec in options["kernels"]),
        faults=_named(options["faults"], options["device"]),
        seed=options["seed"],
        recipes=pool_for(options["device"]),
        given=options["given"],
        logs=folder.path,
        done=frozenset((e.fault, e.kernel) for e in earlier if isinstance(e, FaultPlanted)),
    )


def _run(folder: RunFolder, options: dict[str, Any], earlier: list[Event], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.report.console import LiveConsole
    from kvverify.roundtrip.selftest import selftest

    plan = _plan(options, folder, earlier)
    return run_checks(
        folder,
        lambda emit: selftest(plan, emit, folder.write_failure, _say_left_out),
        command="selftest",
        seed=options["seed"],
        options=options,
        earlier=earlier,
        live=LiveConsole(total=len(plan.sources) * len(plan.faults), unit="fault", done=len(plan.done)),
        as_json=as_json,
    )


def _say_left_out(kernel: str, reason: str) -> None:
    click.echo(f"kernel {kernel} is left out: {reason}", err=True)
