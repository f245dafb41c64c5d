"""What a lab, or a command, has left behind."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from mnt.lab import store
from mnt.lab.lab import Lab
from mnt.remote.job import procs


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


def now() -> float:
    """Seconds since the boot, as `still_in` takes it."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def still_in(namespaces: set[str], since: float) -> list[str]:
    """The processes in these namespaces that were there at the time `since`.

    The kernel gives the number of a namespace that has ended to the next one: later processes are of others.
    """
    found = []
    for process in procs.read_processes().values():
        if process.start_time / os.sysconf("SC_CLK_TCK") < since:
            with contextlib.suppress(OSError):  # it ended
                if os.readlink(f"/proc/{process.pid}/ns/net") in namespaces:
                    found.append(f"process {process.pid}: {Path(f'/proc/{process.pid}/cmdline').read_text()}")
    return found


def processes(lab: Lab) -> dict[str, list[str]]:
    """The command lines of each host's processes, sorted."""
    listed = {host.name: host.exec(["ps", "-ww", "-eo", "args="]).stdout.splitlines() for host in lab.hosts}
    return {name: sorted(line for line in lines if "args=" not in line) for name, lines in listed.items()}
