"""What have earlier jobs left behind?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check

_ZOMBIES = 20  # a few are about to be waited for
_BUILD = 300.0  # seconds; between two compilers a build has none running
_SHOWN = 5


@check("leftovers", severity=Severity.WARN)
def leftovers(fleet: FleetFacts) -> Iterator[Problem]:
    """No process of an earlier job lives on without its supervisor.

    They are known by MNT_JOB in their environment. They may hold GPUs, ports and shared memory.
    """
    for host, facts in fleet.answers():
        for left in facts.processes.leftovers if facts.processes else ():
            pids = ", ".join(map(str, left.pids[:_SHOWN])) + (" .." if len(left.pids) > _SHOWN else "")
            yield Problem(
                hosts=(host.name,),
                message=f"processes of job {left.job} live on, and nobody supervises them",
                found=f"{len(left.pids)} (pid {pids}): {left.command}",
                expected="no process of a job without its supervisor",
                fix=f"mnt stop {left.job}",
            )


@check("zombies", severity=Severity.WARN)
def zombies(fleet: FleetFacts) -> Iterator[Problem]:
    """No process of the user has more than 20 dead children that it does not wait for."""
    for host, facts in fleet.answers():
        for found in facts.processes.zombies if facts.processes else ():
            if found.count > _ZOMBIES:
                parent = f"pid {found.parent} ({found.command or 'unknown'})"
                yield Problem(
                    hosts=(host.name,),
                    message=f"{found.count} zombies are children of {parent}",
                    found=str(found.count),
                    expected=f"at most {_ZOMBIES}",
                    fix=f"they go when their parent does: kill {found.parent}",
                )


@check("build-lock", severity=Severity.WARN)
def build_lock(fleet: FleetFacts) -> Iterator[Problem]:
    """No build of a torch extension was killed half way: the lock that it leaves makes every later job wait.

    Looked for in TORCH_EXTENSIONS_DIR of the inventory's `env`, else in ~/.cache/torch_extensions. One that
    is more than 5 minutes old counts, unless a compiler runs on a host that sees it.
    """
    seen: dict[str, list[str]] = {}
    building: set[str] = set()
    for host, facts in fleet.answers():
        for lock in facts.artifacts.locks if facts.artifacts else ():
            if lock.age > _BUILD:
                seen.setdefault(lock.path, []).append(host.name)
            if facts.processes is not None and facts.processes.compiling:
                building.add(lock.path)
    for path, hosts in seen.items():
        if path not in building:
            yield Problem(
                hosts=tuple(hosts),
                message=f"a build of a torch extension has left its lock: {path}",
                found=f"{path}, more than {_BUILD / 60:.0f} minutes old, and no compiler runs",
                expected="no lock without a build",
                fix=f"rm {shlex.quote(path)}",
            )
