"""What has changed from one preflight to the next. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mnt.preflight.findings import Finding
from mnt.preflight.report import Report


@dataclass(frozen=True)
class Changes:
    """Findings that are new, and that are gone; each with the hosts for which that holds."""

    appeared: tuple[Finding, ...]
    gone: tuple[Finding, ...]


def changes(before: Report, after: Report) -> Changes:
    """A finding that only says it with other numbers is the same: check, severity and host make it."""
    return Changes(_beyond(after.findings, before.findings), _beyond(before.findings, after.findings))


def _beyond(findings: Sequence[Finding], others: Sequence[Finding]) -> tuple[Finding, ...]:
    """What of `findings` the others have not."""
    known = {(each.check, each.severity, host) for each in others for host in each.hosts}
    narrowed = (
        replace(
            each, hosts=tuple(host for host in each.hosts if (each.check, each.severity, host) not in known)
        )
        for each in findings
    )
    return tuple(each for each in narrowed if each.hosts)
