"""What a process, and root of its host, may do. Runs on a host: Python 3.8, standard library."""

from __future__ import annotations

import re

from mnt.remote.common.files import read

CAP_IPC_LOCK, CAP_SYS_ADMIN, CAP_SYS_RESOURCE = 14, 21, 24  # linux/capability.h


def may(capability: int) -> bool:
    """Whether this process has the capability."""
    return _has("Eff", capability) is True


def root_may(capability: int) -> bool:
    """Whether root can have it in this session: it cannot in a container without it. True if unknown."""
    return _has("Bnd", capability) is not False


def _has(which: str, capability: int) -> bool | None:
    found = re.search(rf"^Cap{which}:\s*([0-9a-f]+)", read("/proc/self/status"), re.MULTILINE)
    return None if found is None else bool(int(found.group(1), 16) & 1 << capability)
