"""What a lab, or a command, has left behind."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from mnt.lab import store
from mnt.lab.lab import Lab


def of_lab(name: str) -> list[str]:
    """What the machine still has of the lab of that name; other labs may come and go meanwhile."""
    found = [f"directory {path}" for path in [store.directory(name)] if path.exists()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"mnt-lab-{name}\0".encode() in (process / "environ").read_bytes():
                found.append(f"process {process.name}")
            if f"mnt-lab-{name} ".encode() in (process / "mountinfo").read_bytes():
                found.append(f"mounts in the namespace of process {process.name}")
        except OSError:
            continue  # it ended
    # A lab is recorded before it has a link, and longer. Others may come and go between these looks.
    links = _links()
    links -= {record.spec.head_link for record in store.records()}
    return found + [f"link {link}" for link in links & _links()]


def _links() -> set[str]:
    return {link for _, link in socket.if_nameindex() if link.startswith("mntlab")}


def network_namespaces(lab: Lab) -> set[str]:
    """The network namespaces of the lab's switch and hosts."""
    assert lab.record.anchor is not None
    pids = [lab.record.anchor.pid, *(host.init.pid for host in lab.hosts)]
    return {os.readlink(f"/proc/{pid}/ns/net") for pid in pids}


def namespaces_in_use() -> set[str]:
    """Every namespace of the machine in which a process is: `net:[4026531840]`."""
    links = subprocess.run(["lsns", "-nro", "NS,TYPE"], capture_output=True, text=True, check=True).stdout
    return {f"{kind}:[{inode}]" for inode, kind in (line.split() for line in links.splitlines())}


def processes(lab: Lab) -> dict[str, list[str]]:
    """The command lines of each host's processes, sorted."""
    listed = {host.name: host.exec(["ps", "-ww", "-eo", "args="]).stdout.splitlines() for host in lab.hosts}
    return {name: sorted(line for line in lines if "args=" not in line) for name, lines in listed.items()}
