"""Did earlier jobs leave processes or locks behind?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.system import Leftover
from mnt.inventory.hostlist import fold
from mnt.inventory.model import Host
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, host_check

_ZOMBIES = 20  # fewer are normal: their parent is about to wait for them
_BUILD = 300.0  # seconds; a build may pause between two compiler runs
_SHOWN = 5


@check("leftovers", severity=Severity.WARN)
def leftovers(fleet: FleetFacts) -> Iterator[Problem]:
    """No process of an earlier job still runs without its supervisor.

    Such processes have MNT_JOB in their environment. They may occupy GPUs, ports and shared memory. The fix
    stops the job only on the hosts that have such processes of it: elsewhere it may still run.
    """
    found = [(host.name, left) for host, facts in fleet.answers() for left in _leftovers(facts)]
    where: dict[str, list[str]] = {}
    for name, left in found:
        where.setdefault(left.job, []).append(name)
    for name, left in found:
        pids = ", ".join(map(str, left.pids[:_SHOWN])) + (" .." if len(left.pids) > _SHOWN else "")
        yield Problem(
            hosts=(name,),
            message=f"processes of job {left.job} still run without a supervisor",
            found=f"{len(left.pids)} (pid {pids}): {left.command}",
            expected="no process of a job without its supervisor",
            # A job's name needs no quotes.
            fix=f"mnt stop {left.job} -n {shlex.quote(fold(where[left.job]))}",
        )


def _leftovers(facts: HostFacts) -> tuple[Leftover, ...]:
    return facts.processes.leftovers if facts.processes else ()


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
    lock is stale if it is more than 5 minutes old and no compiler runs on the host that sees it. If one runs
    on another host that sees it, the finding names both: the other host may build, or this may be wrong.
    """
    idle: dict[str, list[str]] = {}  # path -> hosts on which it is old, and no compiler runs
    building: dict[str, list[str]] = {}
    for host, facts in fleet.answers():
        compiling = facts.processes is not None and facts.processes.compiling
        for lock in facts.artifacts.locks if facts.artifacts else ():
            if compiling:
                building.setdefault(lock.path, []).append(host.name)
            elif lock.age > _BUILD:
                idle.setdefault(lock.path, []).append(host.name)
    for path, hosts in idle.items():
        builders = building.get(path, [])
        old = f"{path} is more than {_BUILD / 60:.0f} minutes old, and no compiler runs"
        remove = f"rm {shlex.quote(path)}"
        if builders:
            named = fold(builders)
            yield Problem(
                hosts=(*hosts, *builders),
                message=f"an old lock of a torch extension build, which may still run on {named}: {path}",
                found=f"{old} on {fold(hosts)}; a compiler runs on {named}, by its own word",
                expected="no lock without a running build",
                fix=f"find the build on {named}; if none runs there: {remove}",
            )
        else:
            yield Problem(
                hosts=tuple(hosts),
                message=f"a killed build of a torch extension left a lock: {path}",
                found=old,
                expected="no lock without a running build",
                fix=remove,
            )
