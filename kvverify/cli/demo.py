"""``kvverify demo``: all of it against the lab, each command in a process of its own, each end announced in advance."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

import kvverify
from kvverify.cli.options import json_option, out_option, seed_option
from kvverify.errors import EnvironmentProblem
from kvverify.events import EXIT_CODES, EXIT_INTERRUPTED, Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from kvverify.cli.demo_acts import Act
    from kvverify.report.demo import ActEnded
    from kvverify.report.folder import RunFolder

DEFAULT_SEED = 1  # the same for everybody, so that everybody sees the same
TYPED_URL = "http://127.0.0.1:8000"  # where `kvverify lab` serves; the demo takes a free port
LIBRARIES = ("torch", "httpx2", "openai", "prometheus_client")
STOP_S = 10.0  # for a command to write its reports after an interruption


@click.command("demo")
@out_option
@seed_option
@json_option
def command(*, out: Path | None, seed: int | None, as_json: bool) -> int:
    """Show all of it in about two minutes: a copy kernel, a server with a DRAM tier, and what faults in them look like.

    Needs no GPU and downloads nothing: the server is `kvverify lab`. How each act must end is announced before it runs. A planted
    fault that is not found, or a clean run that does not pass, is exit code 1. One page links all reports.
    """
    _require_libraries()
    from kvverify.cli.demo_acts import ACTS
    from kvverify.report.final import json_line
    from kvverify.report.folder import RunFolder

    folder = RunFolder.create(out, "demo")
    code, document = play(ACTS, folder, DEFAULT_SEED if seed is None else seed)
    if as_json:
        click.echo(json_line(document))
    return code


def _require_libraries() -> None:
    """Raise EnvironmentProblem where an extra is missing."""
    missing = [name for name in LIBRARIES if importlib.util.find_spec(name) is None]
    if missing:
        raise EnvironmentProblem(
            f"{', '.join(missing)} not installed; the demo needs: pip install 'kvverify[torch,live]' "
            "(a CPU build of torch will do)"
        )


def play(acts: Sequence[Act], folder: RunFolder, seed: int) -> tuple[int, dict[str, object]]:
    """Run the acts one after the other into ``folder`` and return the exit code and the result as JSON.

    The page is written anew after each act, so that an interrupted demo has one, too.
    """
    from kvverify.report.demo import demo_json, print_closing, print_end, print_opening, render_demo
    from kvverify.report.folder import write_atomically

    console, began = _console(), time.monotonic()
    ended: list[ActEnded] = []
    console.print(f"kvverify demo, seed {seed}, into {folder.path}", soft_wrap=True)
    code = EXIT_CODES[Verdict.PASS]
    try:
        for number, act in enumerate(acts, start=1):
            print_opening(console, f"{number} of {len(acts)}  {act.title}", act.explains, _typed(act, seed))
            ended.append(run_act(act, folder.path / f"{number}-{act.name}", seed))
            print_end(console, ended[-1])
            page = render_demo(ended, len(acts), time.monotonic() - began, _machine(seed))
            write_atomically(folder.html, page)
            if ended[-1].otherwise:
                code = EXIT_CODES[Verdict.FAIL]
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    seconds = time.monotonic() - began
    print_closing(console, ended, len(acts), seconds, folder.html)
    return code, demo_json(ended, len(acts), seconds, folder.path, code)


def run_act(act: Act, run: Path, seed: int) -> ActEnded:
    """Run one act's command into the folder ``run`` and hold its end against what was announced.

    Raises:
        KeyboardInterrupt: the user has enough; the command has been given the time to end.
    """
    from kvverify.report.demo import ActEnded, diagnosis, judged, tables
    from kvverify.report.log import read_events
    from kvverify.report.summary import summarise

    began = time.monotonic()
    with _served(act) as url:
        code, last = _run([*_words(act, url, seed), "--out", str(run)])
    if code == EXIT_INTERRUPTED:
        raise KeyboardInterrupt
    summary = summarise(read_events(run)) if (run / "events.ndjson").is_file() else None
    verdict, shown, otherwise = judged(act.announced, act.shows, code, summary, last)
    return ActEnded(
        name=act.name,
        title=act.title,
        explains=act.explains,
        typed=_typed(act, seed),
        announced=act.announced,
        verdict=verdict,
        shown=shown,
        otherwise=otherwise,
        seconds=time.monotonic() - began,
        folder=run.name if summary else "",
        diagnosis=diagnosis(summary, run) if summary else [],
        tables=tables(summary, act.tables) if summary else [],
    )


@contextlib.contextmanager
def _served(act: Act) -> Iterator[str]:
    """Serve what the act needs, and give its URL; an empty one where it needs no server."""
    if act.plant is None:
        yield ""
        return
    from kvverify.cli.demo_acts import HBM_BLOCKS
    from kvverify.lab.serving import Options, running

    with running(Options(hbm_blocks=HBM_BLOCKS, plant=act.plant or None)) as url:
        yield url


def _words(act: Act, url: str, seed: int) -> list[str]:
    name, *rest = act.words
    return [name, *(["--url", url] if url else []), *rest, "--seed", str(seed)]


def _typed(act: Act, seed: int) -> list[str]:
    """Return the commands of an act as a user types them."""
    commands = [list(act.lab), _words(act, TYPED_URL if act.lab else "", seed)]
    return [shlex.join(["kvverify", *words]) for words in commands if words]


def _run(words: Sequence[str]) -> tuple[int, str]:
    """Run ``kvverify WORDS`` in a process of its own; return exit code and last line, which a terminal shows."""
    from rich.console import Console
    from rich.markup import escape

    from kvverify.report.words import printable

    command, last = [sys.executable, "-m", "kvverify", *words], ""
    with (
        Console(stderr=True, highlight=False).status("starting") as status,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_environment(),
            encoding="utf-8",
            errors="replace",
        ) as child,
    ):
        try:
            for line in child.stdout or ():
                last = printable(line.strip()) or last
                status.update(escape(last))
            return child.wait(), last
        except BaseException:
            _stop(child)
            raise


def _stop(child: subprocess.Popen[str]) -> None:
    """End a command that a terminal's Ctrl-C reached as well; one that it did not reach is told to."""
    try:
        child.wait(STOP_S)
    except subprocess.TimeoutExpired:
        child.terminate()


def _environment() -> dict[str, str]:
    """Return ours without what would change the commands' options or colour what we read."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVVERIFY_") and k != "FORCE_COLOR"}
    # the child finds this kvverify, also where it is no installed one
    paths = [str(Path(kvverify.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**kept, "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8", "PYTHONPATH": os.pathsep.join(paths)}


def _machine(seed: int) -> dict[str, str]:
    from kvverify.roundtrip.record import versions

    return {"platform": platform.platform(), "cores": str(os.cpu_count()), **versions(), "seed": str(seed)}


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    # a pipe has no width to fold to
    return console if console.is_terminal else Console(highlight=False, markup=False, width=1000)
