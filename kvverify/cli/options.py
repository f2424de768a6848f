"""Options that commands share, declared once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from kvverify.errors import EnvironmentProblem

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


def run_options(command: F) -> F:
    """Add ``--out``, ``--resume``, ``--seed`` and ``--json`` to a command that runs checks.

    The command receives ``out: Path | None``, ``resume: Path | None``, ``seed: int | None`` and ``as_json: bool``. Both paths
    are for ``RunFolder.create`` and ``RunFolder.open``, which say what is wrong with them.
    """
    for option in (json_option, seed_option, resume_option, out_option):  # the last applied comes first in the help
        command = option(command)
    return command


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
