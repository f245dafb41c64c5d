"""A preflight as one self-contained HTML page. Pure.

The page has no script and loads nothing. The template engine escapes all text, because texts come from hosts.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from mnt.facts.reach import Reach, Reached
from mnt.inventory.hostlist import fold
from mnt.preflight.reachability import NOTHING, grade
from mnt.preflight.report import Report, check_cells

_SYMBOLS = {"ok": "✓", "warn": "!", "fail": "✕", "unknown": "·"}
_SLOW, _SLOWER = 3.0, 10.0  # times the median latency


@dataclass(frozen=True)
class Square:
    """A cell of the matrix of connections."""

    kind: str  # a class of the style sheet
    symbol: str
    title: str  # the tooltip


def as_page(report: Report, *, written: str, seconds: float) -> str:
    """The whole page.

    Args:
        written: date and time, for people.
        seconds: how long the preflight took.
    """
    hosts = [host.name for host in report.fleet.hosts]
    return _template().render(
        report=report,
        fold=fold,
        hosts=hosts,
        written=written,
        seconds=seconds,
        cells={host: check_cells(report, host) for host in hosts},
        symbols=_SYMBOLS,
        reach=_heat(report.fleet.reach, hosts),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("mnt.preflight.output", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("page.html.j2")


def _heat(reach: Reach, hosts: list[str]) -> list[tuple[str, list[Square]]]:
    """A row of squares per host: how it reaches each other host."""
    shown = [host for host in hosts if host in reach.nics]
    latencies = [
        reached.latency
        for targets in reach.pairs.values()
        for reached in targets.values()
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
    fault = grade(reached)
    if fault is not None:
        kind = "fail" if fault == NOTHING else "warn"
        return Square(kind, _SYMBOLS[kind], f"{where}: {', '.join(dict.fromkeys(reached.outcomes))}")
    if reached.full is False:
        return Square("warn", _SYMBOLS["warn"], f"{where}: full-size packets are lost")
    latency = reached.latency or 0.0
    kind = "slower" if latency > _SLOWER * usual else "slow" if latency > _SLOW * usual else "ok"
    return Square(kind, "", f"{where}: {1000 * latency:.3f} ms")
