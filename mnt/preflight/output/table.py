"""The table of a preflight: hosts by family of checks, and hosts by check. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Severity
from mnt.preflight.registry import Check
from mnt.preflight.report import Report

NOT_JUDGED = "-"


@dataclass(frozen=True)
class Cell:
    """The result of some checks on a host."""

    text: str  # `ok`, `-` (not judged), or the ids of the checks that found something
    status: str  # ok, warn, fail or unknown


def family_table(report: Report) -> list[tuple[str, list[Cell]]]:
    """Rows of (hostlist, one cell per family), in rank order. Hosts with equal cells share a row."""
    rows: dict[tuple[Cell, ...], list[str]] = {}
    for host in report.fleet.hosts:
        cells = tuple(_cell(report, host.name, checks) for checks in report.families.values())
        rows.setdefault(cells, []).append(host.name)
    return [(fold(hosts), list(cells)) for cells, hosts in rows.items()]


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
    return Cell(NOT_JUDGED, "unknown")
