"""JUnit XML: one test case for each kernel and layout, for each planted fault and kernel, and for the run as a whole.

A run against a server has one for each arm's gate and one for each pair of tiers, an accuracy run one for each arm and claim.

INCONCLUSIVE and ERROR are errors, never skips: a file without failures and errors means PASS. What a budget did not reach is
skipped, with that as its message.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

from kvverify.events import CodecCompared, FaultPlanted, Verdict
from kvverify.report.final import detail_lines, replay_command
from kvverify.report.section import LiveCase
from kvverify.report.summary import Case, Failure, Summary
from kvverify.report.words import utc
from kvverify.verdicts import differs

# XML 1.0 has no way to write these, escaped or not
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit_xml(summary: Summary, run: Path) -> str:
    """Return the JUnit document of the run in folder ``run``."""
    suites = ET.Element("testsuites", name="kvverify")
    command = summary.start.command if summary.start else "run"
    suite = ET.SubElement(suites, "testsuite", name=_xml(f"kvverify {command}"))
    if summary.start:
        suite.set("timestamp", utc(summary.start.at).removesuffix(" UTC").replace(" ", "T"))
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="version", value=_xml(summary.start.version))
        ET.SubElement(properties, "property", name="seed", value=str(summary.start.seed))
    for case in summary.cases:
        _add_case(suite, case, run)
    for compared in summary.comparisons:
        _add_comparison(suite, compared)
    for (fault, name), row in summary.faults.items():
        killed = any(e.outcome == "killed" for e in row.values())
        for event in row.values():
            _add_fault(suite, f"{fault} {name}", event, killed_elsewhere=killed)
    for live in summary.live.cases if summary.live else []:
        _add_live(suite, live)
    _add_run(suite, summary)
    totals = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for element in (suite, suites):
        for name, count in totals.items():
            element.set(name, str(count))
        element.set("time", f"{summary.seconds:.3f}")
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"


def _add_case(suite: ET.Element, case: Case, run: Path) -> None:
    element = _testcase(suite, f"kvverify.{case.kernel}", case.layout, case.seconds)
    for failure in case.failures[:1]:  # several failures in one test case are read by few consumers
        message = failure.event.headline
        child = ET.SubElement(element, "failure", message=_xml(message), type=_xml(failure.event.kind))
        child.text = _xml("\n\n".join(_failure_text(f, run) for f in case.failures))
    if case.verdict is None and case.sequences:
        message = "sequences ran and compared no byte"
        ET.SubElement(element, "error", message=message, type=str(Verdict.INCONCLUSIVE))
    elif case.verdict is None:
        ET.SubElement(element, "skipped", message="not met in this run")
    numbers = f"{case.sequences} sequences, {case.compared_bytes} bytes compared, {case.moved_bytes} bytes moved"
    ET.SubElement(element, "system-out").text = numbers


def _failure_text(failure: Failure, run: Path) -> str:
    event = failure.event
    place = f"{event.kind} at step {event.step}" + (f", found {failure.times} times" if failure.times > 1 else "")
    return "\n".join([event.headline, place, *detail_lines(failure), replay_command(run, failure)])


def _add_comparison(suite: ET.Element, event: CodecCompared) -> None:
    name = f"{event.format}, head size {event.head_size}, {event.what}"
    element = _testcase(suite, f"kvverify.codecs.{event.library}", name, event.seconds)
    if differs(event):
        ET.SubElement(element, "failure", message=_xml(event.headline), type="differs").text = _xml(event.note)
    numbers = f"{event.compared_bytes} bytes compared, {event.near_midpoint} numbers within float32 error of a midpoint"
    ET.SubElement(element, "system-out").text = numbers


def _add_fault(suite: ET.Element, fault: str, event: FaultPlanted, *, killed_elsewhere: bool) -> None:
    element = _testcase(suite, "kvverify.planted-faults", f"{fault} with {event.kernel}", event.seconds)
    if event.outcome == "declared":
        ET.SubElement(element, "system-out").text = _xml(f"no client can see it, as declared: {event.reason}")
    elif event.outcome == "killed":
        ET.SubElement(element, "system-out").text = _xml(f"killed by {event.by}: {event.headline}")
    elif event.outcome == "n/a" and killed_elsewhere:
        ET.SubElement(element, "skipped", message=_xml(f"n/a: {event.reason}"))
    elif event.outcome == "survived":
        message = f"survived {event.examples} examples"
        ET.SubElement(element, "failure", message=message, type="survived").text = _xml(event.reason)
    else:
        message = _xml(f"{event.outcome}: {event.reason}")
        ET.SubElement(element, "error", message=message, type=str(Verdict.INCONCLUSIVE))


def _add_live(suite: ET.Element, case: LiveCase) -> None:
    element = _testcase(suite, f"kvverify.{case.family}.{case.group}", case.name, 0.0)
    if case.verdict is not Verdict.PASS:
        kind = "failure" if case.verdict is Verdict.FAIL else "error"
        message = case.messages[0] if case.messages else str(case.verdict)
        child = ET.SubElement(element, kind, message=_xml(message), type=str(case.verdict))
        child.text = _xml("\n".join(case.messages))
    if case.numbers:
        ET.SubElement(element, "system-out").text = _xml(case.numbers)


def _add_run(suite: ET.Element, summary: Summary) -> None:
    """Add the run itself, which carries every reason that belongs to no single kernel and layout."""
    element = _testcase(suite, "kvverify", "run", summary.seconds)
    others = [r for r in summary.reasons if r.verdict is not Verdict.FAIL]
    if others:
        text = "\n".join(r.text for r in others)
        ET.SubElement(element, "error", message=_xml(others[0].text), type=str(others[0].verdict)).text = _xml(text)
    if summary.not_covered:
        ET.SubElement(element, "system-out").text = _xml("not covered:\n" + "\n".join(summary.not_covered))


def _testcase(suite: ET.Element, classname: str, name: str, seconds: float) -> ET.Element:
    return ET.SubElement(suite, "testcase", classname=_xml(classname), name=_xml(name), time=f"{seconds:.3f}")


def _xml(text: str) -> str:
    return _ILLEGAL.sub("�", text)
