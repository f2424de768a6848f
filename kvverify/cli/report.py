"""``kvverify report RUN...``: make the reports of a run again from its events; of several runs, or by a policy, the sign-off."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvverify.cli.options import json_option
from kvverify.errors import UsageError

if TYPE_CHECKING:
    from kvverify.report.signoff.plots import BenchPoint


@click.command("report")
@click.argument(
    "runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option(
    "--policy",
    metavar="NAME_OR_FILE",
    help="What the runs must show: release, copy-kernels, shadow, canary, full, or a TOML file.",
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Folder for the reports. Of one run: its own if not given. The sign-off: a new folder, signoff/ beside the first run.",
)
@click.option(
    "--bench",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="JSON of `kvverify codecs bench`, for the sign-off's picture of error against size.",
)
@json_option
def command(runs: tuple[Path, ...], policy: str | None, out: Path | None, bench: Path | None, as_json: bool) -> int:
    """Make console summary, report.html, report.md and junit.xml of a run again from its events.

    Of several runs, or with a policy, make the sign-off: signoff.html, .md, .xml (JUnit), .json and a manifest of hashes. Without a
    policy all four questions of kvverify decide; with one, what it asks for. A rollout policy (shadow, canary, full) takes a baseline
    and a candidate and says GO (0), HOLD (3) or ROLL BACK (1).

    Every verdict is computed anew from the events, and the exit code is that of the worst.
    """
    if len(runs) == 1 and policy is None:
        if bench is not None:
            raise UsageError("--bench: the report of one run has no such picture; give several runs, or --policy")
        return _one_run(runs[0], out, as_json=as_json)
    return _signoff(runs, policy, out, _bench_points(bench), as_json=as_json)


def _one_run(run: Path, out: Path | None, *, as_json: bool) -> int:
    from kvverify.events import EXIT_CODES
    from kvverify.report.files import write_reports
    from kvverify.report.final import json_line, print_summary, summary_json
    from kvverify.report.folder import RunFolder
    from kvverify.report.log import read_events
    from kvverify.report.summary import summarise

    folder = RunFolder.open(run, writable=False)
    target = run if out is None else out
    if (target / "events.ndjson").exists() and target.resolve() != run.resolve():
        raise UsageError(f"--out {target}: holds another run; name a folder without one")
    summary = summarise(read_events(folder.events))
    into = RunFolder(target)
    into.make()
    write_reports(summary, into, folder.path)
    print_summary(summary, folder.path, into.html)
    code = EXIT_CODES[summary.verdict]
    if as_json:
        document = {"verdict": summary.verdict, "exit_code": code, "runs": [summary_json(summary, folder.path)]}
        click.echo(json_line(document))
    return code


def _signoff(
    runs: tuple[Path, ...], policy: str | None, out: Path | None, bench: list[BenchPoint], *, as_json: bool
) -> int:
    import datetime as dt
    import time

    from kvverify.cli.page_map import page_map
    from kvverify.events import EXIT_CODES
    from kvverify.report.final import json_line
    from kvverify.report.signoff.document import document
    from kvverify.report.signoff.final import print_signoff
    from kvverify.report.signoff.gather import gather
    from kvverify.report.signoff.signoff import make_signoff
    from kvverify.report.signoff.write import free_folder, write_signoff
    from kvverify.report.words import utc

    made = utc(time.time())
    folder = free_folder(runs, out)
    gathered = gather(runs)
    if policy is None:
        signoff = make_signoff(gathered, made=made, page_of=page_map, bench=bench)
    else:
        from kvverify.policy.judge import judge_runs
        from kvverify.policy.load import load_policy

        answer = judge_runs(load_policy(policy), gathered, dt.datetime.now(dt.UTC).date())
        signoff = make_signoff(
            gathered,
            made=made,
            judged=answer.runs,
            judgement=answer.judgement,
            known=answer.known,
            page_of=page_map,
            bench=bench,
        )
    page = write_signoff(signoff, folder)
    print_signoff(signoff, page)
    if as_json:
        click.echo(json_line(document(signoff)))
    return EXIT_CODES[signoff.verdict]


def _bench_points(path: Path | None) -> list[BenchPoint]:
    if path is None:
        return []
    import json

    from kvverify.report.signoff.plots import bench_points

    try:
        return bench_points(json.loads(path.read_bytes()))
    except (OSError, ValueError) as error:
        text = f"--bench {path}: not what codecs bench writes ({error}); expected its bench-cpu.json or bench-cuda.json"
        raise UsageError(text) from error
