"""The lab: throw-away hosts on this machine, each with a real sshd, for trials and tests.

A host has its own network, mount, PID, UTS and IPC namespaces, and a copy-on-write view of `/`. A lab depends
on one process: when that process ends, the kernel removes all processes, mounts, links and namespaces of the
lab. docs/lab.md describes a host; start with `mnt.lab.lab.Lab`.
"""

import os
from pathlib import Path

# Labs store their state here, each in a directory with its name. Tests set the variable to use their own.
LAB_ROOT = Path(os.environ.get("MNT_LAB_DIR", "/run/mnt-lab"))
