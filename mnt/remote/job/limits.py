"""The resource limits (`ulimit` of the inventory) that a job gets: getrlimit(2). Python 3.8."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from typing import Any

from mnt.remote.common.refusal import Refused

UNLIMITED = resource.RLIM_INFINITY
LIMITS = {
    "memlock": resource.RLIMIT_MEMLOCK,  # bytes
    "nofile": resource.RLIMIT_NOFILE,
    "stack": resource.RLIMIT_STACK,  # bytes
    "nproc": resource.RLIMIT_NPROC,
    "core": resource.RLIMIT_CORE,  # bytes
}
_BY_PLAYBOOK = ("memlock", "nofile")


def check_limits(wanted: Mapping[str, int]) -> None:
    """Raises Refused, naming the limit, if a hard limit of this session is below what is wanted.

    Args:
        wanted: soft limits by name; UNLIMITED for none.
    """
    for name, value in wanted.items():
        _, hard = resource.getrlimit(LIMITS[name])
        if not _at_least(hard, value) and os.geteuid() != 0:
            own = (
                "mnt setup tuning" if name in _BY_PLAYBOOK else f"a line for {name} in /etc/security/limits.d"
            )
            raise Refused(
                f"ulimit: {name} is to be {shown(value)}, but the hard limit here is {shown(hard)}",
                f"raise the hard limit for new logins: {own}; or lower `ulimit` in the inventory",
            )


def raise_limits(wanted: Mapping[str, int]) -> None:
    """Raise the soft limits of this process; none is lowered. Raises OSError, ValueError."""
    for name, value in wanted.items():
        soft, hard = resource.getrlimit(LIMITS[name])
        if not _at_least(soft, value):
            resource.setrlimit(LIMITS[name], (value, hard if _at_least(hard, value) else value))


def of_jobs(kind: str, wanted: Mapping[str, Any]) -> int:
    """The soft limit that a job would have which is started from this session."""
    soft, hard = resource.getrlimit(LIMITS[kind])
    value = wanted.get(kind)
    if value is None or _at_least(soft, value):
        return soft
    return int(value) if _at_least(hard, value) or os.geteuid() == 0 else hard


def shown(value: int) -> str:
    return "unlimited" if value == UNLIMITED else str(value)


def _at_least(limit: int, wanted: int) -> bool:
    return limit == UNLIMITED or (wanted != UNLIMITED and limit >= wanted)
