"""Options that commands share, declared once."""

from __future__ import annotations

import importlib.util
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from kvverify.errors import EnvironmentProblem, UsageError

F = TypeVar("F", bound=Callable[..., Any])

out_option = click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Run folder to make; runs/TIME-COMMAND if not given.",
)
resume_option = click.option(
    "--resume",
    type=click.Path(path_type=Path),
    metavar="RUN",
    help="Go on with an interrupted run: its folder.",
)
seed_option = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    metavar="N",
    help="Seed of all random choices. The run prints the one it used.",
)
json_option = click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Make the last line of standard output one JSON document.",
)


device_option = click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Where the engine's memory lies; cuda is a GPU, also under ROCm.",
)

url_option = click.option(
    "--url", metavar="URL", help="The server, http://HOST:PORT. Its key is read from KVVERIFY_API_KEY."
)
engine_option = click.option(
    "--engine",
    default="auto",
    show_default=True,
    metavar="NAME",
    help="Adapter of the serving engine; own ones as pkg.mod:Attr or file.py:Attr.",
)
request_timeout_option = click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(min=0, min_open=True),
    default=300.0,
    show_default=True,
    metavar="S",
    help="Longest time for one request.",
)
shared_option = click.option("--shared", is_flag=True, help="Allow other clients' requests on the server.")
lmcache_url_option = click.option("--lmcache-url", metavar="URL", help="HTTP port of the LMCache server.")
served_model_option = click.option(
    "--model", metavar="CONFIG", help="Configuration of the served model, for exact bytes."
)
settle_option = click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(min=0, min_open=True),
    default=0.25,
    show_default=True,
    metavar="S",
    help="Counters have settled when they agree over this time.",
)

time_limit_option = click.option(
    "--time-limit",
    type=click.FloatRange(min=0.1),
    default=20.0,
    show_default=True,
    metavar="S",
    help="Seconds per sequence.",
)

margin_option = click.option(
    "--margin",
    type=click.FloatRange(0, 100, min_open=True, max_open=True),
    default=1.0,
    show_default=True,
    metavar="POINTS",
    help="Loss, fixed in advance, from which on a format is not neutral.",
)
alpha_option = click.option(
    "--alpha",
    type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
    default=0.05,
    show_default=True,
    metavar="A",
    help="Chance of calling a loss of the margin none; one-sided.",
)
power_option = click.option(
    "--power",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.8,
    show_default=True,
    metavar="P",
    help="Chance of showing what is so, for the numbers of samples that are told.",
)


def server_options(command: F) -> F:
    """Add ``--shared``, ``--model``, ``--lmcache-url`` and ``--timeout`` to a command that fills a server's cache."""
    for option in (request_timeout_option, lmcache_url_option, served_model_option, shared_option):
        command = option(command)
    return command


def run_options(command: F) -> F:
    """Add ``--out``, ``--resume``, ``--seed`` and ``--json`` to a command that runs checks.

    The command receives ``out: Path | None``, ``resume: Path | None``, ``seed: int | None`` and ``as_json: bool``. Both paths
    are for ``RunFolder.create`` and ``RunFolder.open``, which say what is wrong with them.
    """
    for option in (json_option, seed_option, resume_option, out_option):  # the last applied comes first in the help
        command = option(command)
    return command


def own_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that :func:`run_options` did not add: what decides the run."""
    return {name: value for name, value in given.items() if name not in ("out", "resume", "seed", "as_json")}


def seed_of(given: Mapping[str, Any]) -> int:
    """Return the seed that was given, else a random one."""
    seed: int | None = given["seed"]
    return secrets.randbits(32) if seed is None else seed


def require_url(url: str | None) -> str:
    """Return ``url`` if it was given.

    Raises:
        UsageError: it was not; a server to try is named.
    """
    if url is None:
        raise UsageError("--url is missing: which server? For a try, start `kvverify lab` and give the URL it prints")
    return url


def require_live() -> None:
    """Check that what talks to servers is installed.

    Raises:
        EnvironmentProblem: a library is missing; it is named, with what to install.
    """
    missing = [name for name in ("httpx2", "openai", "prometheus_client") if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"{', '.join(missing)} not installed; checks of servers need: pip install 'kvverify[live]'"
        )


def sources(context: click.Context) -> dict[str, str]:
    """Return where each option's value came from: ``default``, ``environment`` or ``command line``."""
    words = {"COMMANDLINE": "command line", "ENVIRONMENT": "environment"}
    found = {name: context.get_parameter_source(name) for name in context.params}
    return {name: words.get(source.name, "default") for name, source in found.items() if source is not None}
