"""The sign-off as JUnit: a case for each requirement or question, and one for each run.

INCONCLUSIVE and ERROR are errors, never skips. Without failures and errors the file means PASS; what a policy does not ask for is
skipped, with that as its message.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvverify.events import Verdict
from kvverify.report.junit_document import add_case, document, legal
from kvverify.report.signoff.signoff import Signoff

_NOT_ASKED = "not asked for by the policy"


def junit_xml(s: Signoff) -> str:
    """Return the JUnit document of the sign-off."""
    suites = ET.Element("testsuites", name="kvverify")
    suite = ET.SubElement(suites, "testsuite", name="kvverify sign-off")
    if s.judgement:
        for r in s.judgement.requirements:
            text = f"asked: {r.asked}\nfound: {r.found}" + (f"\nstill needed: {r.missing}" if r.missing else "")
            _add(suite, f"kvverify.policy.{s.judgement.policy}", r.name, r.verdict, text)
    for q in s.questions:
        name, text = f"{q.number}. {q.title}", "\n".join([q.answer, *q.reasons])
        _add(suite, "kvverify.questions", name, q.verdict, text, decides=s.judgement is None)
    for one in s.support:
        text = "\n".join(one.reasons) or str(one.verdict)
        _add(suite, f"kvverify.{one.command}", one.run, one.verdict, text, decides=s.judgement is None)
    _add(suite, "kvverify", "sign-off", s.verdict, s.line)
    return document(suites)


def _add(suite: ET.Element, group: str, name: str, verdict: Verdict, text: str, *, decides: bool = True) -> None:
    element = add_case(suite, group, name)
    if verdict is not Verdict.PASS and not decides:
        ET.SubElement(element, "skipped", message=legal(f"{verdict}, {_NOT_ASKED}"))
    elif verdict is not Verdict.PASS:
        kind = "failure" if verdict is Verdict.FAIL else "error"
        child = ET.SubElement(element, kind, message=legal(text.splitlines()[0]), type=str(verdict))
        child.text = legal(text)
    ET.SubElement(element, "system-out").text = legal(text)
