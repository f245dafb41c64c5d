"""What preflight answers: findings, hosts by status, and a table that folds hosts which look alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mnt.facts.fleet import FleetFacts
from mnt.inventory.hostlist import fold
from mnt.network.decision import NetworkDecision
from mnt.preflight.checks import ORDER
from mnt.preflight.findings import Finding, Severity
from mnt.preflight.registry import Check

NOT_JUDGED = "-"
_WORST_FIRST = (Severity.FAIL, Severity.WARN)
# Phases of HostError in which the host was reached, and what went wrong is the probe.
_AFTER_LOGIN = ("command", "answer")


@dataclass(frozen=True)
class Cell:
    """A family of checks on a host: `ok`, `-` (nothing was judged), or the checks that found something."""

    text: str
    status: str  # ok, warn, fail or unknown


@dataclass(frozen=True)
class Report:
    """A preflight that has run."""

    fleet: FleetFacts
    network: NetworkDecision
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return not self.count(Severity.FAIL)

    def count(self, severity: Severity) -> int:
        return sum(finding.severity is severity for finding in self.findings)

    def status(self, host: str) -> str:
        """ok, warn, fail or unreachable."""
        error = self.fleet.errors.get(host)
        if error is not None and error.phase not in _AFTER_LOGIN:
            return "unreachable"
        severities = {finding.severity for finding in self.findings if host in finding.hosts}
        return next((severity.value for severity in _WORST_FIRST if severity in severities), "ok")

    def document(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "ok": self.ok,
            "hosts": {host.name: {"status": self.status(host.name)} for host in self.fleet.hosts},
            "findings": [finding.document() for finding in self.findings],
            "checks": [check.id for check in self.checks],
            **({"deep": self.fleet.trial.document()} if self.fleet.trial else {}),
        }

    def families(self) -> list[str]:
        """The columns of the table: those families that have a check in this run."""
        return [family for family in ORDER if any(check.family == family for check in self.checks)]

    def table(self) -> list[tuple[str, list[Cell]]]:
        """(hostlist, a cell a family), in rank order; hosts with equal cells share a row."""
        rows: dict[tuple[Cell, ...], list[str]] = {}
        for host in self.fleet.hosts:
            cells = tuple(self._family_cell(host.name, family) for family in self.families())
            rows.setdefault(cells, []).append(host.name)
        return [(fold(hosts), list(cells)) for cells, hosts in rows.items()]

    def cells(self, host: str) -> list[tuple[Check, Cell]]:
        """A cell for each check of this run, family by family."""
        return [
            (check, self._cell(host, [check]))
            for family in self.families()
            for check in self.checks
            if check.family == family
        ]

    def _family_cell(self, host: str, family: str) -> Cell:
        return self._cell(host, [check for check in self.checks if check.family == family])

    def _cell(self, host: str, checks: Sequence[Check]) -> Cell:
        found = [
            finding
            for severity in _WORST_FIRST
            for finding in self._by_host.get(host, ())
            if finding.severity is severity and any(finding.check == check.id for check in checks)
        ]
        if found:
            names = dict.fromkeys(finding.check for finding in found)
            return Cell(", ".join(names), found[0].severity.value)
        if any(host in self._judged[check.id] for check in checks):
            return Cell("ok", "ok")
        return Cell(NOT_JUDGED, "unknown")

    @cached_property
    def _judged(self) -> dict[str, frozenset[str]]:
        """The hosts that each check could judge."""
        return {check.id: check.judges(self.fleet) for check in self.checks}

    @cached_property
    def _by_host(self) -> dict[str, list[Finding]]:
        found: dict[str, list[Finding]] = {}
        for finding in self.findings:
            for host in finding.hosts:
                found.setdefault(host, []).append(finding)
        return found


def run_checks(fleet: FleetFacts, network: NetworkDecision, checks: Sequence[Check]) -> Report:
    """Judge the facts, and the network decided from them; findings in the order of the checks."""
    findings = tuple(finding for check in checks for finding in check.run(fleet, network))
    return Report(fleet, network, tuple(checks), findings)
