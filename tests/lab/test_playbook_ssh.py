"""playbooks/ssh.yml, by `mnt setup` on hosts that have lost their keys: it is `mnt ssh-setup`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from mnt.lab.lab import Lab, LabHost

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

Mnt = Callable[..., subprocess.CompletedProcess[str]]
HEAD_KEY_ONLY = "cd ~/.ssh && cp authorized_keys /tmp/kept && rm -rf ~/.ssh/* && cp /tmp/kept authorized_keys"


def listing(host: LabHost) -> str:
    return host.exec(
        ["sh", "-c", "cd .ssh && find . -type f -exec md5sum {} + | sort -k 2"], user=True
    ).stdout


def setup(run_mnt: Mnt, *words: str, ok: bool = True) -> dict[str, Any]:
    done = run_mnt("setup", "ssh", "--json", *words)
    assert done.returncode == (0 if ok else 1), done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["playbooks"]["ssh"]["hosts"]
    return found


@pytest.mark.matrix
def test_nodes_without_keys_can_log_in_to_each_other(make_lab: Callable[..., Lab], run_mnt: Mnt) -> None:
    lab = make_lab(count=3)
    for host in lab.hosts:
        assert host.exec(["sh", "-ec", HEAD_KEY_ONLY], user=True).returncode == 0
    where = ("-i", str(lab.inventory_path))

    def found() -> list[dict[str, Any]]:
        done = run_mnt("preflight", *where, "--only", "ssh-mesh", "--json")
        findings: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return findings

    (finding,) = found()
    assert (finding["check"], finding["playbook"]) == ("ssh-mesh", "ssh")

    before = [listing(host) for host in lab.hosts]
    shown = setup(run_mnt, *where, "--check")
    assert all(host["changed"] == 1 for host in shown.values()), shown
    assert [listing(host) for host in lab.hosts] == before

    setup(run_mnt, *where)
    assert found() == []
    node1, node2, node3 = lab.hosts
    assert node1.exec(["ssh", "-o", "BatchMode=yes", "node3", "hostname"], user=True).stdout == "node3\n"
    lines = node3.exec(["cat", ".ssh/authorized_keys"], user=True).stdout.splitlines()
    of_nodes = [line for line in lines if " mnt:" in line]
    assert len(of_nodes) == 3
    assert all(line.startswith("no-agent-forwarding,no-port-forwarding,") for line in of_nodes)

    # One host alone gets a new key, and does not forget the others.
    key = node2.exec(["sh", "-c", "rm .ssh/mnt/*/id_ed25519* && cat .ssh/mnt/*/config"], user=True)
    again = setup(run_mnt, *where, "-n", "node2")
    assert {name: host["changed"] for name, host in again.items()} == {"node2": 1}
    assert node2.exec(["sh", "-c", "cat .ssh/mnt/*/config"], user=True).stdout == key.stdout
    assert node2.exec(["ssh", "-o", "BatchMode=yes", "node3", "hostname"], user=True).stdout == "node3\n"
    assert [host["changed"] for host in setup(run_mnt, *where).values()] == [0, 0, 0]

    # What fails on a host is said of that host.
    assert node3.exec(["rm", ".ssh/authorized_keys"], user=True).returncode == 0
    shown = setup(run_mnt, *where, ok=False)
    assert shown["node2"]["problem"] is None
    assert "a password is needed, and there is no terminal" in shown["node3"]["problem"]


def test_without_an_inventory_it_says_so(make_lab: Callable[..., Lab], run_mnt: Mnt) -> None:
    lab = make_lab(count=1)
    shown = setup(run_mnt, "-i", str(lab.inventory_path), "-e", "mnt_inventory=/nowhere.yaml", ok=False)
    assert "there is no inventory '/nowhere.yaml' on this machine" in shown["node1"]["problem"]
