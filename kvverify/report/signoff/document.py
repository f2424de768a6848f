"""The sign-off as one JSON document, for machines and for ``kvverify diff``."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, Literal

import kvverify
from kvverify.events import EXIT_CODES
from kvverify.report.signoff.checks import checks
from kvverify.report.signoff.signoff import Signoff

FORMAT: Literal["kvverify sign-off"] = "kvverify sign-off"
VERSION: Literal[1] = 1


def document(s: Signoff) -> dict[str, Any]:
    """Return the sign-off as a JSON object; nothing in it is cut short."""
    judgement = s.judgement
    return {
        "format": FORMAT,
        "version": VERSION,
        "kvverify": kvverify.__version__,
        "made": s.made,
        "verdict": s.verdict,
        "headline": s.headline,
        "line": s.line,
        "exit_code": EXIT_CODES[s.verdict],
        "runs": [
            {
                "run": run.name,
                "command": run.command,
                "verdict": run.verdict,
                "events_sha256": run.log_hash,
                "events": len(run.events),
                "reasons": [dataclasses.asdict(r) for r in run.summary.reasons],
            }
            for run in s.runs
        ],
        "tested": {
            "facts": {word: list(values) for word, values in s.subject.facts.items()},
            "servers": [{**dataclasses.asdict(server), "runs": dict(server.runs)} for server in s.subject.servers],
            "kernels": [{**dataclasses.asdict(k), "files": dict(k.files)} for k in s.subject.kernels],
            "conflicts": list(s.subject.conflicts),
        },
        "questions": [{**dataclasses.asdict(q), "title": q.title, "figures": dict(q.figures)} for q in s.questions],
        "policy": {
            **dataclasses.asdict(judgement),
            "verdict": judgement.verdict,
            "decision": judgement.decision,
        }
        if judgement
        else None,
        "not_covered": list(s.gaps.short),
        "gaps": {name: list(lines) for name, lines in s.gaps.by_run},
        "checks": {name: dataclasses.asdict(check) for name, check in checks(s.runs).items()},
        "failures": [dataclasses.asdict(d) for d in s.defects],
        "tables": {t.title: [dict(zip(t.head, row, strict=True)) for row in t.rows] for t in s.sections},
        "pictures": [{"title": figure.title, "note": figure.note} for figure in [*s.maps, *s.plots]],
    }


def json_text(s: Signoff) -> str:
    """Return the document as the text of signoff.json."""
    return json.dumps(document(s), indent=1, ensure_ascii=False, default=str) + "\n"
