"""``kvverify tier-diff``: is the answer the same whichever tier served it, and did it come from that tier at all?"""

from __future__ import annotations

from typing import Any

import click

from kvverify.cli.options import (
    engine_option,
    own_options,
    require_live,
    require_url,
    run_options,
    seed_of,
    server_options,
    settle_option,
    url_option,
)
from kvverify.cli.resume import interrupted

ARMS = 10  # passes over all requests that are shown as progress


@click.command("tier-diff")
@url_option
@engine_option
@click.option(
    "--tier",
    type=click.Choice(["dram", "disk"]),
    help="Which lower tier, where the engine has several (LMCache's L2 is disk); else its usual one.",
)
@click.option("--requests", type=click.IntRange(1), default=16, show_default=True, metavar="N", help="Prompts a round.")
@click.option(
    "--rounds", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="With new prompts each."
)
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="Requests in flight in the concurrent arms; 1 leaves them out.",
)
@click.option(
    "--max-tokens", type=click.IntRange(1), default=16, show_default=True, metavar="N", help="Tokens of an answer."
)
@click.option(
    "--long-requests",
    type=click.IntRange(0),
    default=1,
    show_default=True,
    metavar="N",
    help="Requests of a round that generate at least 256 tokens.",
)
@click.option(
    "--prompt-tokens",
    type=click.IntRange(1),
    metavar="N",
    help="Length of all prompts; if not given, lengths at which all tiers hit alike.",
)
@click.option("--salt", is_flag=True, help="Send a cache_salt of this run.")
@server_options
@settle_option
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Replay requests from HBM and from the lower tier, prove which tier served them, and compare the answers.

    Between the passes HBM is flushed and overwritten, so that a load that copies nothing cannot pass. What is not proved is
    INCONCLUSIVE, never PASS.
    """
    require_live()
    from kvverify.live.control import server_root
    from kvverify.report.folder import RunFolder
    from kvverify.tierdiff.options import TierDiffOptions

    if run := interrupted(context, "tier-diff"):
        options = TierDiffOptions.from_log(run.start.options)
        return _run(run.folder, options, run.start.seed, run.events, as_json=given["as_json"])
    server_root(require_url(given["url"]))  # refuses what is no URL before a folder is made
    options = TierDiffOptions(**own_options(given))
    return _run(RunFolder.create(given["out"], "tier-diff"), options, seed_of(given), [], as_json=given["as_json"])


def _run(folder: Any, options: Any, seed: int, earlier: list[Any], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.report.console import LiveConsole
    from kvverify.tierdiff.run import tier_diff

    return run_checks(
        folder,
        lambda emit: tier_diff(options, seed, emit, earlier),
        command="tier-diff",
        seed=seed,
        options=options.to_log(),
        earlier=earlier,
        live=LiveConsole(total=ARMS * options.requests * options.rounds, unit="request"),
        as_json=as_json,
    )
