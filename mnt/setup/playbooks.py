"""The playbooks of `mnt setup`, in the order in which they build on each other."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mnt
from mnt.errors import UsageError
from mnt.inventory.spelling import did_you_mean


@dataclass(frozen=True)
class Playbook:
    """`playbooks/NAME.yml`."""

    name: str
    summary: str
    seconds: int = 30 * 60  # that a task may take on a host, if it does not say so itself: apt, a slow mirror
    memory: int | None = 1024**3  # bytes of each of Ansible's processes; None: it runs nothing on the hosts


_LONG = 4 * 3600  # a build, after the wait for that of another; an image

PLAYBOOKS = (
    Playbook("system", "packages of the system: Python, build tools, pdsh, rsync, libaio, the NFS client"),
    Playbook("ssh", "logins between the nodes, with the keys of mnt ssh-setup", memory=None),
    Playbook("tuning", "limits (memlock, nofile), /dev/shm, GPU persistence, lingering"),
    Playbook("nfs", "an NFS server on one host, and its clients"),
    Playbook("rdma", "libraries and tools for RDMA"),
    Playbook("environment", "one Python environment for training, the same on all hosts", seconds=_LONG),
    Playbook("container", "Apptainer or podman, and one image on every host", seconds=_LONG),
    Playbook("firewall", "ports of jobs open to the training network only"),
    Playbook("slurm", "a small Slurm, for those who outgrow plain SSH"),
)
BY_NAME = {playbook.name: playbook for playbook in PLAYBOOKS}


def select(names: Sequence[str]) -> list[Playbook]:
    """The named playbooks, in the order of PLAYBOOKS. Raises UsageError if there is none of a name."""
    for name in names:
        if name not in BY_NAME:
            hint = did_you_mean(name, BY_NAME)
            raise UsageError(f"there is no playbook {name!r}{hint}", fix=f"one of {', '.join(BY_NAME)}")
    return [playbook for playbook in PLAYBOOKS if playbook.name in names]


def directory() -> Path:
    """Where the playbooks are: in the tree of `mnt`, or where pip has put them. Raises UsageError."""
    tree = Path(mnt.__file__).parents[1]
    if (tree / "setup.cfg").exists():  # else another package may have a directory of this name there
        places = [tree / "playbooks"]
    else:
        schemes = (sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user"))
        data = [sysconfig.get_path("data", scheme) for scheme in schemes]
        places = [Path(each) / "share" / "mnt" / "playbooks" for each in dict.fromkeys([*data, sys.prefix])]
    for place in places:
        if (place / "tasks" / "environment.py").exists():
            return place
    raise UsageError(
        f"the playbooks are not there: neither {' nor '.join(map(os.fspath, places))}",
        fix="install mnt again: pip install -e '.[setup]', in its clone",
    )
