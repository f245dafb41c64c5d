"""`mnt trust` on real hosts: strict inventories, changed keys, gateways, and lists of fingerprints."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import faults
import pytest
import yaml
from terminals import on_a_terminal, without_a_terminal
from test_fleet import fingerprint

from mnt.lab.lab import Lab, LabHost

MakeLab = Callable[..., Lab]
MNT = [sys.executable, "-m", "mnt"]


class Cluster(NamedTuple):
    """A lab, as a strict inventory that knows no host keys yet."""

    lab: Lab
    inventory: Path
    known_hosts: Path

    def mnt(self, *args: str) -> subprocess.CompletedProcess[str]:
        return without_a_terminal([*MNT, *args], {"MNT_INVENTORY": str(self.inventory)})

    def trust(self, *args: str) -> dict[str, str]:
        """The status of each host, as --json says it."""
        return {name: host["status"] for name, host in self.document(*args)["hosts"].items()}

    def document(self, *args: str) -> dict[str, Any]:
        done = self.mnt("trust", "--json", *args)
        document: dict[str, Any] = json.loads(done.stdout)
        assert done.returncode == (0 if document["ok"] else 1), done.stderr
        return document

    def address(self, name: str) -> str:
        return self.lab.host(name).spec.management


@pytest.fixture
def strict(tmp_path: Path) -> Callable[..., Cluster]:
    def make(lab: Lab, **ssh: str) -> Cluster:
        inventory, known_hosts = tmp_path / "inventory.yaml", tmp_path / "ssh" / "known_hosts"
        document = yaml.safe_load(lab.inventory_path.read_text())
        document["ssh"] |= {"host_keys": "strict", "known_hosts": str(known_hosts), **ssh}
        inventory.write_text(yaml.safe_dump(document))
        return Cluster(lab, inventory, known_hosts)

    return make


def install_anew(host: LabHost) -> None:
    script = "cd /etc/ssh; rm ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f ssh_host_ed25519_key"
    restart = 'pid=$(cat "$1"); rm "$1"; kill -HUP "$pid"; until [ -s "$1" ]; do sleep 0.01; done'
    assert host.exec(["sh", "-c", script]).returncode == 0
    assert host.exec(["sh", "-c", restart, "sh", "/run/sshd.pid"]).returncode == 0


def test_strict_from_end_to_end(lab: Lab, strict: Callable[..., Cluster]) -> None:
    cluster = strict(lab)
    refused = cluster.mnt("preflight", "--only", "ssh,host-key")
    assert refused.returncode == 1
    assert "no key of this host is known" in refused.stdout
    assert "mnt trust" in refused.stdout

    looked = cluster.document("node[1-2]")
    assert looked["hosts"]["node1"] == {
        "status": "new",
        "keys": [{"type": "ssh-ed25519", "fingerprint": fingerprint(lab.host("node1"))}],
        "old": [],
        "error": None,
    }
    assert list(looked["hosts"]) == ["node1", "node2"]
    assert not cluster.known_hosts.exists()

    assert set(cluster.trust("--yes").values()) == {"recorded"}
    assert cluster.known_hosts.stat().st_mode & 0o777 == 0o600
    assert set(cluster.trust().values()) == {"known"}
    assert cluster.mnt("preflight", "--only", "ssh,host-key").returncode == 0


def test_somebody_is_asked(lab: Lab, strict: Callable[..., Cluster]) -> None:
    cluster = strict(lab)
    command = [*MNT, "trust", "-i", str(cluster.inventory), "-n", "node1"]
    said = on_a_terminal(command, [("Record the keys of node1", "")])
    assert (said.code, cluster.known_hosts.exists()) == (1, False)
    assert fingerprint(lab.host("node1")) in said.text
    said = on_a_terminal(command, [("Record the keys of node1", "y")])
    assert said.code == 0, said.text
    assert cluster.trust() == {"node1": "known", "node2": "new", "node3": "new", "node4": "new"}


def test_nobody_can_be_asked(lab: Lab, strict: Callable[..., Cluster]) -> None:
    cluster = strict(lab)
    done = cluster.mnt("trust")
    assert done.returncode == 1
    assert "--fingerprints FILE" in done.stderr
    assert not cluster.known_hosts.exists()


def test_the_administrators_list(lab: Lab, strict: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = strict(lab)
    right = {host.name: fingerprint(host) for host in lab.hosts}
    text = f"""# from the machine room
node1 {right["node1"]}
{cluster.address("node2")} {right["node2"]} # by address
node3 {right["node4"]}
"""
    (tmp_path / "list").write_text(text)
    expected = {"node1": "recorded", "node2": "recorded", "node3": "mismatch", "node4": "unlisted"}
    assert cluster.trust("--fingerprints", str(tmp_path / "list")) == expected
    assert len(cluster.known_hosts.read_text().splitlines()) == 2


def test_a_changed_key(make_lab: MakeLab, strict: Callable[..., Cluster], tmp_path: Path) -> None:
    cluster = strict(make_lab(count=2))
    host = cluster.lab.host("node1")
    assert cluster.trust("--yes") == {"node1": "recorded", "node2": "recorded"}
    before, file = fingerprint(host), cluster.known_hosts.read_text()
    install_anew(host)
    host.exec(["sh", "-c", ": > /run/sshd.log"])

    assert cluster.trust("--yes") == {"node1": "changed", "node2": "known"}
    told = cluster.mnt("trust", "--replace")  # nobody is there to say the fingerprint
    assert told.returncode == 1
    assert before in told.stderr
    assert fingerprint(host) in told.stderr
    assert "ask the administrator whether the host was reinstalled" in told.stderr
    assert cluster.mnt("trust", "--yes", "--replace").returncode == 2
    assert cluster.known_hosts.read_text() == file
    assert "mnt" not in host.exec(["cat", "/run/sshd.log"]).stdout, "somebody logged in"

    command = [*MNT, "trust", "-i", str(cluster.inventory), "--replace"]
    wrong = on_a_terminal(command, [("the new fingerprint", before)])
    assert (wrong.code, cluster.known_hosts.read_text()) == (1, file)
    said = on_a_terminal(command, [("the new fingerprint", fingerprint(host))])
    assert said.code == 0, said.text
    assert cluster.trust() == {"node1": "known", "node2": "known"}
    assert cluster.known_hosts.with_name("known_hosts.old").read_text() == file

    install_anew(host)
    (tmp_path / "list").write_text(f"node1 {fingerprint(host)}\n")
    vouched = ("-n", "node1", "--fingerprints", str(tmp_path / "list"))
    assert cluster.trust(*vouched) == {"node1": "changed"}
    assert cluster.trust(*vouched, "--replace") == {"node1": "replaced"}
    assert cluster.mnt("preflight", "--only", "ssh,host-key").returncode == 0


def test_gateways_are_trusted_before_what_lies_behind(lab: Lab, strict: Callable[..., Cluster]) -> None:
    cluster = strict(lab, gateway=lab.host("node1").spec.management)
    gateway = cluster.address("node1")
    behind = ("-n", "node[2-3]")
    assert cluster.trust(*behind) == {gateway: "new", "node2": "unreachable", "node3": "unreachable"}
    recorded = dict.fromkeys((gateway, "node2", "node3"), "recorded")
    assert cluster.trust(*behind, "--yes") == recorded
    assert cluster.mnt("preflight", *behind, "--only", "ssh,host-key").returncode == 0


def test_a_host_that_cannot_be_reached(make_lab: MakeLab, strict: Callable[..., Cluster]) -> None:
    cluster = strict(make_lab(count=2))
    faults.power_off(cluster.lab.host("node2"))
    assert cluster.trust("--yes") == {"node1": "recorded", "node2": "unreachable"}
