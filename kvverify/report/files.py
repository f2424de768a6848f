"""The report files of a run, made from its events and nothing else."""

from __future__ import annotations

from pathlib import Path

from kvverify.report.folder import RunFolder, write_atomically
from kvverify.report.html import render_html
from kvverify.report.junit import junit_xml
from kvverify.report.markdown import render_markdown
from kvverify.report.summary import Summary


def write_reports(summary: Summary, into: RunFolder, run: Path | None = None) -> None:
    """Write report.html, report.md and junit.xml; ``run`` is the run folder where ``into`` is another one.

    Raises:
        EnvironmentProblem: a file cannot be written; each file is whole or as it was before.
    """
    shown = run or into.path
    write_atomically(into.html, render_html(summary, shown))
    write_atomically(into.markdown, render_markdown(summary, shown))
    write_atomically(into.junit, junit_xml(summary, shown))
