"""The folder of a sign-off: signoff.html, signoff.md, signoff.xml, signoff.json and the manifest over them and the runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from kvverify.errors import UsageError
from kvverify.report.folder import RunFolder, write_atomically
from kvverify.report.signoff.document import json_text
from kvverify.report.signoff.junit import junit_xml
from kvverify.report.signoff.markdown import render_markdown
from kvverify.report.signoff.page import render_page
from kvverify.report.signoff.signoff import Signoff

FILES = ("signoff.html", "signoff.md", "signoff.xml", "signoff.json", "manifest.json")
_RUN_FILES = ("events.ndjson", "run.json")


def free_folder(runs: Sequence[Path], out: Path | None) -> Path:
    """Return the folder for a new sign-off: ``out``, or signoff, signoff-2 ... beside the first run.

    Raises:
        UsageError: ``out`` holds a sign-off or a run already.
    """
    if out is None:
        beside = runs[0].resolve().parent / "signoff"
        shown = runs[0].parent / "signoff"
        n = 1
        while os.path.lexists(beside if n == 1 else beside.with_name(f"signoff-{n}")):
            n += 1
        return shown if n == 1 else shown.with_name(f"signoff-{n}")
    if held := next((name for name in (*FILES, *_RUN_FILES) if os.path.lexists(out / name)), None):
        what = "a run" if held in _RUN_FILES else "a sign-off"
        raise UsageError(f"--out {out}: holds {what} ({held}); name a new folder, a sign-off never goes over another")
    return out


def write_signoff(s: Signoff, folder: Path) -> Path:
    """Write all files into ``folder`` and return the page.

    Raises:
        EnvironmentProblem: the folder or a file cannot be written.
    """
    # imported here: the manifest's validation is needed by nothing else
    from kvverify.report.manifest import write_manifest

    RunFolder(folder).make()
    texts = dict(zip(FILES, (render_page(s), render_markdown(s), junit_xml(s), json_text(s)), strict=False))
    for name, text in texts.items():
        write_atomically(folder / name, text)
    write_manifest(folder, [folder / name for name in texts], [run.path for run in s.runs])
    return folder / FILES[0]
