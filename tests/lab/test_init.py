"""`mnt init` on real hosts: what it writes is an inventory with which preflight is content."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from faults import power_off, write_file
from terminals import on_a_terminal

from mnt.lab.lab import Lab

Mnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]
FILE = "inventories/default.yaml"


@pytest.fixture
def init(run_mnt: Mnt, tmp_path: Path) -> Callable[..., tuple[int, str, Any]]:
    """`init(lab, "-n", "node[1-2]")`: exit code, messages, and the inventory, below `tmp_path`."""

    def run(lab: Lab, *args: str, yes: bool = True) -> tuple[int, str, Any]:
        config = tmp_path / "ssh_config"
        config.write_text(ssh_config(lab))
        asked = ["--yes"] if yes else []
        done = run_mnt("init", *args, "--ssh-config", str(config), *asked, cwd=tmp_path)
        file = tmp_path / FILE
        return done.returncode, done.stderr, yaml.safe_load(file.read_text()) if file.exists() else None

    return run


def ssh_config(lab: Lab) -> str:
    """How the user's ssh would know the hosts."""
    ssh = yaml.safe_load(lab.inventory_path.read_text())["ssh"]
    hosts = [f"Host {host.name}\n  HostName {host.spec.management}\n" for host in lab.hosts]
    known = f"  IdentityFile {ssh['identity']}\n  UserKnownHostsFile {ssh['known_hosts']}\n"
    return "".join(hosts) + f"Host *\n  User {ssh['user']}\n{known}"


def test_two_hosts_are_ready_without_an_edit(
    make_lab: MakeLab, init: Any, run_mnt: Mnt, tmp_path: Path
) -> None:
    lab = make_lab(count=2)
    code, said, inventory = init(lab, "-n", "node[1-2]")
    assert code == 0, said
    nics = {host.name: host.spec.nic for host in lab.hosts}
    assert len(set(nics.values())) == 2
    assert {name: entry["nic"] for name, entry in inventory["hosts"].items()} == nics
    written = (tmp_path / FILE).read_text()
    assert all(f"# {host.spec.management}, debian 12\n" in written for host in lab.hosts)
    assert inventory["network"]["subnet"] == str(lab.record.spec.training)
    assert inventory["storage"] == [{"path": "/shared", "type": "tmpfs"}]
    assert inventory["defaults"]["workdir"] == "/shared/mnt/mnt"
    done = run_mnt("preflight", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fit to train: 0 failed, 0 warnings" in done.stdout + done.stderr
    # OpenSSH's own client takes the same ssh_config, by the same names.
    done = run_mnt("run", "--worker", "ssh", "hostname", cwd=tmp_path)
    assert sorted(done.stdout.splitlines()) == ["node1 | node1", "node2 | node2"], done.stderr
    assert init(lab)[1].endswith("nothing to add\n")
    for host in lab.hosts:
        assert host.exec(["ls", "-A", "/shared"]).stdout == ""  # what was tried there is gone


def test_a_disk_that_each_host_has_for_itself_is_not_shared(make_lab: MakeLab, init: Any) -> None:
    lab = make_lab(count=2)
    for host in lab.hosts:
        done = host.exec(["sh", "-c", "mkdir /data && mount -t tmpfs -o mode=1777 data /data"])
        assert done.returncode == 0, done.stderr
    _, _, inventory = init(lab, "-n", "node[1-2]")
    assert [mount["path"] for mount in inventory["storage"]] == ["/shared"]


@pytest.mark.parametrize("eve", [False, True])
def test_the_environment_that_all_have(make_lab: MakeLab, init: Any, tmp_path: Path, eve: bool) -> None:
    """A better one that another user of the hosts has made is not taken."""
    lab = make_lab(count=2)
    make = """for p in {}; do
        site=$p/lib/python3.11/site-packages; mkdir -p $p/bin; ln -s /usr/bin/python3 $p/bin/python
        echo 'version = 3.11.2' > $p/pyvenv.cfg
        for name in torch deepspeed transformers; do
            mkdir -p $site/$name-9.9.9.dist-info
            printf "Name: $name\\nVersion: 9.9.9\\n" > $site/$name-9.9.9.dist-info/METADATA
        done
    done"""
    for host in lab.hosts:
        places = "/opt/all /opt/only" if host.name == "node1" else "/opt/all"
        assert host.exec(["sh", "-c", make.format(places)]).returncode == 0
    if eve:
        newer = make.format("/shared/.z").replace("9.9.9", "99.9.9")
        argv = ["setpriv", "--reuid=64999", "--regid=64999", "--clear-groups", "sh", "-c", newer]
        assert lab.hosts[0].exec(["sh", "-c", "chown 0:0 /shared && chmod 1777 /shared"]).returncode == 0
        assert lab.hosts[0].exec(argv).returncode == 0
    _, _, inventory = init(lab, "-n", "node[1-2]")
    assert inventory["defaults"]["python"] == "/opt/all/bin/python"
    comments = " ".join((tmp_path / FILE).read_text().replace("#", " ").split())
    assert ("/shared/.z/bin/python is not taken: /shared/.z belongs to uid 64999" in comments) is eve
    assert inventory["require"] == dict.fromkeys(("torch", "deepspeed", "transformers"), "==9.9.9")


def test_hosts_that_cannot_be_asked_are_marked_and_completed_later(
    make_lab: MakeLab, init: Any, tmp_path: Path
) -> None:
    lab = make_lab(count=3)
    keys = "/home/mnt/.ssh/authorized_keys"
    host = lab.host("node2")
    before = host.exec(["cat", keys]).stdout
    write_file(host, keys, "")
    power_off(lab.host("node3"))
    code, said, inventory = init(lab, "-n", "node[1-3],nowhere")
    assert code == 1
    assert "1 of 4 hosts answered" in said
    assert "ssh-setup" in said
    assert (inventory["hosts"]["node2"], inventory["hosts"]["nowhere"]) == (None, None)
    text = (tmp_path / FILE).read_text()
    for name in ("node2", "node3", "nowhere"):
        line = next(line for line in text.splitlines() if line.startswith(f"  {name}:"))
        assert "# not known: " in line
    write_file(host, keys, before)
    (tmp_path / FILE).write_text(text.replace("  nowhere", "  # mine\n  nowhere"))
    code, said, inventory = init(lab)
    assert code == 1
    assert inventory["hosts"]["node2"]["nic"] == host.spec.nic
    text = (tmp_path / FILE).read_text()
    assert "# mine\n" in text
    assert text.count("# not known: ") == 2


def test_nothing_is_written_without_consent(make_lab: MakeLab, init: Any, tmp_path: Path) -> None:
    lab = make_lab(count=1)
    code, said, _ = init(lab, "-n", "node1", yes=False)
    assert (code, (tmp_path / "inventories").exists()) == (2, False)
    assert "add --yes" in said


@pytest.mark.parametrize(("answer", "written"), [("n", False), ("", False), ("y", True)])
def test_at_a_terminal_it_asks(make_lab: MakeLab, tmp_path: Path, answer: str, written: bool) -> None:
    """First for the hosts, and for consent when the file has been shown."""
    lab = make_lab(count=1)
    config, file = tmp_path / "ssh_config", tmp_path / "new" / "hosts.yaml"
    config.write_text(ssh_config(lab))
    argv = [sys.executable, "-m", "mnt", "init", "--ssh-config", str(config), "-o", str(file)]
    said = on_a_terminal(argv, [("Hosts (like", "node1"), (f"Write {file}?", answer)])
    assert (said.code, file.exists()) == (0 if written else 1, written)
    assert said.text.index("node1:  # ") < said.text.index("Write ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hosts: [node1\n", "inventories/default.yaml:"),
        ("hosts: [node1]\nhots: 1\n", "unknown key 'hots'"),
        ("hosts: \xff\n", "no UTF-8"),
    ],
)
def test_a_file_that_is_no_inventory_stays(run_mnt: Mnt, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_bytes(text.encode("latin-1"))
    done = run_mnt("init", "-n", "node1", "--yes", cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert file.read_bytes() == text.encode("latin-1")
