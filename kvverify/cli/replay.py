"""``kvverify replay FILE``: run the sequence of a failure file again."""

from __future__ import annotations

import json
from pathlib import Path

import click

from kvverify.cli.options import json_option, time_limit_option


@click.command("replay")
@click.argument("failure_file", type=click.Path(path_type=Path))
@click.option("--kernel", metavar="SPEC", help="Run it against this kernel instead of the one that failed.")
@time_limit_option
@json_option
def command(failure_file: Path, kernel: str | None, time_limit: float, as_json: bool) -> int:
    """Run the sequence of a failure file again and say whether it still fails: exit code 1 if it does, 0 if not."""
    from kvverify.errors import UsageError
    from kvverify.events import EXIT_CODES, Verdict
    from kvverify.kernels.registry import resolve
    from kvverify.roundtrip.campaign import program_lines
    from kvverify.roundtrip.failure import read_failure
    from kvverify.roundtrip.ranks import check_ranks, runner

    failure = read_failure(failure_file)
    source = resolve(kernel or failure.kernel, failure.device)
    check_ranks(failure.ranks, failure.device)
    fault = "" if kernel else failure.fault
    with runner(source, ranks=failure.ranks, fault=fault, time_limit=time_limit) as child:
        outcome = child.run(failure.recipe, failure.program, explain=True)
    if outcome.kind == "refused":
        raise UsageError(f"replay {failure_file}: {source.name} does not take this layout: {outcome.headline}")
    verdict = Verdict.FAIL if outcome.failed else Verdict.PASS
    for line in program_lines(failure.program, outcome.step if outcome.failed else -1):
        click.echo(line)
    if outcome.failed:
        click.echo(f"{outcome.kind}: {outcome.headline}")
        for line in outcome.details:
            click.echo(f"  {line}")
        click.echo(f"FAIL: {source.name} still fails")
    else:
        click.echo(f"PASS: {source.name} does not fail any more; it did: {failure.outcome.headline}")
    if as_json:
        document = {"verdict": verdict, "kernel": source.spec, "kind": outcome.kind, "step": outcome.step}
        click.echo(json.dumps({**document, "headline": outcome.headline, "details": outcome.details}))
    return EXIT_CODES[verdict]
