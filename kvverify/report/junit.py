"""JUnit XML: one test case for each kernel and layout, for each planted fault and kernel, and for the run as a whole.

A run against a server has one for each arm's gate and one for each pair of tiers, an accuracy run one for each arm and claim.

INCONCLUSIVE and ERROR are errors, never skips: a file without failures and errors means PASS. What a budget did not reach is
skipped, with that as its message.
"""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree as ET

from kvverify.events import CodecCompared, FaultPlanted, Verdict
from kvverify.report.final import detail_lines, replay_command
from kvverify.report.junit_document import add_case, document, legal
from kvverify.report.section import LiveCase
from kvverify.report.summary import Case, Failure, Summary
from kvverify.report.words import utc
from kvverify.verdicts import differs


def junit_xml(summary: Summary, run: Path) -> str:
    """Return the JUnit document of the run in folder ``run``."""
    suites = ET.Element("testsuites", name="kvverify")
    command = summary.start.command if summary.start else "run"
    suite = ET.SubElement(suites, "testsuite", name=legal(f"kvverify {command}"))
    if summary.start:
        suite.set("timestamp", utc(summary.start.at).removesuffix(" UTC").replace(" ", "T"))
        properties = ET.SubElement(suite, "properties")
        ET.SubElement(properties, "property", name="version", value=legal(summary.start.version))
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
    return document(suites, summary.seconds)


def _add_case(suite: ET.Element, case: Case, run: Path) -> None:
    element = add_case(suite, f"kvverify.{case.kernel}", case.layout, case.seconds)
    for failure in case.failures[:1]:  # several failures in one test case are read by few consumers
        message = failure.event.headline
        child = ET.SubElement(element, "failure", message=legal(message), type=legal(failure.event.kind))
        child.text = legal("\n\n".join(_failure_text(f, run) for f in case.failures))
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
    element = add_case(suite, f"kvverify.codecs.{event.library}", name, event.seconds)
    if differs(event):
        ET.SubElement(element, "failure", message=legal(event.headline), type="differs").text = legal(event.note)
    numbers = f"{event.compared_bytes} bytes compared, {event.near_midpoint} numbers within float32 error of a midpoint"
    ET.SubElement(element, "system-out").text = numbers


def _add_fault(suite: ET.Element, fault: str, event: FaultPlanted, *, killed_elsewhere: bool) -> None:
    element = add_case(suite, "kvverify.planted-faults", f"{fault} with {event.kernel}", event.seconds)
    if event.outcome == "declared":
        ET.SubElement(element, "system-out").text = legal(f"no client can see it, as declared: {event.reason}")
    elif event.outcome == "killed":
        ET.SubElement(element, "system-out").text = legal(f"killed by {event.by}: {event.headline}")
    elif event.outcome == "n/a" and killed_elsewhere:
        ET.SubElement(element, "skipped", message=legal(f"n/a: {event.reason}"))
    elif event.outcome == "survived":
        message = f"survived {event.examples} examples"
        ET.SubElement(element, "failure", message=message, type="survived").text = legal(event.reason)
    else:
        message = legal(f"{event.outcome}: {event.reason}")
        ET.SubElement(element, "error", message=message, type=str(Verdict.INCONCLUSIVE))


def _add_live(suite: ET.Element, case: LiveCase) -> None:
    element = add_case(suite, f"kvverify.{case.family}.{case.group}", case.name, 0.0)
    if case.verdict is not Verdict.PASS:
        kind = "failure" if case.verdict is Verdict.FAIL else "error"
        message = case.messages[0] if case.messages else str(case.verdict)
        child = ET.SubElement(element, kind, message=legal(message), type=str(case.verdict))
        child.text = legal("\n".join(case.messages))
    if case.numbers:
        ET.SubElement(element, "system-out").text = legal(case.numbers)


def _add_run(suite: ET.Element, summary: Summary) -> None:
    """Add the run itself, which carries every reason that belongs to no single kernel and layout."""
    element = add_case(suite, "kvverify", "run", summary.seconds)
    others = [r for r in summary.reasons if r.verdict is not Verdict.FAIL]
    if others:
        text = "\n".join(r.text for r in others)
        ET.SubElement(element, "error", message=legal(others[0].text), type=str(others[0].verdict)).text = legal(text)
    if summary.not_covered:
        ET.SubElement(element, "system-out").text = legal("not covered:\n" + "\n".join(summary.not_covered))
