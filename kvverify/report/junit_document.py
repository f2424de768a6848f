"""The JUnit format itself: test cases, text that XML can carry, and the numbers that consumers expect at the top."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

# XML 1.0 has no way to write these, escaped or not
_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def legal(text: str) -> str:
    """Return ``text`` with what XML cannot carry replaced."""
    return _ILLEGAL.sub("\ufffd", text)


def add_case(suite: ET.Element, classname: str, name: str, seconds: float = 0.0) -> ET.Element:
    """Add a test case, which passes as long as nothing is put into it."""
    return ET.SubElement(suite, "testcase", classname=legal(classname), name=legal(name), time=f"{seconds:.3f}")


def document(suites: ET.Element, seconds: float | None = None) -> str:
    """Return the text of ``suites``, which hold one suite, with the numbers of its cases and the time they took."""
    (suite,) = suites.findall("testsuite")
    totals = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for element in (suite, suites):
        for name, count in totals.items():
            element.set(name, str(count))
        if seconds is not None:
            element.set("time", f"{seconds:.3f}")
    ET.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(suites, encoding="unicode") + "\n"
