"""This machine alone: the supervisor is a child of it, with no SSH, no root, no inventory and no release."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from mnt.fleet import Fleet
from mnt.fleet.processes import LocalConnection
from mnt.inventory.model import Host, Inventory, Network, Ssh
from mnt.launch.backends.ssh import SshBackend

CLUSTER = "this machine"


class LocalBackend(SshBackend):
    """As over SSH, where a login is a shell of this machine."""

    name = "local"
    here = True

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        return Fleet(hosts, connect=LocalConnection)


def this_machine(*, python: str | None = None, master_port: int = Network.master_port) -> Inventory:
    """The inventory of one host, this machine.

    It goes by its own name: several heads may share the home directory in which the job files lie.

    Args:
        python: the interpreter that trains; None: the one that runs us.
    """
    host = Host(
        name=socket.gethostname() or "localhost",
        address="127.0.0.1",
        ssh=Ssh(config=None),
        python=(python or sys.executable,),
        workdir=".",
        jobs_dir=os.path.expanduser(Host.jobs_dir),
        nic="lo",
    )
    return Inventory(CLUSTER, CLUSTER, (host,), network=Network(mode="tcp", master_port=master_port))
