"""`mnt ssh-setup` on real hosts: a password typed once, keys installed, logins between the nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import faults
import pytest
import yaml
from terminals import Said, on_a_terminal, without_a_terminal

from mnt.lab.lab import Lab, LabHost

MakeLab = Callable[..., Lab]
RunMnt = Callable[..., subprocess.CompletedProcess[str]]
PASSWORD = "pass word$1"
SETUP = [sys.executable, "-m", "mnt", "ssh-setup"]


class Cluster(NamedTuple):
    """A lab whose user has a password and no keys; and an inventory with a key that does not exist."""

    lab: Lab
    inventory: Path
    key: Path

    @property
    def env(self) -> dict[str, str]:
        return {"MNT_INVENTORY": str(self.inventory), "SSH_AUTH_SOCK": ""}

    def ask(self, answers: list[tuple[str, str]], *args: str) -> Said:
        return on_a_terminal([*SETUP, *args], answers, self.env)

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        return without_a_terminal([*SETUP, *args], self.env)

    def document(self, *args: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("--json", *args).stdout)
        return found


@pytest.fixture
def bare(make_lab: MakeLab, tmp_path: Path) -> Callable[..., Cluster]:
    def make(count: int = 3, **request: Any) -> Cluster:
        lab = make_lab(count=count, **request)
        for host in lab.hosts:
            let_passwords_in(host)
        document = yaml.safe_load(lab.inventory_path.read_text())
        document["ssh"]["identity"] = str(tmp_path / "keys" / "id_ed25519")
        inventory = tmp_path / "inventory.yaml"
        inventory.write_text(yaml.safe_dump(document))
        return Cluster(lab, inventory, tmp_path / "keys" / "id_ed25519")

    return make


def let_passwords_in(host: LabHost) -> None:
    script = "rm -rf /home/mnt/.ssh; chpasswd -c SHA256"
    done = host.exec(["sh", "-c", script], input=f"mnt:{PASSWORD}\n")
    assert done.returncode == 0, done.stderr
    faults.configure_sshd(host, "PasswordAuthentication yes\n")


def modes(host: LabHost) -> dict[str, str]:
    listed = host.exec(["sh", "-c", "cd .ssh && find . -printf '%P %m\\n'"], user=True)
    return dict(line.split(" ") for line in listed.stdout.splitlines() if not line.startswith(" "))


def test_from_a_password_to_logins_everywhere(bare: Callable[..., Cluster]) -> None:
    cluster = bare()
    said = cluster.ask([("Password of mnt on node[1-3]", PASSWORD)])
    assert said.code == 0, said.text
    assert PASSWORD not in said.text
    assert "4 logins between hosts work" in said.text
    assert cluster.key.stat().st_mode & 0o777 == 0o600

    name = cluster.lab.spec.name
    for host in cluster.lab.hosts:
        assert modes(host) == {
            "authorized_keys": "600",
            "config": "600",
            "mnt": "700",
            f"mnt/{name}": "700",
            f"mnt/{name}/config": "600",
            f"mnt/{name}/id_ed25519": "600",
            f"mnt/{name}/known_hosts": "600",
        }
        authorized = host.exec(["cat", ".ssh/authorized_keys"], user=True).stdout.splitlines()
        assert len(authorized) == 4
    # Any node, any way; by name, as pdsh and mpirun go.
    there = cluster.lab.host("node3").exec(["ssh", "-oBatchMode=yes", "node2", "hostname"], user=True)
    assert (there.stdout, there.returncode) == ("node2\n", 0), there.stderr
    private = {
        host.exec(["cat", f".ssh/mnt/{name}/id_ed25519"], user=True).stdout for host in cluster.lab.hosts
    }
    assert len(private) == 3

    again = cluster.document()
    assert again["ok"]
    assert {host["status"] for host in again["hosts"].values()} == {"ready"}
    assert [change for host in again["hosts"].values() for change in host["changes"]] == []
    # The password is nowhere: not on the hosts, not in what sshd wrote.
    for host in cluster.lab.hosts:
        found = host.exec(["grep", "-rlF", PASSWORD, "/home", "/run", "/tmp", "/root"])
        assert found.stdout == ""


def test_what_the_user_has_stays(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=2)
    host = cluster.lab.host("node1")
    own = "# mine\n\nssh-ed25519 AAAAmine me@home\n"
    host.exec(["sh", "-c", "mkdir -m 755 .ssh; echo 'Host x' >.ssh/config"], user=True)
    faults.write_file(host, ".ssh/authorized_keys", own, user=True)
    assert cluster.ask([("Password of mnt", PASSWORD)]).code == 0
    assert host.exec(["cat", ".ssh/authorized_keys"], user=True).stdout.startswith(own)
    assert host.exec(["cat", ".ssh/config"], user=True).stdout == "Include mnt/*/config\nHost x\n"
    assert host.exec(["stat", "-c", "%a", ".ssh"], user=True).stdout == "700\n"


def test_a_wrong_password_is_asked_for_again(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=2)
    said = cluster.ask([("Password of mnt", "wrong"), ("Password of mnt", PASSWORD)])
    assert said.code == 0, said.text
    assert "the password of mnt is not accepted" in said.text


@pytest.mark.parametrize("mode", ["strict", "accept-new"])
def test_no_password_goes_to_a_host_that_is_not_known(
    bare: Callable[..., Cluster], tmp_path: Path, mode: str
) -> None:
    cluster = bare(count=1)
    document = yaml.safe_load(cluster.inventory.read_text())
    document["ssh"]["known_hosts"] = str(tmp_path / "none")
    document["ssh"]["host_keys"] = mode
    cluster.inventory.write_text(yaml.safe_dump(document))
    done = cluster.run()
    assert done.returncode == 1
    assert "no key of this host is known" in done.stderr
    assert "mnt trust" in done.stderr


def test_nobody_to_ask(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=2)
    done = cluster.run()
    assert done.returncode == 1
    assert "node1: authentication: no key accepted" in done.stderr
    assert "a password is needed, and there is no terminal to ask for it at" in done.stderr
    assert "fix: run mnt ssh-setup on a terminal" in done.stderr


def test_the_fix_of_a_missing_key(bare: Callable[..., Cluster], run_mnt: RunMnt) -> None:
    """Taken literally: it leads to a login."""
    cluster = bare(count=1)
    refused = run_mnt("run", "hostname", env=cluster.env)
    line = next(
        number
        for number, text in enumerate(cluster.inventory.read_text().splitlines(), 1)
        if "identity" in text
    )
    assert f"correct `identity` in {cluster.inventory}:{line}; or " in refused.stderr
    assert refused.stderr.splitlines()[1].endswith("mnt ssh-setup")
    assert cluster.ask([("Password of mnt", PASSWORD)]).code == 0
    assert run_mnt("run", "hostname", env=cluster.env).stdout == "node1 | node1\n"


def test_hosts_that_accept_a_key_get_no_other(
    make_lab: MakeLab, tmp_path: Path, run_mnt: RunMnt, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(count=2)
    document = yaml.safe_load(lab.inventory_path.read_text())
    del document["ssh"]["identity"]
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(yaml.safe_dump(document))
    monkeypatch.setenv("HOME", str(tmp_path))
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        env = {"SSH_AUTH_SOCK": socket, "MNT_INVENTORY": str(inventory)}
        subprocess.run(["ssh-add", "-q", lab.directory / "identity"], env={**os.environ, **env}, check=True)
        keys = ["cat", ".ssh/authorized_keys"]
        before = lab.host("node1").exec(keys, user=True).stdout
        done = run_mnt("ssh-setup", "--no-mesh", env=env)
        assert done.returncode == 0, done.stderr
        assert lab.host("node1").exec(keys, user=True).stdout == before
        assert not (tmp_path / ".ssh").exists(), "a key was made"
        assert run_mnt("ssh-setup", env=env).returncode == 0  # the nodes' own keys, and no other
        added = set(lab.host("node1").exec(keys, user=True).stdout.splitlines()) - set(before.splitlines())
        assert added
        assert all("mnt:" in line for line in added)
    finally:
        agent.terminate()
        agent.communicate()


def test_a_dry_run_changes_nothing(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=2)
    shown = cluster.document("--dry-run")
    assert shown["ok"]
    assert shown["hosts"]["node1"]["status"] == "password"
    assert shown["hosts"]["node1"]["changes"] == [
        f"~/.ssh/authorized_keys: {cluster.key} added, after the password is asked for"
    ]
    assert not cluster.key.exists()
    assert cluster.ask([("Password of mnt", PASSWORD)], "--no-mesh").code == 0
    before = modes(cluster.lab.host("node1"))
    assert before == {"authorized_keys": "600"}
    planned = cluster.document("--dry-run")
    assert any(
        "mnt/" in change and "id_ed25519: made" in change for change in planned["hosts"]["node1"]["changes"]
    )
    assert modes(cluster.lab.host("node1")) == before


def test_one_home_for_all_nodes(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=3, shared_home=True)
    said = cluster.ask([("Password of mnt", PASSWORD)])
    assert said.code == 0, said.text
    assert cluster.document()["ok"]
    leftovers = [name for name in modes(cluster.lab.host("node1")) if ".node" in name]
    assert leftovers == []


def test_keyboard_interactive(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=1)
    host = cluster.lab.host("node1")
    faults.write_file(host, "/etc/pam.d/sshd", "auth required pam_unix.so\naccount required pam_permit.so\n")
    faults.configure_sshd(host, "UsePAM yes\nKbdInteractiveAuthentication yes\nPasswordAuthentication no\n")
    assert cluster.ask([("Password of mnt", PASSWORD)]).code == 0


def test_a_home_that_others_may_write(bare: Callable[..., Cluster]) -> None:
    cluster = bare(count=1)
    cluster.lab.host("node1").exec(["chmod", "g+w", "/home/mnt"])
    said = cluster.ask([("Password of mnt", PASSWORD)])
    assert said.code == 1
    assert "sshd accepts no keys from there" in said.text
    assert "chmod go-w /home/mnt" in said.text


EVES_CONFIG = "Host *\n  ProxyCommand sh -c 'touch /tmp/eve-was-here; exec nc %h %p'\n"


@pytest.mark.parametrize(
    ("file", "owner", "mode", "problem"),
    [
        (
            "authorized_keys",
            "mnt",
            "666",
            "all users can write to /home/mnt/.ssh/authorized_keys (mode 0666)",
        ),
        ("config", "daemon", "644", "/home/mnt/.ssh/config belongs to daemon (uid 1), not to mnt "),
        (".", "mnt", "777", "all users can write to /home/mnt/.ssh (mode 0777)"),
    ],
)
def test_what_another_user_has_planted_does_not_become_valid(
    bare: Callable[..., Cluster], tmp_path: Path, file: str, owner: str, mode: str, problem: str
) -> None:
    """sshd and ssh ignore it; after a setup with new modes they would not."""
    cluster = bare(count=2)
    host = cluster.lab.host("node1")
    eves = tmp_path / "eve"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", eves], check=True)
    host.exec(["mkdir", "-m", "700", ".ssh"], user=True)
    faults.write_file(host, ".ssh/authorized_keys", Path(f"{eves}.pub").read_text(), user=True)
    faults.write_file(host, ".ssh/config", EVES_CONFIG, user=True)
    host.exec(["sh", "-c", f"cd /home/mnt/.ssh; chmod 600 *; chmod {mode} {file}; chown {owner} {file}"])
    before = modes(host)
    said = cluster.ask([("Password of mnt", PASSWORD)])
    assert said.code == 1, said.text
    assert f"node1: command: {problem}" in " ".join(said.text.split())
    assert "check what is in /home/mnt/.ssh" in " ".join(said.text.split())
    assert modes(host) == before
    assert "ssh-ed25519 AAAA" in host.exec(["cat", "/home/mnt/.ssh/authorized_keys"]).stdout
    assert host.exec(["test", "-e", "/tmp/eve-was-here"]).returncode == 1
    if file == "config":
        return
    known = cluster.lab.directory / "known_hosts"
    words = ["-F", "none", "-i", str(eves), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"]
    words += ["-o", f"UserKnownHostsFile={known}", f"mnt@{host.spec.management}", "id"]
    login = subprocess.run(["ssh", *words], capture_output=True, text=True, check=False)
    assert "Permission denied" in login.stderr, login
