"""The lab: throw-away hosts on this machine, each with a real sshd, for trying and for tests.

A host is network, mount, PID, UTS and IPC namespaces over a copy-on-write view of `/`. A whole lab hangs from
one process: when that dies, the kernel takes every process, mount, link and namespace of the lab with it.
docs/lab.md says what a host looks like; `mnt.lab.lab.Lab` is the way in.
"""

from mnt.lab.lab import Lab, LabHost, down
from mnt.lab.spec import LabRequest

__all__ = ["Lab", "LabHost", "LabRequest", "down"]
