"""``kvverify verify-report FILE``: whether a sign-off and all it rests on are as they were signed."""

from __future__ import annotations

from pathlib import Path

import click

from kvverify.cli.options import json_option


@click.command("verify-report")
@click.argument("target", metavar="FILE", type=click.Path(exists=True, path_type=Path))
@click.option(
    "--signature",
    type=click.Path(path_type=Path),
    metavar="SIG",
    help="A detached signature of manifest.json, made with a tool of your own.",
)
@click.option(
    "--verify-with",
    metavar="CMD",
    help="The command that verifies it. {signature} and {file} stand for the files; manifest.json also comes on standard input.",
)
@json_option
def command(target: Path, signature: Path | None, verify_with: str | None, as_json: bool) -> int:
    """Find any change to a sign-off: the page, its other files, and the event logs it was made from.

    FILE is signoff.html, manifest.json or the folder that holds them. A file that was changed, added or damaged is exit code 1,
    one that is not there 3. Digests show that nothing changed since the manifest was written, a signature who stands behind it.
    """
    from kvverify.errors import UsageError
    from kvverify.events import EXIT_CODES, Verdict
    from kvverify.reasons import worst
    from kvverify.report.detached_signature import verify_signature
    from kvverify.report.final import json_line
    from kvverify.report.manifest_check import Finding, check_manifest
    from kvverify.report.words import plural, printable, size

    if (signature is None) != (verify_with is None):
        raise UsageError(
            "--signature and --verify-with go together: one names the file, the other the tool that verifies it"
        )
    checked = check_manifest(target)
    findings, said = list(checked.findings), ""
    if signature is not None and verify_with is not None:
        good, said = verify_signature(checked.data, signature, verify_with)
        if not good:
            findings.append(Finding(Verdict.FAIL, str(signature), f"signature refused: {said}"))
    for finding in findings:
        click.echo(printable(f"{finding.verdict}: {finding.file}: {finding.text}"))
    verdict = worst([Verdict.PASS, *(finding.verdict for finding in findings)])
    files = f"{plural(checked.files, 'file')}, {size(checked.bytes)}"
    click.echo(
        f"{verdict}: {files}; {plural(len(findings), 'finding')}" if findings else f"{verdict}: {files}, as signed off"
    )
    click.echo(
        printable(
            f"signature: {said}" if said else "no signature was verified: digests show changes, not who made them"
        )
    )
    if as_json:
        rows = [{"verdict": f.verdict, "file": f.file, "text": f.text} for f in findings]
        document = {"verdict": verdict, "exit_code": EXIT_CODES[verdict], "files": checked.files, "findings": rows}
        click.echo(json_line({**document, "manifest_sha256": checked.manifest.sha256, "signature": said or None}))
    return EXIT_CODES[verdict]
