"""``kvverify kernels``: which copy kernels run here, in which version and by which path, and why the others do not."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kvverify.cli.options import json_option
from kvverify.errors import UsageError
from kvverify.events import EXIT_CODES, Verdict

if TYPE_CHECKING:
    from kvverify.kernels.probe import KernelProbe

_DIGEST_CHARACTERS = 12


@click.command()
@click.option(
    "--kernel",
    "specs",
    multiple=True,
    metavar="SPEC",
    help="Ask for this one only: a name, pkg.mod:Attr or file.py:Attr. Exit code 2 if it does not run here; of several, 3. "
    "Repeatable.",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    help="Only kernels for engine memory there; cuda is a GPU, also under ROCm. Both, if not given.",
)
@json_option
def command(specs: tuple[str, ...], device: str | None, as_json: bool) -> int:
    """List the copy kernels that run here, on the CPU and on the GPU, and why others do not.

    Each is loaded in a process of its own, as a campaign would load it. The path says which code really runs, for a library may
    fall back to another implementation without a word.
    """
    from kvverify.kernels.probe import probe_all
    from kvverify.kernels.registry import DEVICES

    if sys.stderr.isatty():
        click.echo("Loading the kernels, about ten seconds ...", err=True)
    devices = (device,) if device else DEVICES
    asked = [_probe_on(spec, devices) for spec in specs]
    probes = [p for group in asked for p in group] if specs else [p for d in devices for p in probe_all(d)]
    for line in table(probes):
        click.echo(line)
    if as_json:
        click.echo(json.dumps({"kernels": [dataclasses.asdict(p) for p in probes]}))
    if all(any(p.available for p in group) for group in asked):
        return 0
    return EXIT_CODES[Verdict.ERROR if len(asked) == 1 else Verdict.INCONCLUSIVE]


def _probe_on(spec: str, devices: Sequence[str]) -> list[KernelProbe]:
    """Probe one kernel on each of the devices that it exists for; it runs here if it does on one of them."""
    from kvverify.kernels.probe import probe
    from kvverify.kernels.registry import resolve

    found: list[KernelProbe] = []
    for device in devices:
        try:
            resolve(spec, device)
        except UsageError:
            if device == devices[-1] and not found:
                raise
            continue
        found.append(probe(spec, device))
    return found


def table(probes: Sequence[KernelProbe]) -> list[str]:
    """Return the lines for a person: the GPU; name, device, version and path, files below; or the reason."""
    from kvverify.report.words import gpu_line

    width = max((len(p.name) for p in probes), default=0) + 2
    gpu = next((p.provenance["gpu"] for p in probes if "gpu" in p.provenance), None)
    return [*([f"GPU: {gpu_line(gpu)}"] if gpu else []), *(line for p in probes for line in _entry(p, width))]


def _entry(probe: KernelProbe, width: int) -> list[str]:
    head = f"{probe.name:<{width}}{probe.device:<6}"
    if not probe.available:
        return [f"{head}does not run here: {probe.reason}"]
    known = {name: value for name, value in probe.provenance.items() if name != "gpu"}
    if not known:
        return [f"{head}runs here (no provenance given)"]
    library = f"{known.get('library', '?')} {known.get('version', '?')}"
    lines = [f"{head}runs here: {library}; {known.get('path', 'path not given')}"]
    files = known.get("files", {})
    lines += [f"{'':<{width}}  {digest[:_DIGEST_CHARACTERS]}  {name}" for name, digest in files.items()]
    return lines
