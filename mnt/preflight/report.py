"""The result of a preflight: findings, each host's status, a table, and changes since the last one. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import msgspec

from mnt.facts.fleet import FleetFacts
from mnt.inventory.hostlist import fold, group
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Finding, Severity
from mnt.preflight.registry import Check


@dataclass(frozen=True)
class Report:
    """The result of one preflight."""

    fleet: FleetFacts
    network: NetworkDecision
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.count(Severity.FAIL)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity == severity for finding in self.findings)

    def status(self, host: str) -> str:
        """ok, warn, fail or unreachable."""
        error = self.fleet.errors.get(host)
        if error is not None and error.connection_lost:
            return "unreachable"
        worst = next(iter(self.by_host.get(host, ())), None)
        return worst.severity.value if worst and worst.severity is not Severity.INFO else "ok"

    def document(self) -> dict[str, Any]:
        """The JSON document of `mnt preflight --json`."""
        return {
            "ok": self.ok,
            "hosts": {host.name: {"status": self.status(host.name)} for host in self.fleet.hosts},
            "findings": msgspec.to_builtins(self.findings),
            "checks": [check.id for check in self.checks],
            **({"deep": self.fleet.trial.document()} if self.fleet.trial else {}),
        }

    @cached_property
    def families(self) -> dict[str, list[Check]]:
        """The checks of this run by family, in order."""
        found: dict[str, list[Check]] = {}
        for check in self.checks:
            found.setdefault(check.family, []).append(check)
        return found

    @cached_property
    def judged(self) -> dict[str, frozenset[str]]:
        """The hosts that each check could judge, by check id."""
        return {check.id: check.judges(self.fleet) for check in self.checks}

    @cached_property
    def worst_first(self) -> list[Finding]:
        return [finding for severity in Severity for finding in self.findings if finding.severity is severity]

    @cached_property
    def by_host(self) -> dict[str, list[Finding]]:
        """The findings on each host, the worst first."""
        found: dict[str, list[Finding]] = {}
        for finding in self.worst_first:
            for host in finding.hosts:
                found.setdefault(host, []).append(finding)
        return found


def run_checks(fleet: FleetFacts, network: NetworkDecision, checks: Sequence[Check]) -> Report:
    """Run the checks on the facts and on the network decision; findings are in the order of the checks."""
    findings = tuple(finding for check in checks for finding in check.run(fleet, network))
    return Report(fleet, network, tuple(checks), findings)


@dataclass(frozen=True)
class Cell:
    """The result of some checks on a host."""

    text: str  # `ok`, `-` (not judged), or the ids of the checks that found something
    status: str  # ok, warn, fail or unknown


def family_table(report: Report) -> list[tuple[str, list[Cell]]]:
    """Rows of (hostlist, one cell per family), in rank order. Hosts with equal cells share a row."""
    rows = {
        host.name: tuple(_cell(report, host.name, checks) for checks in report.families.values())
        for host in report.fleet.hosts
    }
    return [(fold(hosts), list(rows[hosts[0]])) for hosts in group(rows)]


def check_cells(report: Report, host: str) -> list[tuple[Check, Cell]]:
    """One cell per check, family by family."""
    return [(check, _cell(report, host, [check])) for check in report.checks]


def _cell(report: Report, host: str, checks: Sequence[Check]) -> Cell:
    ids = {check.id for check in checks}
    found = [
        finding
        for finding in report.by_host.get(host, ())
        if finding.check in ids and finding.severity is not Severity.INFO
    ]
    if found:
        return Cell(", ".join(dict.fromkeys(finding.check for finding in found)), found[0].severity.value)
    if any(host in report.judged[id] for id in ids):
        return Cell("ok", "ok")
    return Cell("-", "unknown")


@dataclass(frozen=True)
class Changes:
    """Each finding lists only the hosts on which it is new, or gone."""

    new: tuple[Finding, ...]
    gone: tuple[Finding, ...]


def changes(before: Report, after: Report) -> Changes:
    """Compare by check, severity and host: a finding with other numbers in its text is the same finding."""
    return Changes(_without(after.findings, before.findings), _without(before.findings, after.findings))


def _without(findings: Sequence[Finding], others: Sequence[Finding]) -> tuple[Finding, ...]:
    """`findings`, without what is also in `others`."""
    known = {(each.check, each.severity, host) for each in others for host in each.hosts}
    narrowed = (
        replace(
            each, hosts=tuple(host for host in each.hosts if (each.check, each.severity, host) not in known)
        )
        for each in findings
    )
    return tuple(each for each in narrowed if each.hosts)
