"""The page: one HTML file without script, request or font from elsewhere, made from ``signoff.html.j2``."""

from __future__ import annotations

import kvverify
from kvverify.events import Verdict
from kvverify.report.html import template
from kvverify.report.signoff.evidence import cut
from kvverify.report.signoff.signoff import Signoff
from kvverify.report.words import plural

MOST_GROUPS = 100
MOST_OTHERS = 100


def render_page(s: Signoff) -> str:
    """Return the page."""
    sections = [cut(section) for section in s.sections]
    return template("signoff/signoff.html.j2").render(
        s=s,
        sections=sections,
        groups=[g.cut(MOST_OTHERS) for g in s.groups[:MOST_GROUPS]],
        groups_left=max(0, len(s.groups) - MOST_GROUPS),
        contents=_contents(s),
        verdicts=[str(verdict) for verdict in Verdict],
        plural=plural,
        version=kvverify.__version__,
    )


def _contents(s: Signoff) -> list[tuple[str, str]]:
    """Return (id, title) of the sections behind the first screen."""
    return [
        *([("policy", f"Policy {s.judgement.policy}")] if s.judgement else []),
        ("failures", "Failures"),
        *([("bytes", "Byte map of a page")] if s.maps else []),
        *([("servers", "Servers")] if s.subject.servers else []),
        *([("kernels", "Kernels and their files")] if s.subject.kernels else []),
        *((f"table-{n}", section.title) for n, section in enumerate(s.sections, 1)),
        ("plots", "Pictures"),
        *([("gaps", "Gaps of each run")] if s.gaps.by_run else []),
        ("signature", "Signature"),
    ]
