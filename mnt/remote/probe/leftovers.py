"""What earlier pushes, builds and jobs have left: files and processes. Runs on a host: Python 3.8."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

from mnt.remote.common.files import command_line, entries, read, stat_fields
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused
from mnt.remote.job.files import temporary_directory, user_directory
from mnt.remote.job.spec import job_of
from mnt.remote.push.workdir import Workdir

_MOST = 100  # locks, and jobs and parents of processes, that are told
_COMPILERS = frozenset({"ninja", "nvcc", "cicc", "ptxas", "cudafe++", "cc1plus", "c++", "g++", "clang++"})


def artifacts(
    workdir: str, keep: Sequence[str], group: str | None, jobs_dir: str, extensions: str
) -> dict[str, object]:
    """As `mnt.facts.system.Artifacts`. It may hang: run it in a child with a deadline."""
    return {
        "release": release(workdir),
        "locks": locks(extensions),
        "exposed": list(exposed(workdir, keep, group, jobs_dir)),
    }


def exposed(
    workdir: str, keep: Sequence[str], group: str | None, jobs_dir: str
) -> Iterator[dict[str, object]]:
    """Why a push, a launch or a stop would refuse this user's directories: see mnt.remote.common.owners."""

    def check_workdir() -> None:
        found = Workdir(workdir, keep, group)
        found.check_owners()
        if os.path.lexists(found.link):
            found.check_code()

    for check in (
        check_workdir,
        lambda: check_owners(os.path.expanduser(jobs_dir)),
        lambda: check_owners(user_directory(), private=1),
        lambda: check_owners(temporary_directory(), private=1),
    ):
        try:
            check()
        except Refused as refusal:
            yield refusal.document()


def release(workdir: str) -> dict[str, object]:
    """The release that `current` points to, and whether it is complete; see `mnt.remote.push.releases`."""
    try:
        found = Workdir(workdir)
        id = os.fsdecode(os.path.basename(os.readlink(found.link)))
    except (OSError, Refused):
        return {"id": None, "whole": False}
    return {
        "id": id,
        "whole": os.path.isdir(found.path(id)) and os.path.exists(found.manifest_path(id)),
    }


def locks(extensions: str) -> list[dict[str, object]]:
    """The locks of torch's JIT builds: in $TORCH_EXTENSIONS_DIR/NAME, by default one directory deeper.

    The oldest, if there are very many: other users may make some there.
    """
    top = os.path.expanduser(extensions)
    found: list[dict[str, Any]] = []
    for first in entries(top):
        builds = [first, *(os.path.join(first, second) for second in entries(os.path.join(top, first)))]
        for build in builds:
            path = os.path.join(top, build, "lock")
            try:
                found.append({"path": path, "age": time.time() - os.stat(path).st_mtime})
            except OSError:  # there is no lock
                continue
    return sorted(found, key=lambda lock: -lock["age"])[:_MOST]


def own_processes() -> dict[str, object]:
    """Problematic processes of the user who logs in, as `mnt.facts.system.OwnProcesses`."""
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
        "zombies": [
            {"parent": pid, "command": command_line(pid), "count": n}
            for pid, n in list(zombies.items())[:_MOST]
        ],
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
        {"job": job, "pids": sorted(members), "command": command_line(min(members))}
        for (job, host), members in sorted(pids_of.items())[:_MOST]
        if not any(f"/{job}/{host}/supervisor.py\0" in line for line in lines)
    ]
