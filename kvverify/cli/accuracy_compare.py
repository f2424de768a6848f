"""``kvverify accuracy compare BASE RUN...``: what a format or a tier costs, sample by sample."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kvverify.cli.options import alpha_option, margin_option, own_options, power_option, run_options, seed_of
from kvverify.cli.resume import interrupted
from kvverify.errors import EnvironmentProblem, UsageError

if TYPE_CHECKING:
    from kvverify.accuracy.arm import Arm
    from kvverify.accuracy.compare import ComparePlan
    from kvverify.events import Event
    from kvverify.report.folder import RunFolder

COMMAND = "accuracy compare"


@click.command("compare")
@click.argument("base", metavar="BASE", required=False)
@click.argument("runs", metavar="RUN...", nargs=-1)
@margin_option
@alpha_option
@power_option
@click.option(
    "--vary",
    multiple=True,
    default=("kv_cache_dtype",),
    show_default="kv_cache_dtype",
    metavar="VARIABLE",
    help="What is under test: the arms may differ in this and in nothing else; repeatable.",
)
@click.option("--again", metavar="RUN", help="The base measured once more: what changes by itself.")
@click.option("--tier", multiple=True, metavar="RUN", help="An arm served from a lower tier; repeatable.")
@click.option(
    "--control", multiple=True, metavar="RUN", help="An arm with a scrambled cache, which must score lower; repeatable."
)
@click.option(
    "--draws",
    type=click.IntRange(100),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Resamples of the bootstrap.",
)
@click.option(
    "--fixed-documents",
    is_flag=True,
    help="Take documents and haystacks that samples share as given: claims are then about these alone, and say so.",
)
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Compare accuracy runs pair by pair and say whether each RUN loses less than the margin against BASE.

    Arms are paired by sample, and refused where they differ in more than what is under test. Neutral means shown to lose less
    than the margin; where neither that nor a loss is shown, the answer is INCONCLUSIVE, with the number of samples it takes.
    Without --margin the suite's own is tested.
    """
    from kvverify.accuracy.compare import ComparePlan
    from kvverify.report.folder import RunFolder

    require_scipy()
    if run := interrupted(context, COMMAND):
        plan = ComparePlan.from_log(run.start.options)
        return _run(run.folder, plan, _arms(plan), run.start.seed, run.events, as_json=given["as_json"])
    if given["base"] is None:
        raise UsageError("BASE is missing: the run folder of the arm that the others are compared with")
    plan = ComparePlan(**own_options(given))
    arms = _arms(plan)  # refuses what is no arm before a folder is made
    if context.get_parameter_source("margin") is ParameterSource.DEFAULT and arms[0].start.margin:
        plan = replace(plan, margin=arms[0].start.margin)
    folder = RunFolder.create(given["out"], "accuracy-compare")
    return _run(folder, plan, arms, seed_of(given), [], as_json=given["as_json"])


def require_scipy() -> None:
    """Check that the statistics are installed.

    Raises:
        EnvironmentProblem: scipy is missing.
    """
    if importlib.util.find_spec("scipy") is None:
        raise EnvironmentProblem("scipy not installed; accuracy needs: pip install 'kvverify[accuracy]'")


def _arms(plan: ComparePlan) -> list[Arm]:
    from kvverify.accuracy.compare import read_arms

    return read_arms(plan, _read)


def _read(path: Path) -> tuple[Sequence[Event], str]:
    import hashlib

    from kvverify.report.folder import RunFolder
    from kvverify.report.log import read_events

    log = RunFolder.open(path, writable=False).events
    return read_events(log), hashlib.sha256(log.read_bytes()).hexdigest()


def _run(
    folder: RunFolder, plan: ComparePlan, arms: list[Arm], seed: int, earlier: list[Event], *, as_json: bool
) -> int:
    from kvverify.accuracy.compare import compare
    from kvverify.cli.running import run_checks
    from kvverify.report.console import LiveConsole

    return run_checks(
        folder,
        lambda emit: compare(arms, plan, seed, emit),
        command=COMMAND,
        seed=seed,
        options=plan.to_log(),
        earlier=earlier,
        live=LiveConsole(),
        as_json=as_json,
    )
