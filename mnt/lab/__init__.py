"""The lab: throw-away hosts on this machine, each with a real sshd, for trying and for tests.

A host is network, mount, PID, UTS and IPC namespaces over a copy-on-write view of `/`. A whole lab hangs from
one process: when that dies, the kernel takes every process, mount, link and namespace of the lab with it.
docs/lab.md says what a host looks like; `mnt.lab.lab.Lab` is the way in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mnt.lab.lab import Lab, LabHost, down
    from mnt.lab.spec import LabRequest

__all__ = ["Lab", "LabHost", "LabRequest", "down"]


def __getattr__(name: str) -> Any:
    """Import the lab when it is used: every command looks for running labs, few of them make one."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from mnt.lab import lab, spec

    return getattr(spec if name == "LabRequest" else lab, name)
