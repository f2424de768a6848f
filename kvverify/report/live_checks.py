"""Sessions kept apart and configurations looked at, as tables and as cases for JUnit."""

from __future__ import annotations

from collections.abc import Iterable

from kvverify.events import ConfigurationChecked, Event, IsolationMeasured, RequestAnswered, SessionChecked, Verdict
from kvverify.reasons import Reason, worst
from kvverify.report.section import LiveCase, Section
from kvverify.verdicts_live import configuration_reasons, request_reasons, session_reasons

MOST_SESSIONS = 100


def sessions(seen: list[Event]) -> Section:
    """Return the sessions of the isolation test, those with a finding first."""
    by_session: dict[str, list[SessionChecked]] = {}
    for e in _answers(seen):
        by_session.setdefault(e.session, []).append(e)
    rows = []
    for name, own in by_session.items():
        foreign = list(dict.fromkeys(e.foreign for e in own if e.foreign))
        wrong = next((e.detail for e in own if e.detail), "")
        numbers = [len(own), sum(bool(e.from_tier) for e in own), sum(e.right for e in own)]
        qualified = "yes" if any(e.qualified for e in own) else "no"
        rows.append([name, qualified, *(str(n) for n in numbers), ", ".join(foreign) or "–", wrong or "–"])
    rows.sort(key=lambda row: (row[5] == "–", row[6] == "–"))
    head = ["session", "qualified", "answers", "proved", "right", "foreign content of", "first wrong answer"]
    caption = "Each session's answers over all rounds; proved: reloaded from the lower tier."
    return Section("Sessions", caption, head, rows[:MOST_SESSIONS], frozenset((2, 3, 4)))


def isolation(seen: list[Event]) -> Section:
    """Return what all answers of the isolation test say together."""
    measured = [e for e in seen if isinstance(e, IsolationMeasured)][-1:]
    rows = [
        [
            *(f"{n:,}" for n in (e.answers, e.qualified, e.right, e.foreign)),
            f"{e.excluded_rate:.2%} at {e.confidence:.0%}" if e.excluded_rate >= 0 else "none",
        ]
        for e in measured
    ]
    head = ["answers", "count", "of those right", "with foreign content", "rate of leaks excluded"]
    caption = "Answers count where the session gave a right answer from HBM and the tier is proved."
    if any(e.new_prompts for e in measured):
        head.append("new prompts beside")
        rows = [[*row, f"{e.new_prompts:,}"] for row, e in zip(rows, measured, strict=True)]
    return Section("Isolation", caption, head, rows, frozenset((*range(4), 5)), brief=True)


def configurations(seen: list[Event]) -> Section:
    """Return what the doctor found."""
    last = {e.check: e for e in seen if isinstance(e, ConfigurationChecked)}.values()
    rows = [[e.check, e.outcome, e.found or "–", e.breaks or "–", e.fix or "–"] for e in last]
    caption = "Faults of configuration that make a test meaningless or a cache useless."
    return Section(
        "Configuration", caption, ["check", "outcome", "found", "what it breaks", "what to set"], rows, brief=True
    )


def check_cases(seen: list[Event]) -> list[LiveCase]:
    """Return the cases of requests, sessions and configurations; none of what a run did not do."""
    cases = []
    if any(isinstance(e, RequestAnswered) for e in seen):
        cases.append(_case("requests", "answered", request_reasons(seen)))
    if any(isinstance(e, SessionChecked) for e in seen):
        cases.append(_case("isolation", "sessions", session_reasons(seen)))
    checks = {e.check: e for e in seen if isinstance(e, ConfigurationChecked)}
    return cases + [_case("doctor", name, configuration_reasons([e])) for name, e in checks.items()]


def _case(group: str, name: str, reasons: list[Reason]) -> LiveCase:
    verdict = worst([Verdict.PASS, *(r.verdict for r in reasons)])
    return LiveCase(group, name, verdict, [r.text for r in reasons])


def _answers(seen: Iterable[Event]) -> list[SessionChecked]:
    return list({(e.session, e.round): e for e in seen if isinstance(e, SessionChecked)}.values())
