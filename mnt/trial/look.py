"""The edge of `--deep`: asks the hosts, runs the checks, and then the trial, unless a check prevents it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mnt.facts.gather import Progress
from mnt.facts.trial import Trial
from mnt.fleet import Fleet
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host, Inventory
from mnt.preflight.findings import Severity
from mnt.preflight.look import look
from mnt.preflight.registry import Check, Needs, select
from mnt.preflight.report import Report, run_checks
from mnt.trial.run import try_out

# A trial uses neither the logins between hosts nor shared storage.
_UNRELATED = (Needs.MESH, Needs.VISIBILITY)


def trial_checks() -> tuple[Check, ...]:
    """The checks of a trial, and all checks that can prevent one."""
    return tuple(check for check in select(deep=True) if check.needs not in _UNRELATED)


def look_deep(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    checks: Sequence[Check],
    progress: Progress = lambda text: None,
) -> Report:
    """`mnt.preflight.look.look`, and then a trial run, whose result is `fleet.trial` of the report.

    If one of `checks` fails, no job is launched, because it could hang: then the trial has an obstacle. Only
    `ssh-mesh` and `storage-visible` may fail, because the job does not use what they check.
    """
    report = look(fleet, inventory, hosts, checks, progress)
    reason = obstacle(report)
    if reason is None:
        trial = try_out(fleet, report.fleet, report.network, progress)
    else:
        trial = Trial(tuple(report.fleet.facts), obstacle=reason)
    return run_checks(replace(report.fleet, trial=trial), report.network, checks)


def obstacle(report: Report) -> str | None:
    """The first failure that prevents a trial; None: the trial can run."""
    unrelated = {check.id for check in report.checks if check.needs in _UNRELATED}
    for finding in report.findings:
        if finding.severity is Severity.FAIL and finding.check not in unrelated:
            return f"{fold(finding.hosts)}: {finding.message} ({finding.check})"
    return None
