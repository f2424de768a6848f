"""The sign-off as JUnit: a case for each requirement or question, and one for each run.

INCONCLUSIVE and ERROR are errors, never skips. Without failures and errors the file means PASS; what a policy does not ask for is
skipped, with that as its message.
"""

from __future__ import annotations

from xml.etree import ElementTree as ET

from kvverify.events import Verdict
from kvverify.report.junit import _testcase, _xml
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
    totals = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for element in (suite, suites):
        for word, count in totals.items():
            element.set(word, str(count))
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _add(suite: ET.Element, group: str, name: str, verdict: Verdict, text: str, *, decides: bool = True) -> None:
    element = _testcase(suite, group, name, 0.0)
    if verdict is not Verdict.PASS and not decides:
        ET.SubElement(element, "skipped", message=_xml(f"{verdict}, {_NOT_ASKED}"))
    elif verdict is not Verdict.PASS:
        kind = "failure" if verdict is Verdict.FAIL else "error"
        child = ET.SubElement(element, kind, message=_xml(text.splitlines()[0]), type=str(verdict))
        child.text = _xml(text)
    ET.SubElement(element, "system-out").text = _xml(text)
