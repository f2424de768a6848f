"""``kvverify kernels``: which copy kernels run here, in which version and by which path, and why the others do not."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from kvverify.cli.options import json_option
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
    help="Ask for this one only: a name, pkg.mod:Attr or file.py:Attr. Exit code 3 if it does not run here. Repeatable.",
)
@json_option
def command(specs: tuple[str, ...], as_json: bool) -> int:
    """List the copy kernels that run here, and why others do not.

    Each is loaded in a process of its own, as a campaign would load it. The path says which code really runs, for a library may
    fall back to another implementation without a word.
    """
    from kvverify.kernels.probe import probe, probe_all

    if sys.stderr.isatty():
        click.echo("Loading the kernels, about ten seconds ...", err=True)
    probes = [probe(spec) for spec in specs] if specs else probe_all()
    for line in table(probes):
        click.echo(line)
    if as_json:
        click.echo(json.dumps({"kernels": [dataclasses.asdict(p) for p in probes]}))
    missing = bool(specs) and not all(p.available for p in probes)
    return EXIT_CODES[Verdict.INCONCLUSIVE] if missing else 0


def table(probes: Sequence[KernelProbe]) -> list[str]:
    """Return the lines for a person: name, version and path, files below; or the reason."""
    width = max((len(p.name) for p in probes), default=0) + 2
    return [line for p in probes for line in _entry(p, width)]


def _entry(probe: KernelProbe, width: int) -> list[str]:
    if not probe.available:
        return [f"{probe.name:<{width}}does not run here: {probe.reason}"]
    known = probe.provenance
    if not known:
        return [f"{probe.name:<{width}}runs here (no provenance given)"]
    library = f"{known.get('library', '?')} {known.get('version', '?')}"
    lines = [f"{probe.name:<{width}}runs here: {library}; {known.get('path', 'path not given')}"]
    files = known.get("files", {})
    lines += [f"{'':<{width}}  {digest[:_DIGEST_CHARACTERS]}  {name}" for name, digest in files.items()]
    return lines
