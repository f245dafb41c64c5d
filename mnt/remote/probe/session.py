"""The kind of session in which jobs are started. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Mapping

from mnt.remote.common.capabilities import CAP_IPC_LOCK, CAP_SYS_RESOURCE, may, root_may
from mnt.remote.common.files import read, stat_fields
from mnt.remote.common.refusal import Refused
from mnt.remote.job.limits import UNLIMITED, check_limits, of_jobs


def session(ulimit: Mapping[str, int]) -> dict[str, object]:
    """As `mnt.facts.system.Session`.

    Args:
        ulimit: limits that jobs get, see `mnt.remote.job.limits`.
    """
    scope = re.search(r"/(session-[^/\n]+\.scope)$", read("/proc/self/cgroup"), re.MULTILINE)
    return {
        "umask": _umask(),
        "path": os.environ.get("PATH", ""),
        "nofile": _told(of_jobs("nofile", ulimit)),
        # The capability allows locking any amount of memory.
        "memlock": None if may(CAP_IPC_LOCK) else _told(of_jobs("memlock", ulimit)),
        "ulimit": _too_low(ulimit),
        **_most(),
        "scope": scope.group(1) if scope else None,
        **_beginnings(),
    }


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _told(limit: int) -> int | None:
    return None if limit == UNLIMITED else limit


def _too_low(ulimit: Mapping[str, int]) -> list[dict[str, str | None]]:
    """Why a job does not get its limits, as a launch would say it."""
    found = []
    for name, value in ulimit.items():
        try:
            check_limits({name: value})
        except Refused as refusal:
            found.append(refusal.document())
    return found


def _most() -> dict[str, int | None]:
    """What even root cannot raise the limits above: those that a container has from outside. None: it can."""
    kinds = {"nofile_most": resource.RLIMIT_NOFILE, "memlock_most": resource.RLIMIT_MEMLOCK}
    if root_may(CAP_SYS_RESOURCE):
        return dict.fromkeys(kinds)
    hard = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    return {name: None if limit == resource.RLIM_INFINITY else limit for name, limit in hard.items()}


def _beginnings() -> dict[str, float | None]:
    """Seconds from the start of the login shell to that of Python, and from there until now; None: unknown.

    sshd makes the login shell the leader of a session, and that shell executes the `sh` of boot.sh. The time
    until that starts Python is, apart from a round trip, the time of the shell's start-up files.
    """
    leader = os.getsid(0)
    shell = stat_fields(leader)
    pid = os.getpid()
    while True:
        process = stat_fields(pid)
        parent = int(process[1][1]) if process else 0
        if parent in (0, 1, leader):
            break
        pid = parent
    if process is None or shell is None or parent != leader or shell[0] != "sh":
        return {"shell_seconds": None, "python_seconds": None}
    began, started = _start(shell[1]), _start(process[1])
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    return {"shell_seconds": started - began, "python_seconds": now - started}


def _start(fields: list[bytes]) -> float:
    """When a process was started, in seconds since boot."""
    return int(fields[19]) / os.sysconf("SC_CLK_TCK")
