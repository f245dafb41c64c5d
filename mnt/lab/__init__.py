"""The lab: throw-away hosts on this machine, each with a real sshd, for trials and tests.

A host has its own network, mount, PID, UTS and IPC namespaces, and a copy-on-write view of `/`. A lab depends
on one process: when that process ends, the kernel removes all processes, mounts, links and namespaces of the
lab. docs/lab.md describes a host; start with `mnt.lab.lab.Lab`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnt.lab.lab import Lab, LabHost, down
    from mnt.lab.spec import LabRequest

__all__ = ["Lab", "LabHost", "LabRequest", "down"]


def __getattr__(name: str) -> Any:
    """Import the lab only when it is used: every command looks for running labs, but few start one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mnt.lab import lab, spec

    return getattr(spec if name == "LabRequest" else lab, name)
