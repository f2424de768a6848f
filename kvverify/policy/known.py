"""Known findings: what a policy allows until a date, taken out of a run before its verdict is computed."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence

from kvverify.events import CodecCompared, ConfigurationChecked, Event, FailureFound, FaultPlanted
from kvverify.policy.model import KnownFinding
from kvverify.report.signoff.gather import Run
from kvverify.report.signoff.requirement import Excuse
from kvverify.report.summary import summarise
from kvverify.verdicts import differs


def matches(finding: KnownFinding, event: Event) -> bool:
    """Is this event, a finding, the one that the policy knows? Every name given must fit."""
    match event:
        case FailureFound():
            asked = finding.kernel or finding.fingerprint
            fits = finding.kernel in ("", event.kernel) and finding.fingerprint in ("", event.fingerprint)
            return bool(asked) and fits and not (finding.fault or finding.library or finding.configuration)
        case FaultPlanted(outcome="survived"):
            fits = finding.fault in (event.fault, event.name) and finding.kernel in ("", event.kernel)
            return bool(finding.fault) and fits
        case CodecCompared() if differs(event):
            return bool(finding.library) and finding.library == event.library and finding.format in ("", event.format)
        case ConfigurationChecked(outcome="fault"):
            return bool(finding.configuration) and finding.configuration == event.check
        case _:
            return False


def expired(finding: KnownFinding, today: dt.date) -> bool:
    """Is the finding no longer allowed? Its last day still counts."""
    return today > finding.expires


def excuse_for(findings: Sequence[KnownFinding], event: Event, today: dt.date) -> str:
    """Return why an event is allowed today, empty where it is not."""
    for finding in findings:
        if matches(finding, event) and not expired(finding, today):
            return f"{finding.why} (until {finding.expires})"
    return ""


def without_known(runs: Sequence[Run], findings: Sequence[KnownFinding], today: dt.date) -> list[Run]:
    """Return the runs without the events that are allowed today, their tables and verdicts computed anew."""
    result = []
    for run in runs:
        kept = [event for event in run.events if not excuse_for(findings, event, today)]
        if len(kept) < len(run.events):
            result.append(dataclasses.replace(run, events=kept, summary=summarise(kept)))
        else:
            result.append(run)
    return result


def excuses(runs: Sequence[Run], findings: Sequence[KnownFinding], today: dt.date) -> list[Excuse]:
    """Return what each known finding covers in these runs."""
    return [
        Excuse(
            what=", ".join(f"{name} {value}" for name, value in _selectors(finding).items()),
            reason=finding.why,
            expires=str(finding.expires),
            expired=expired(finding, today),
            matched=sum(matches(finding, event) for run in runs for event in run.events),
            report=finding.report,
        )
        for finding in findings
    ]


def _selectors(finding: KnownFinding) -> dict[str, str]:
    names = ("kernel", "fingerprint", "fault", "library", "format", "configuration")
    return {name: value for name in names if (value := getattr(finding, name))}
