"""``kvverify accuracy run``: one arm, asked of one server or several that are alike."""

from __future__ import annotations

import importlib.util
from typing import Any

import click

from kvverify.cli.options import engine_option, own_options, require_live, run_options, server_options, settle_option
from kvverify.cli.resume import interrupted
from kvverify.errors import EnvironmentProblem, UsageError

COMMAND = "accuracy run"
_MOVED = ("urls",)  # may be given beside --resume


def _facts(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if wrong := next((name + equal for name, equal, value in pairs if not (name and equal and value)), None):
        raise click.BadParameter(f"{wrong!r}: expected KEY=VALUE")
    return {name: value for name, _, value in pairs}


@click.command("run")
@click.option(
    "--url",
    "urls",
    multiple=True,
    metavar="URL",
    help="A server, http://HOST:PORT; repeat it for several that are alike. Their key is read from KVVERIFY_API_KEY.",
)
@click.option("--suite", metavar="NAME", help="A shipped suite, or a TOML file.")
@click.option("--label", metavar="NAME", help="What this arm is called in comparisons.")
@click.option(
    "--samples", type=click.IntRange(1), metavar="N", help="Samples of each task and length; else the suite's."
)
@click.option(
    "--length",
    "lengths",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Tokens; repeatable; else the suite's.",
)
@click.option("--task", "tasks", multiple=True, metavar="NAME", help="Of the suite's tasks this one alone; repeatable.")
@click.option(
    "--template",
    type=click.Choice(["none", "chatml", "model", "chat"]),
    help="What stands around a prompt: nothing, ChatML, the tokenizer folder's own, or what the server's chat interface makes of it.",
)
@click.option(
    "--tokenizer", metavar="WHERE", help="The served model's: a folder or tokenizer.json; else the server is asked."
)
@click.option("--corpora", metavar="DIR", help="Folder with your own corpora.")
@click.option("--cache", metavar="DIR", help="Where made samples are kept; ~/.cache/kvverify/samples if not given.")
@click.option(
    "--concurrency",
    type=click.IntRange(1),
    default=16,
    show_default=True,
    metavar="N",
    help="Requests in flight at each server.",
)
@click.option(
    "--tier",
    type=click.Choice(["none", "hbm", "dram", "disk"]),
    default="none",
    show_default=True,
    help="Compute every sample first, then measure it as it is served from there, with proof.",
)
@click.option(
    "--control",
    type=click.Choice(["none", "scramble", "raw-kv"]),
    default="none",
    show_default=True,
    help="scramble: overwrite the packed cache before a sample is answered from it; the score must fall. raw-kv: ask for likelihoods "
    "with echo, which reads no cache and says nothing of it.",
)
@click.option(
    "--serial",
    type=click.IntRange(0),
    default=32,
    show_default=True,
    metavar="N",
    help="With --tier: samples that are proved one by one.",
)
@click.option(
    "--wave",
    type=click.IntRange(1),
    default=128,
    show_default=True,
    metavar="N",
    help="With --tier: most samples of a pass.",
)
@click.option("--replay", is_flag=True, help="Send each sample twice; the second answer, read from the cache, counts.")
@click.option(
    "--share",
    is_flag=True,
    help="Let samples hit each other's prefixes: faster, and what was read is less exactly known.",
)
@click.option(
    "--declare",
    multiple=True,
    callback=_facts,
    metavar="KEY=VALUE",
    help="A fact of the arm that servers do not tell; repeatable.",
)
@click.option("--served-model", "served", metavar="NAME", help="The model to ask, where a server has several.")
@click.option(
    "--judge-url",
    metavar="URL",
    help="Who scores rubrics: another server. Its key is read from KVVERIFY_JUDGE_API_KEY.",
)
@click.option("--judge-model", metavar="NAME", help="The judge's model.")
@click.option(
    "--ray",
    is_flag=False,
    flag_value="auto",
    metavar="[ADDRESS]",
    help="Ask from the workers of a Ray cluster; without an address, of one started here.",
)
@engine_option
@server_options
@settle_option
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Ask every sample of a suite and score the answers: one arm of a comparison.

    The same suite, seed and tokenizer give the very same samples in every arm. An answer that failed, or a prompt that the server
    did not read whole, is missing and never scored. --resume asks what has no answer yet; servers may have moved, hence --url may
    be given beside it.
    """
    require_live()
    if importlib.util.find_spec("pydantic") is None:
        raise EnvironmentProblem("pydantic not installed; suites need it")
    from dataclasses import replace

    from kvverify.accuracy.options import AccuracyOptions
    from kvverify.accuracy.run import suite_of
    from kvverify.live.control import server_root
    from kvverify.report.folder import RunFolder

    if run := interrupted(context, COMMAND, allowed=_MOVED):
        options = AccuracyOptions.from_log(run.start.options)
        if given["urls"]:
            options = replace(options, urls=tuple(map(server_root, given["urls"])))
        return _run(run.folder, options, run.start.seed, run.events, as_json=given["as_json"])
    for name in ("suite", "label"):
        if given[name] is None:
            raise UsageError(
                f"--{name} is missing: {'which suite is asked' if name == 'suite' else 'what is the arm called'}?"
            )
    options = AccuracyOptions(**{**own_options(given), "urls": tuple(map(server_root, given["urls"]))})
    suite_of(options)  # refuses what is no suite before a folder is made
    seed = 0 if given["seed"] is None else given["seed"]  # the same for all arms unless somebody says otherwise
    return _run(RunFolder.create(given["out"], "accuracy"), options, seed, [], as_json=given["as_json"])


def _run(folder: Any, options: Any, seed: int, earlier: list[Any], *, as_json: bool) -> int:
    from kvverify.accuracy.run import accuracy_run, suite_of
    from kvverify.cli.running import run_checks
    from kvverify.events_accuracy import SampleAnswered
    from kvverify.report.console import LiveConsole

    planned = sum(task.samples * len(task.lengths) for task in suite_of(options).tasks)
    done = len({e.key for e in earlier if isinstance(e, SampleAnswered) and not e.error})
    return run_checks(
        folder,
        lambda emit: accuracy_run(options, seed, emit, earlier),
        command=COMMAND,
        seed=seed,
        options=options.to_log(),
        earlier=earlier,
        live=LiveConsole(total=planned or None, unit="sample", done=done),
        as_json=as_json,
    )
