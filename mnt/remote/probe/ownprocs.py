"""Problematic processes of the user who logs in. Runs on a host: Python 3.8."""

from __future__ import annotations

import os

from mnt.remote.common.files import entries, read, stat_fields
from mnt.remote.job.spec import job_of

_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "c++", "g++", "clang++"})


def own_processes() -> dict[str, object]:
    """As `mnt.facts.system.OwnProcesses`."""
    zombies: dict[int, int] = {}
    pids_of: dict[tuple[str, str], list[int]] = {}
    commands: set[str] = set()
    pids = _own_pids()
    for pid in pids:
        found = stat_fields(pid)
        if found is None:
            continue
        command, fields = found
        parent = int(fields[1])
        if fields[0] == b"Z":
            zombies[parent] = zombies.get(parent, 0) + 1
        else:
            commands.add(command)
            job = job_of(pid)
            if job:
                pids_of.setdefault(job, []).append(pid)
    return {
        "zombies": [{"parent": pid, "command": _command(pid), "count": n} for pid, n in zombies.items()],
        "leftovers": _unsupervised(pids_of, pids) if pids_of else [],
        "compiling": not commands.isdisjoint(_COMPILERS),
    }


def _own_pids() -> list[int]:
    """This user's pids. Kernel threads are skipped: they are root's, and on a large host the majority."""
    uid = os.getuid()
    kthreadd = read("/proc/2/comm") == "kthreadd\n"  # in a container pid 2 is another process
    kernel = set(read("/proc/2/task/2/children").split()) if kthreadd else set()
    found = []
    for name in entries("/proc"):
        if name.isdigit() and name not in kernel:
            try:
                if os.stat("/proc/" + name).st_uid == uid:
                    found.append(int(name))
            except OSError:  # it has ended
                continue
    return found


def _unsupervised(pids_of: dict[tuple[str, str], list[int]], pids: list[int]) -> list[dict[str, object]]:
    """The jobs whose supervisor is gone: no process runs its program, `JobPaths.program`."""
    lines = [read(f"/proc/{pid}/cmdline") for pid in pids]
    return [
        {"job": job, "pids": sorted(members), "command": _command(min(members))}
        for (job, host), members in sorted(pids_of.items())
        if not any(f"/{job}/{host}/supervisor.py\0" in line for line in lines)
    ]


def _command(pid: int) -> str:
    return read(f"/proc/{pid}/cmdline", 4096).rstrip("\0").replace("\0", " ")
