"""Did earlier jobs leave processes or locks behind?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, host_check

_ZOMBIES = 20  # fewer are normal: their parent is about to wait for them
_BUILD = 300.0  # seconds; a build may pause between two compiler runs
_SHOWN = 5


@host_check("leftovers", severity=Severity.WARN)
def leftovers(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No process of an earlier job still runs without its supervisor.

    Such processes have MNT_JOB in their environment. They may occupy GPUs, ports and shared memory.
    """
    for left in facts.processes.leftovers if facts.processes else ():
        pids = ", ".join(map(str, left.pids[:_SHOWN])) + (" .." if len(left.pids) > _SHOWN else "")
        yield Problem(
            message=f"processes of job {left.job} still run without a supervisor",
            found=f"{len(left.pids)} (pid {pids}): {left.command}",
            expected="no process of a job without its supervisor",
            fix=f"mnt stop {left.job}",  # a job's name needs no quotes
        )


@host_check("zombies", severity=Severity.WARN)
def zombies(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """No process of the user has more than 20 zombie children."""
    for found in facts.processes.zombies if facts.processes else ():
        if found.count > _ZOMBIES:
            parent = f"pid {found.parent} ({found.command or 'unknown'})"
            yield Problem(
                message=f"{parent} has {found.count} zombie children",
                found=str(found.count),
                expected=f"at most {_ZOMBIES}",
                fix=f"end the parent, and the zombies disappear: kill {found.parent}",
            )


@check("build-lock", severity=Severity.WARN)
def build_lock(fleet: FleetFacts) -> Iterator[Problem]:
    """There is no stale lock of a torch extension build: a killed build leaves one, and later jobs wait.

    The check looks in TORCH_EXTENSIONS_DIR of the inventory's `env`, else in ~/.cache/torch_extensions. A
    lock is stale if it is more than 5 minutes old and no compiler runs on any host that sees it.
    """
    old: dict[str, list[str]] = {}
    building: set[str] = set()
    for host, facts in fleet.answers():
        for lock in facts.artifacts.locks if facts.artifacts else ():
            if lock.age > _BUILD:
                old.setdefault(lock.path, []).append(host.name)
            if facts.processes is not None and facts.processes.compiling:
                building.add(lock.path)
    for path, hosts in old.items():
        if path not in building:
            yield Problem(
                hosts=tuple(hosts),
                message=f"a killed build of a torch extension left a lock: {path}",
                found=f"{path} is more than {_BUILD / 60:.0f} minutes old, and no compiler runs",
                expected="no lock without a running build",
                fix=f"rm {shlex.quote(path)}",
            )
