"""``kvverify roundtrip``: fuzz copy kernels and compare every byte of the allocation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import device_option, run_options, time_limit_option
from kvverify.cli.resume import interrupted
from kvverify.errors import UsageError

if TYPE_CHECKING:
    from kvverify.events import Event
    from kvverify.report.folder import RunFolder
    from kvverify.roundtrip.options import RoundtripOptions


@click.command("roundtrip")
@click.option(
    "--kernel",
    "kernels",
    multiple=True,
    metavar="SPEC",
    help="A name, pkg.mod:Attr or file.py:Attr; repeatable. All that run here, if not given.",
)
@click.option("--model", metavar="MODEL", help="Use this model's layout instead of the pool of small awkward ones.")
@click.option(
    "--layout",
    "layout_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Use this layout: what `kvverify layout --json` printed.",
)
@click.option("--kv-cache-dtype", metavar="D", help="Only layouts of this KV dtype; with --model the model's.")
@click.option(
    "--tp",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --model: tensor-parallel size; that of --ranks if not given.",
)
@click.option("--block-size", type=click.IntRange(min=1), metavar="N", help="With --model: tokens per block.")
@device_option
@click.option(
    "--ranks",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Run each sequence in N processes at once, a GPU each, with the heads of its rank each.",
)
@click.option(
    "--examples", type=click.IntRange(min=0), metavar="N", help="Sequences per kernel (an eighth for slow ones)."
)
@click.option("--budget", metavar="TIME", help="Time for all kernels together, such as 60s, 10m, 2h.")
@click.option(
    "--profile",
    default="dev",
    show_default=True,
    metavar="P",
    help="ci (derandomised, 1,056 sequences), dev (60 s), soak (1 h).",
)
@click.option(
    "--plant", default="", metavar="FAULT", help="Plant a fault in the kernels, such as F04; the run must then fail."
)
@time_limit_option
@run_options
@click.pass_context
def command(context: click.Context, /, **given: Any) -> int:
    """Fuzz copy kernels and compare every byte of the allocation.

    Sequences of fills, stores, loads, evictions and host-slot reuse run in a child process on real memory; after each check
    the whole allocation is compared, guards and untouched blocks too. A failing sequence is shrunk to a few steps and kept as
    a failure file that `kvverify replay` runs again.
    """
    from kvverify.report.folder import RunFolder
    from kvverify.roundtrip.options import RoundtripOptions

    if run := interrupted(context, "roundtrip"):
        return _run(run.folder, RoundtripOptions.from_log(run.start.options), run.events, as_json=given["as_json"])
    options = _options(given)
    folder = RunFolder.create(given["out"], "roundtrip")
    return _run(folder, options, [], as_json=given["as_json"])


def _options(given: dict[str, Any]) -> RoundtripOptions:
    import secrets

    from kvverify.roundtrip.campaign import PROFILES
    from kvverify.roundtrip.options import RoundtripOptions, profile_named, seconds_of
    from kvverify.roundtrip.ranks import check_ranks

    if given["examples"] is not None and given["budget"] is not None:
        raise UsageError("--examples and --budget: give one of them; each alone says when to stop")
    profile = PROFILES[profile_named(given["profile"])]
    examples, budget_s = given["examples"], seconds_of(given["budget"]) if given["budget"] is not None else None
    recipes = _recipes(given)
    if examples is None and budget_s is None:
        budget_s = profile.budget_s
        # a batch on every layout at least: a GPU has more of them
        examples = None if profile.examples is None else max(profile.examples, profile.batch * len(recipes))
    seed = given["seed"]
    if seed is None:
        seed = 0 if profile.name == "ci" else secrets.randbits(32)
    if given["plant"]:
        from kvverify.faults.catalogue import plantable_named

        plantable_named(given["plant"], given["device"])
    check_ranks(given["ranks"], given["device"])
    return RoundtripOptions(
        kernels=_kernels(given["kernels"], given["device"]),
        device=given["device"],
        ranks=given["ranks"],
        named=bool(given["kernels"]),
        recipes=recipes,
        profile=profile.name,
        examples=examples,
        budget_s=budget_s,
        plant=given["plant"],
        time_limit=given["time_limit"],
        seed=seed,
    )


def _kernels(specs: tuple[str, ...], device: str) -> tuple[str, ...]:
    from kvverify.kernels.probe import require_device
    from kvverify.kernels.registry import names, resolve

    kernels = tuple(dict.fromkeys(resolve(spec, device).spec for spec in specs or names(device)))
    require_device(device)
    return kernels


def _recipes(given: dict[str, Any]) -> tuple[dict[str, Any], ...]:
    from kvverify.layout.document import load_layout_file, to_document
    from kvverify.layout.gpu_pool import pool_for
    from kvverify.layout.models import load_model
    from kvverify.layout.pool import filter_pool
    from kvverify.layout.rules import recipe_for

    dtype = given["kv_cache_dtype"]
    if given["layout_file"] is not None:
        if given["model"] is not None or dtype is not None:
            raise UsageError("--layout: says all about the layout; leave --model and --kv-cache-dtype out")
        return (to_document(load_layout_file(given["layout_file"])),)
    if given["model"] is not None:
        model = load_model(given["model"])
        return (
            to_document(
                recipe_for(model, dtype or "auto", tp=given["tp"] or given["ranks"], block_size=given["block_size"])
            ),
        )
    pool = pool_for(given["device"])
    return tuple(to_document(r) for r in (filter_pool(dtype, pool) if dtype is not None else pool))


def _run(folder: RunFolder, options: RoundtripOptions, earlier: list[Event], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.events import BatchFinished
    from kvverify.report.console import LiveConsole
    from kvverify.roundtrip.campaign import Campaign

    done = [e for e in earlier if isinstance(e, BatchFinished)]
    plan = options.plan(logs=folder.path, spent_s=sum(e.seconds for e in done))
    total = None if options.examples is None else options.examples * len(options.kernels)
    return run_checks(
        folder,
        lambda emit: Campaign(plan, emit, folder.write_failure, earlier).run(),
        command="roundtrip",
        seed=options.seed,
        options=options.to_log(),
        earlier=earlier,
        live=LiveConsole(total=total, budget_s=options.budget_s, done=sum(e.sequences for e in done)),
        as_json=as_json,
    )
