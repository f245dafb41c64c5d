"""The changes from one preflight to the next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnt.preflight.findings import Finding
from mnt.preflight.report import Report


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
