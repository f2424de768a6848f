"""The HTML report: one plain page without script or external request, made from ``page.html.j2``."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvverify.events import Verdict
from kvverify.report.final import (
    COMPARISON_HEAD,
    comparison_rows,
    detail_lines,
    fault_cell,
    replay_command,
    verdict_line,
)
from kvverify.report.summary import Summary
from kvverify.report.words import duration, gpu_line, printable, size, utc

if TYPE_CHECKING:
    from jinja2 import Template

MOST_FAILURES = 200


def render_html(summary: Summary, run: Path) -> str:
    """Return the page about the run in folder ``run``."""
    most_sequences = max(summary.lengths.values(), default=1)
    return template("page.html.j2").render(
        s=summary,
        run=str(run),
        verdict_line=verdict_line(summary),
        began=utc(summary.start.at) if summary.start else "unknown",
        failures=[
            {"event": f.event, "times": f.times, "details": detail_lines(f), "replay": replay_command(run, f)}
            for f in summary.failures[:MOST_FAILURES]
        ],
        failures_left=max(0, len(summary.failures) - MOST_FAILURES),
        fault_kernels=list(dict.fromkeys(k for row in summary.faults.values() for k in row)),
        step_kernels=[k.kernel for k in summary.kernels if k.sequences],
        most_sequences=most_sequences,
        gpu=gpu_line(summary.gpu),
        comparison_head=COMPARISON_HEAD,
        comparison_rows=comparison_rows(summary),
        live_sections=summary.live.sections if summary.live else [],
        verdicts=[str(v) for v in Verdict],
    )


@cache
def template(name: str) -> Template:
    """Return a template of this package; what it is given is escaped, and what a browser would drop is shown."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=size, duration=duration, count=_count)
    environment.globals.update(fault_cell=fault_cell)
    environment.finalize = _shown
    return environment.get_template(name)


def _source(name: str) -> str:
    return files("kvverify.report").joinpath(name).read_text(encoding="utf-8")


def _shown(value: Any) -> Any:
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return printable(value)


def _count(value: int) -> str:
    return f"{value:,}"
