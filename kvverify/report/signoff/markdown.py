"""The sign-off as Markdown: what fits into a pull request or a job summary."""

from __future__ import annotations

import re

from kvverify.report.markdown import _escape, _list, _table
from kvverify.report.section import Section
from kvverify.report.signoff.defects import Defect, Group
from kvverify.report.signoff.page import MOST_GROUPS, MOST_OTHERS
from kvverify.report.signoff.requirement import Judgement
from kvverify.report.signoff.signoff import Signoff
from kvverify.report.words import printable

MOST_ROWS = 100
_LONG = ("Layouts by kernel",)  # tables that only the page shows


def render_markdown(s: Signoff) -> str:
    """Return the sign-off as Markdown."""
    parts = [f"# kvverify sign-off: {s.headline}", f"{s.verdict}: {_escape(s.line)}."]
    if s.judgement and s.rollout:
        parts += _policy(s.judgement)
    facts = [[word, s.subject.words(word)] for word in s.subject.facts]
    parts += ["## What was tested", _table(["what", "value"], facts)]
    if s.subject.servers:
        rows = [
            [v.engine, v.formats, v.tiers, v.model, v.build, ", ".join(f"{c} ({r})" for r, c in v.runs.items())]
            for v in s.subject.servers
        ]
        parts.append(_table(["engine", "KV formats of its layers", "tiers", "model", "build", "asked by"], rows))
    kernels = [
        [k.name, k.library, k.device, "; ".join(f"{f} {h}" for f, h in k.files.items())] for k in s.subject.kernels
    ]
    if kernels:
        parts.append(_table(["kernel", "library", "device", "SHA-256 of its files"], kernels))
    parts.append("## The four questions")
    if s.rollout:
        parts.append("They are a release's, and a rollout does not ask them.")
    rows = [
        [f"{q.number}. {q.title}", str(q.verdict), q.answer, "; ".join(f"{a}: {b}" for a, b in q.figures)]
        for q in s.answered
    ]
    parts += [_table(["question", "verdict", "answer", "figures"], rows)] if rows else []
    if s.support:
        support = [[one.command, one.run, str(one.verdict), "; ".join(one.reasons[:3]) or "–"] for one in s.support]
        parts.append(_table(["check", "run", "verdict", "why"], support))
    parts += ["## Not covered", _list(s.gaps.short) if s.gaps.short else "Nothing that was asked for."]
    if s.judgement and not s.rollout:
        parts += _policy(s.judgement)
    parts.append("## Failures")
    parts += [part for group in s.groups[:MOST_GROUPS] for part in _group(group)] or ["None."]
    for section in s.sections:
        parts += _section(section)
    parts += ["## Pictures", _list(f"{figure.title}: {figure.note}" for figure in [*s.maps, *s.plots])]
    return "\n\n".join([*parts, f"Made {s.made}."]) + "\n"


def _policy(judgement: Judgement) -> list[str]:
    rows = [
        [r.name, str(r.verdict), r.found, r.missing or "–", r.asked, r.published or "–"] for r in judgement.requirements
    ]
    parts = [
        f"## Policy {_escape(judgement.policy)}",
        _escape(f"{judgement.title}. {judgement.description} {judgement.arms}").strip(),
        _table(["requirement", "verdict", "found", "still needed", "asked", "published"], rows),
    ]
    for r in judgement.broken:
        parts += [f"What broke «{_escape(r.name)}»:", _list(r.examples)]
    if judgement.excuses:
        known = [
            [e.what, e.reason, e.report or "–", e.expires, str(e.matched), "expired" if e.expired else "in force"]
            for e in judgement.excuses
        ]
        parts.append(_table(["known finding", "why it is allowed", "report", "until", "matched", "state"], known))
    return parts


def _section(section: Section) -> list[str]:
    if section.title in _LONG:
        return [f"## {section.title}", f"{len(section.rows):,} rows, in signoff.html."]
    left = len(section.rows) - MOST_ROWS
    more = [f"{left:,} more rows are in signoff.json."] if left > 0 else []
    return [f"## {section.title}", _escape(section.caption), _table(section.head, section.rows[:MOST_ROWS]), *more]


def _group(group: Group) -> list[str]:
    """Return the first failure of a kind in full, the others in a table."""
    others = [[f"{d.title} ({d.run})", d.headline, d.replay] for d in group.others[:MOST_OTHERS]]
    shown = _defect(group.first, f"{group.title} ({group.runs})" if group.runs else group.title)
    return [shown, _table(["more of this kind", "what", "shown again by"], others)] if others else [shown]


def _defect(d: Defect, title: str) -> str:
    text = "\n".join(printable(line) for line in [d.headline, *d.details, "", d.replay])
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    known = f"\n\nKnown: {_escape(d.known)}" if d.known else ""
    return f"### {_escape(title)}{known}\n\n{fence}text\n{text}\n{fence}"
