"""A preflight as one self-contained HTML page. Pure.

The page has no script and loads nothing. All text, whatever host it comes from, is escaped by the template
engine.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mnt.facts.reach import Reach, Reached
from mnt.inventory.hostlist import fold
from mnt.preflight.findings import Severity
from mnt.preflight.reachability import grade
from mnt.preflight.report import Cell, Report

if TYPE_CHECKING:
    from jinja2 import Template

_MARKS = {"ok": "✓", "warn": "!", "fail": "✕", "info": "i", "unknown": "·"}
_SLOW, _SLOWER = 3.0, 10.0  # times the median latency


@dataclass(frozen=True)
class Square:
    """A cell of a matrix: a class of the style sheet, a mark, and what it means."""

    kind: str
    mark: str
    title: str


def as_page(report: Report, *, written: str, seconds: float) -> str:
    """The whole page.

    Args:
        written: when, for people.
        seconds: that the preflight took.
    """
    hosts = [host.name for host in report.fleet.hosts]
    return _template().render(
        cluster=report.fleet.inventory.cluster,
        hosts=fold(hosts),
        count=len(hosts),
        written=written,
        seconds=seconds,
        ok=report.ok,
        failed=report.count(Severity.FAIL),
        warned=report.count(Severity.WARN),
        families=[
            (family, [check for check in report.checks if check.family == family])
            for family in report.families()
        ],
        rows=[
            (host, report.status(host), [_square(check.id, cell) for check, cell in report.cells(host)])
            for host in hosts
        ],
        findings=[
            (finding, fold(finding.hosts))
            for severity in Severity
            for finding in report.findings
            if finding.severity is severity
        ],
        reach=_heat(report.fleet.reach, hosts) if report.fleet.reach else None,
    )


def _square(check: str, cell: Cell) -> Square:
    words = {"ok": "well", "unknown": "not judged"}.get(cell.status, cell.status)
    return Square(cell.status, _MARKS[cell.status], f"{check}: {words}")


def _heat(reach: Reach, hosts: list[str]) -> list[tuple[str, list[Square]]]:
    """A row of squares a host: what it saw of each other one."""
    shown = [host for host in hosts if host in reach.endpoints]
    latencies = [
        reached.latency
        for seen in reach.pairs.values()
        for reached in seen.values()
        if reached.latency is not None
    ]
    usual = statistics.median(latencies) if latencies else 0.0
    return [
        (host, [_pair(reach.pairs.get(host, {}).get(other), usual, host, other) for other in shown])
        for host in shown
    ]


def _pair(reached: Reached | None, usual: float, host: str, other: str) -> Square:
    where = f"{host} to {other}"
    if reached is None:
        return Square("self" if host == other else "unknown", "", f"{where}: not tried")
    wrong = grade(reached)
    if wrong is not None:
        outcomes = dict.fromkeys([*reached.ports.values(), *([reached.master] if reached.master else [])])
        kind = "fail" if wrong == "nothing" else "warn"
        return Square(kind, _MARKS[kind], f"{where}: {', '.join(outcomes)}")
    if reached.full is False:
        return Square("warn", _MARKS["warn"], f"{where}: full-size packets are lost")
    latency = reached.latency or 0.0
    kind = "slower" if latency > _SLOWER * usual else "slow" if latency > _SLOW * usual else "ok"
    return Square(kind, "", f"{where}: {1000 * latency:.3f} ms")


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("mnt.preflight.output", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")
