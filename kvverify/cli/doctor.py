"""``kvverify doctor``: configuration faults that make a test meaningless or a cache useless."""

from __future__ import annotations

from typing import Any

import click

from kvverify.cli.options import (
    engine_option,
    json_option,
    lmcache_url_option,
    out_option,
    request_timeout_option,
    seed_of,
    seed_option,
    served_model_option,
)


@click.command("doctor")
@click.option(
    "--url", required=True, metavar="URL", help="The server, http://HOST:PORT. Its key is read from KVVERIFY_API_KEY."
)
@engine_option
@served_model_option
@lmcache_url_option
@request_timeout_option
@out_option
@seed_option
@json_option
def command(**given: Any) -> int:
    """Look for configuration faults that were seen in the field: what each breaks, and what to set.

    Settings are read from the server. What no endpoint shows is tried: of two identical prompts the second must hit HBM, and the
    lower tier once HBM was emptied.
    """
    from kvverify.cli.running import run_checks
    from kvverify.live.control import server_root
    from kvverify.report.console import LiveConsole
    from kvverify.report.folder import RunFolder
    from kvverify.tierdiff.connect import Connection
    from kvverify.tierdiff.doctor_run import doctor

    server_root(given["url"])  # refuses what is no URL before anything is logged
    options = {name: given[name] for name in ("url", "engine", "model", "lmcache_url", "timeout_s")}
    seed = seed_of(given)
    return run_checks(
        RunFolder.create(given["out"], "doctor"),
        lambda emit: doctor(Connection(shared=True, **options), seed, emit),
        command="doctor",
        seed=seed,
        options=options,
        earlier=[],
        live=LiveConsole(unit="request"),
        as_json=given["as_json"],
    )
