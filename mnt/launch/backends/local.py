"""This machine only: no SSH, no root, no inventory and no release."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from mnt.fleet import Fleet
from mnt.fleet.processes import LocalConnection
from mnt.inventory.model import ANYBODY, Host, Inventory, Network, Ssh
from mnt.launch.backends.ssh import SshBackend

CLUSTER = "this machine"


class LocalBackend(SshBackend):
    """As over SSH, but each login is a shell on this machine."""

    name = "local"
    here = True

    def open_fleet(self, hosts: Sequence[Host]) -> Fleet:
        return Fleet(hosts, connect=LocalConnection)


def this_machine(*, python: str | None = None, master_port: int = Network.master_port) -> Inventory:
    """An inventory with one host, this machine.

    The host has the machine's name, because several heads may share the home directory with the job files.

    Args:
        python: the interpreter that trains; None: the one that runs mnt.
    """
    host = Host(
        name=socket.gethostname() or "localhost",
        address="127.0.0.1",
        ssh=Ssh(config=None),
        python=(python or sys.executable,),
        python_owner=ANYBODY,  # it was named, or has started mnt: here it is as if it were typed in a shell
        workdir=".",
        jobs_dir=os.path.expanduser(Host.jobs_dir),
        nic="lo",
    )
    return Inventory(CLUSTER, CLUSTER, (host,), network=Network(mode="tcp", master_port=master_port))
