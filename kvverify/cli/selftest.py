"""``kvverify selftest``: plant every known fault and show which check kills it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import device_option, run_options, seed_of
from kvverify.cli.resume import interrupted
from kvverify.logged_options import LoggedOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvverify.events import Event
    from kvverify.faults.fault import Fault
    from kvverify.report.folder import RunFolder
    from kvverify.roundtrip.selftest import SelfTest


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTestOptions(LoggedOptions):
    """What decides a run; ``given`` says that the user named the kernels, as in :class:`SelfTest`."""

    kernels: tuple[str, ...]
    device: str = "cpu"
    faults: tuple[str, ...]
    given: bool
    seed: int


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
    from kvverify.cli import selftest_live
    from kvverify.report.folder import RunFolder

    if run := interrupted(context, "selftest"):
        if "live" in run.start.options:
            return selftest_live.resume(run, as_json=given["as_json"])
        options = SelfTestOptions.from_log(run.start.options)
        return _run(run.folder, options, run.events, as_json=given["as_json"])
    if given["live"] is not None:
        return selftest_live.start(given)
    options = SelfTestOptions(
        kernels=_specs(given["kernels"], given["device"]),
        device=given["device"],
        faults=tuple(fault.id for fault in _named(given["faults"], given["device"])),
        given=bool(given["kernels"]),
        seed=seed_of(given),
    )
    return _run(RunFolder.create(given["out"], "selftest"), options, [], as_json=given["as_json"])


def _specs(kernels: Sequence[str], device: str) -> tuple[str, ...]:
    from kvverify.kernels.probe import require_device
    from kvverify.kernels.registry import resolve
    from kvverify.roundtrip.selftest import default_kernels

    specs = tuple(dict.fromkeys(resolve(spec, device).spec for spec in kernels or default_kernels(device)))
    require_device(device)
    return specs


def _named(faults: Sequence[str], device: str) -> tuple[Fault, ...]:
    from kvverify.faults.catalogue import fault_named
    from kvverify.roundtrip.selftest import plantable

    return tuple(dict.fromkeys(fault_named(name) for name in faults)) if faults else plantable(device)


def _plan(options: SelfTestOptions, folder: RunFolder, earlier: Sequence[Event]) -> SelfTest:
    from kvverify.events import FaultPlanted
    from kvverify.kernels.registry import resolve
    from kvverify.layout.gpu_pool import pool_for
    from kvverify.roundtrip.selftest import SelfTest

    return SelfTest(
        sources=tuple(resolve(spec, options.device) for spec in options.kernels),
        faults=_named(options.faults, options.device),
        seed=options.seed,
        recipes=pool_for(options.device),
        given=options.given,
        logs=folder.path,
        done=frozenset((e.fault, e.kernel) for e in earlier if isinstance(e, FaultPlanted)),
    )


def _run(folder: RunFolder, options: SelfTestOptions, earlier: list[Event], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.report.console import LiveConsole
    from kvverify.roundtrip.selftest import selftest

    plan = _plan(options, folder, earlier)
    return run_checks(
        folder,
        lambda emit: selftest(plan, emit, folder.write_failure, _say_left_out),
        command="selftest",
        seed=options.seed,
        options=options.to_log(),
        earlier=earlier,
        live=LiveConsole(total=len(plan.sources) * len(plan.faults), unit="fault", done=len(plan.done)),
        as_json=as_json,
    )


def _say_left_out(kernel: str, reason: str) -> None:
    click.echo(f"kernel {kernel} is left out: {reason}", err=True)
