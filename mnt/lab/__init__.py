"""The lab: throw-away hosts on this machine, each with a real sshd, for trials and tests.

A host has its own network, mount, PID, UTS and IPC namespaces, and a copy-on-write view of `/`. A lab depends
on one process: when that process ends, the kernel removes all processes, mounts, links and namespaces of the
lab. docs/lab.md describes a host; start with `mnt.lab.lab.Lab`.
"""

import os
from pathlib import Path

from mnt.errors import MntError
from mnt.remote.common.owners import check_owners
from mnt.remote.common.refusal import Refused

# Labs store their state here, each in a directory with its name. Tests set the variable to use their own.
LAB_ROOT = Path(os.environ.get("MNT_LAB_DIR", "/run/mnt-lab"))


def check_root() -> None:
    """Raises MntError if another user than this one or root could change the labs' state.

    It names processes to end, and an inventory that is used if no other is named.
    """
    try:
        check_owners(str(LAB_ROOT.absolute()))
    except Refused as refusal:
        raise MntError(refusal.message, fix=refusal.fix) from None
