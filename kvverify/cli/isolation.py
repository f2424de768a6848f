"""``kvverify isolation``: does every session find its own content in the cache, and no other's?"""

from __future__ import annotations

from typing import Any

import click

from kvverify.cli.options import (
    engine_option,
    own_options,
    require_url,
    run_options,
    seed_of,
    server_options,
    url_option,
)
from kvverify.cli.resume import interrupted


@click.command("isolation")
@url_option
@engine_option
@click.option(
    "--sessions", type=click.IntRange(2), default=32, show_default=True, metavar="N", help="Sessions at once."
)
@click.option(
    "--rounds", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Times that all are reloaded."
)
@click.option(
    "--beside",
    type=click.IntRange(0),
    default=8,
    show_default=True,
    metavar="N",
    help="New prompts computed beside the sessions in each round.",
)
@server_options
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Keep many sessions apart while their blocks go to the lower tier and back.

    Sessions share one beginning and have a secret each. They are forced out of HBM and reloaded all at once, again and again,
    while new prompts are computed beside them; every answer must give its own secret and none another's. Foreign content is always
    a FAIL and names the session it came from. A session counts once it gave a right answer from HBM, so that a weak model is no
    alarm. Salts, adapters and prompts that differ in one early token are checked, too.
    """
    from kvverify.report.folder import RunFolder
    from kvverify.tierdiff.isolation_run import IsolationPlan

    if run := interrupted(context, "isolation"):
        plan = IsolationPlan.from_log(run.start.options)
        return _run(run.folder, plan, run.start.seed, run.events, as_json=given["as_json"])
    require_url(given["url"])
    plan = IsolationPlan(**own_options(given))
    return _run(RunFolder.create(given["out"], "isolation"), plan, seed_of(given), [], as_json=given["as_json"])


def _run(folder: Any, plan: Any, seed: int, earlier: list[Any], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.live.control import server_root
    from kvverify.report.console import LiveConsole
    from kvverify.tierdiff.isolation_run import isolation

    server_root(plan.url)  # refuses what is no URL before anything is logged
    return run_checks(
        folder,
        lambda emit: isolation(plan, seed, emit, earlier),
        command="isolation",
        seed=seed,
        options=plan.to_log(),
        earlier=earlier,
        live=LiveConsole(total=plan.sessions * (plan.rounds + 2), unit="request"),
        as_json=as_json,
    )
