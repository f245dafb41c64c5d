"""Storage checks on real NFS: each fault on one of two nodes is told apart, and healed it is green again.

By default a sample of the faults; `pytest -m matrix tests/lab/test_nfs.py` runs all of them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from nfs import FAULTS, NfsLab, heal, inject
from waiting import at_most, wait_for

Preflight = Callable[..., dict[str, Any]]
BreakNode = Callable[[str, str], Callable[[], None]]

CHECKS = "ssh,storage-mount,storage-visible,storage-space"
SECONDS = 90  # 5 for a file system that hangs; a guest on a busy machine is slow, and hangs are for ever


class Case(NamedTuple):
    message: str
    fix: str  # its end


MOUNT = "sudo mount -t nfs4 -o rw,hard,nosuid,nodev filer:/export/shared /mnt/shared"
REPLACE = f"sudo umount /mnt/shared && {MOUNT}"
CASES = {
    "v3": Case("/mnt/shared differs from the inventory: type nfs", REPLACE),
    "unmounted": Case("/mnt/shared is not mounted", MOUNT),
    "wrong-server": Case("/mnt/shared differs from the inventory: server filer2 instead of filer", REPLACE),
    "wrong-export": Case(
        "/mnt/shared differs from the inventory: export /export/other instead of /export/shared", REPLACE
    ),
    "ro": Case("/mnt/shared is mounted read-only", "sudo mount -o remount,rw /mnt/shared"),
    "ro-server": Case(
        "/mnt/shared is read-only on the server, but mounted rw",
        "on filer, set rw for /export/shared in /etc/exports; then: sudo exportfs -ra",
    ),
    "stacked": Case("/mnt/shared is hidden: tmpfs from tmpfs is mounted over it", "sudo umount /mnt/shared"),
    "estale": Case("/mnt/shared is stale: its directory no longer exists on filer", MOUNT),
    "hang": Case("/mnt/shared hangs: its server, filer, does not answer", MOUNT),
    "soft-hang": Case(
        "/mnt/shared returns I/O errors: its server, filer, does not answer, and the "
        "soft mount has timed out",
        MOUNT,
    ),
}
SAMPLE = ("wrong-export", "ro-server", "estale", "hang")


@pytest.fixture(scope="module")
def nfs_lab(nfs_support: None) -> Iterator[NfsLab]:
    """Two nodes, to be left healthy."""
    with NfsLab(2) as lab:
        yield lab


@pytest.fixture
def preflight(nfs_lab: NfsLab, run_mnt: Callable[..., subprocess.CompletedProcess[str]]) -> Preflight:
    """The JSON document of the storage checks; the exit code must go with it."""

    def run(inventory: Path = nfs_lab.inventory_path) -> dict[str, Any]:
        done = run_mnt("preflight", "-i", str(inventory), "--only", CHECKS, "--json")
        assert done.stdout, done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if document["ok"] else 1)
        return document

    return run


@pytest.fixture
def break_node(nfs_lab: NfsLab) -> Iterator[BreakNode]:
    """`heal = break_node("node1", "hang")`: that state, until `heal()` or the end of the test."""
    ill: set[str] = set()

    def mend(name: str) -> None:
        heal(nfs_lab.nodes[name])
        ill.remove(name)

    def break_node(name: str, fault: str) -> Callable[[], None]:
        ill.add(name)
        inject(nfs_lab.nodes[name], fault)
        return lambda: mend(name)

    yield break_node
    for name in list(ill):
        mend(name)


def tell_apart(preflight: Preflight, break_node: BreakNode, node: str, fault: str) -> None:
    """The fault is found, on that node alone and in time; and nothing is once it is healed."""
    heal = break_node(node, fault)
    with at_most(SECONDS):
        document = preflight()
    (finding,) = document["findings"]
    case = CASES[fault]
    assert (finding["check"], finding["hosts"]) == ("storage-mount", [node])
    assert (finding["message"], finding["severity"]) == (case.message, "fail")
    assert finding["fix"].endswith(case.fix)
    assert finding["expected"] == "nfs4 from filer:/export/shared (rw,hard)"

    heal()
    assert preflight()["findings"] == []


def test_healthy_nodes_are_green_and_nothing_is_left(nfs_lab: NfsLab, preflight: Preflight) -> None:
    assert preflight()["findings"] == []
    assert nfs_lab.nodes["node1"].guest.run("ls -A /mnt/shared") == ""


@pytest.mark.parametrize("fault", SAMPLE)
def test_a_fault_on_a_worker(preflight: Preflight, break_node: BreakNode, fault: str) -> None:
    tell_apart(preflight, break_node, "node2", fault)


@pytest.mark.matrix
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_on_the_master(preflight: Preflight, break_node: BreakNode, fault: str) -> None:
    tell_apart(preflight, break_node, "node1", fault)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, marks=[] if fault == "unmounted" else pytest.mark.matrix)
        for fault in ("unmounted", "v3", "wrong-server", "wrong-export", "ro", "stacked", "estale")
    ],
)
def test_the_fix_leads_out(nfs_lab: NfsLab, preflight: Preflight, break_node: BreakNode, fault: str) -> None:
    """It is a command, done word for word; the guest's shell is root's, and has no sudoers(5).

    Where the server hangs or refuses, it is the server's to mend.
    """
    break_node("node2", fault)
    (finding,) = preflight()["findings"]
    nfs_lab.nodes["node2"].guest.run('sudo() { "$@"; }; ' + finding["fix"])
    assert preflight()["findings"] == []
    nfs_lab.nodes["node2"].guest.run("umount /mnt/shared")  # before the export is healed, of which it was


def test_two_servers_for_one_path_without_a_source_in_the_inventory(
    nfs_lab: NfsLab, preflight: Preflight, break_node: BreakNode, tmp_path: Path
) -> None:
    document = yaml.safe_load(nfs_lab.inventory_path.read_text())
    document["storage"] = [{"path": "/mnt/shared"}]
    inventory = tmp_path / "no-source.yaml"
    inventory.write_text(yaml.safe_dump(document))
    assert preflight(inventory)["findings"] == []
    break_node("node2", "wrong-server")
    (finding,) = preflight(inventory)["findings"]
    assert (finding["check"], finding["hosts"]) == ("storage-mount", ["node1", "node2"])
    assert finding["found"] == "filer:/export/shared on node1; filer2:/export/shared on node2"


def test_a_probe_that_hangs_leaves_no_process(
    nfs_lab: NfsLab, preflight: Preflight, break_node: BreakNode
) -> None:
    break_node("node2", "hang")
    preflight()
    guest = nfs_lab.nodes["node2"].guest
    wait_for(lambda: guest.run("ps -u mnt -o pid,stat,args --no-headers || true") == "")


# --- the lab itself --------------------------------------------------------------------------------------

_UP = """
import sys, time
from nfs import NfsLab
lab = NfsLab(1)
print(lab.anchor, lab.link, flush=True)
time.sleep(600)
"""


def test_nothing_outlives_a_killed_session(nfs_lab: NfsLab) -> None:
    session = subprocess.Popen(
        [sys.executable, "-c", _UP], cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True
    )
    assert session.stdout is not None
    with session.stdout:
        anchor, link = session.stdout.readline().split()
    namespace = os.stat(f"/proc/{anchor}/ns/pid").st_ino
    assert link in interfaces()
    session.send_signal(signal.SIGKILL)
    session.wait()
    wait_for(lambda: link not in interfaces() and not within(namespace))


def interfaces() -> list[str]:
    return [name for _, name in socket.if_nameindex()]


def within(namespace: int) -> list[str]:
    """The processes of a PID namespace, by its inode."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat(f"/proc/{process}/ns/pid").st_ino == namespace:
                found.append(process)
        except OSError:
            continue  # it ended meanwhile
    return found
