"""A preflight as JUnit XML, for CI: one test case per check and host. Pure.

The format is what Jenkins, GitLab and pytest have in common. A warning is a passed test with output.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from mnt.preflight.findings import Finding, Severity
from mnt.preflight.registry import Check
from mnt.preflight.report import Report

# Characters that XML 1.0 does not allow (section 2.2).
_IMPOSSIBLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def as_junit(report: Report, seconds: float) -> str:
    """The whole file."""
    suites = ElementTree.Element("testsuites", name="mnt preflight")
    for family, checks in report.families.items():
        suite = ElementTree.SubElement(suites, "testsuite", name=family)
        suite.extend(_case(report, check, host.name) for check in checks for host in report.fleet.hosts)
        _count(suite, 0.0)
    _count(suites, seconds)
    ElementTree.indent(suites)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"
    )


def _case(report: Report, check: Check, host: str) -> ElementTree.Element:
    case = ElementTree.Element(
        "testcase", classname=f"preflight.{check.family}.{check.id}", name=_legal(host), time="0"
    )
    found = [each for each in report.by_host.get(host, ()) if each.check == check.id]
    failed = [each for each in found if each.severity is Severity.FAIL]
    if failed:
        message = "; ".join(each.message for each in failed)
        failure = ElementTree.SubElement(case, "failure", message=_legal(message), type=check.id)
        failure.text = _legal("\n\n".join(map(_text, failed)))
    elif not found and host not in report.judged[check.id]:
        ElementTree.SubElement(case, "skipped", message="not judged: the host did not report what is needed")
    others = [each for each in found if each.severity is not Severity.FAIL]
    if others:
        output = ElementTree.SubElement(case, "system-out")
        output.text = _legal("\n\n".join(map(_text, others)))
    return case


def _text(finding: Finding) -> str:
    return (
        f"{finding.severity.value}: {finding.message}\n"
        f"found: {finding.found}\nexpected: {finding.expected}\nfix: {finding.fix}"
    )


def _count(element: ElementTree.Element, seconds: float) -> None:
    """Add the totals."""
    element.set("tests", str(len(element.findall(".//testcase"))))
    element.set("failures", str(len(element.findall(".//failure"))))
    element.set("errors", "0")
    element.set("skipped", str(len(element.findall(".//skipped"))))
    element.set("time", f"{seconds:.3f}")


def _legal(text: str) -> str:
    return _IMPOSSIBLE.sub("\ufffd", text)
