"""Memory, swap and /dev/shm. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import os
import re

from mnt.remote.common.capabilities import CAP_SYS_ADMIN, root_may
from mnt.remote.common.files import read
from mnt.remote.probe.filesystems import measure


def memory() -> dict[str, object]:
    """Bytes, in the shape of `mnt.facts.host.Memory`."""
    known = dict(re.findall(r"^(\w+):\s*(\d+) kB$", read("/proc/meminfo"), re.MULTILINE))
    names = {"total": "MemTotal", "available": "MemAvailable", "swap": "SwapTotal", "swap_free": "SwapFree"}
    return {
        **{name: int(known[field]) * 1024 if field in known else None for name, field in names.items()},
        "shm": _shm("/dev/shm"),
        "shm_fixed": not root_may(CAP_SYS_ADMIN),
    }


def _shm(path: str) -> dict[str, int] | None:
    """The space for POSIX shared memory; None if nothing is mounted there, so that it would be on disk."""
    try:
        return measure(os.statvfs(path)) if os.path.ismount(path) else None
    except OSError:
        return None
