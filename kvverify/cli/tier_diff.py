"""``kvverify tier-diff``: is the answer the same whichever tier served it, and did it come from that tier at all?"""

from __future__ import annotations

from typing import Any

import click

from kvverify.cli.options import (
    engine_option,
    lmcache_url_option,
    request_timeout_option,
    require_live,
    run_options,
    served_model_option,
    shared_option,
)
from kvverify.cli.resume import interrupted
from kvverify.errors import UsageError

ARMS = 10  # passes over all requests that are shown as progress


@click.command("tier-diff")
@click.option("--url", metavar="URL", help="The server, http://HOST:PORT. Its key is read from KVVERIFY_API_KEY.")
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
@shared_option
@served_model_option
@lmcache_url_option
@request_timeout_option
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0, min_open=True),
    default=0.25,
    show_default=True,
    metavar="S",
    help="Counters have settled when they agree over this time.",
)
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Replay requests from HBM and from the lower tier, prove which tier served them, and compare the answers.

    Between the passes HBM is flushed and overwritten, so that a load that copies nothing cannot pass. What is not proved is
    INCONCLUSIVE, never PASS.
    """
    import secrets

    require_live()
    from kvverify.live.control import server_root
    from kvverify.report.folder import RunFolder
    from kvverify.tierdiff.options import TierDiffOptions

    if run := interrupted(context, "tier-diff"):
        options = TierDiffOptions.from_log(run.start.options)
        return _run(run.folder, options, run.start.seed, run.events, as_json=given["as_json"])
    if given["url"] is None:
        raise UsageError("--url is missing: which server? For a try, start `kvverify lab` and give the URL it prints")
    server_root(given["url"])  # refuses what is no URL before a folder is made
    names = [name for name in given if name not in ("out", "resume", "seed", "as_json")]
    options = TierDiffOptions(**{name: given[name] for name in names})
    seed = secrets.randbits(32) if given["seed"] is None else given["seed"]
    return _run(RunFolder.create(given["out"], "tier-diff"), options, seed, [], as_json=given["as_json"])


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
