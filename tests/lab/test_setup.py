"""`mnt setup` on real hosts: Ansible over SSH and sudo, with the inventory as it is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faults import power_off, write_file
from setups import allow_sudo, output
from terminals import on_a_terminal
from waiting import rest_of, wait_for

from mnt import keys
from mnt.lab.lab import Lab
from mnt.remote.job.procs import pids_with_environment

pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")

Mnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]
SUDOERS = "/etc/sudoers.d/mnt"


@pytest.fixture
def hosts(make_lab: MakeLab) -> Lab:
    """Two hosts on which the ordinary user may become root."""
    lab = make_lab(count=2)
    allow_sudo(lab)
    return lab


def documents(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout, done.stderr
    return json.loads(done.stdout)["playbooks"]


def test_check_then_run_then_again(hosts: Lab, run_mnt: Mnt, tmp_path: Path) -> None:
    def statuses(*args: str) -> dict[str, str]:
        env = {"XDG_STATE_HOME": str(tmp_path)}
        done = run_mnt("setup", "firewall", *args, "--json", lab=hosts, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        return {host: entry["status"] for host, entry in documents(done)["firewall"]["hosts"].items()}

    def rules() -> list[str]:
        return [host.exec(["nft", "list", "ruleset"]).stdout for host in hosts.hosts]

    assert statuses("--check") == {"node1": "changed", "node2": "changed"}
    assert rules() == ["", ""]
    assert statuses() == {"node1": "changed", "node2": "changed"}
    assert all("mnt_training" in text for text in rules())
    assert statuses() == {"node1": "ok", "node2": "ok"}
    logs = sorted((tmp_path / "mnt" / "setup").iterdir())
    assert len(logs) == 3
    assert "PLAY RECAP" in logs[0].read_text()
    assert logs[0].stat().st_mode & 0o777 == 0o600


def test_one_host_fails_and_is_named(hosts: Lab, run_mnt: Mnt) -> None:
    write_file(hosts.host("node2"), SUDOERS, "")
    done = run_mnt("setup", "firewall", lab=hosts)
    assert done.returncode == 1
    assert "node2: Gathering Facts: Missing sudo password\n  fix: add -K" in done.stderr
    assert "mnt_training" in hosts.host("node1").exec(["nft", "list", "ruleset"]).stdout


@pytest.mark.matrix
def test_a_host_without_power(hosts: Lab, run_mnt: Mnt) -> None:
    power_off(hosts.host("node2"))
    done = run_mnt("setup", "firewall", "--json", lab=hosts)
    assert done.returncode == 1
    found = documents(done)["firewall"]["hosts"]
    assert (found["node1"]["status"], found["node2"]["status"]) == ("changed", "unreachable")


@pytest.mark.parametrize(("typed", "code"), [("right", 0), ("wrong", 1)])
def test_the_password_for_sudo(hosts: Lab, tmp_path: Path, typed: str, code: int) -> None:
    for host in hosts.hosts:
        write_file(host, SUDOERS, "mnt ALL=(ALL) ALL\n")
        assert host.exec(["sh", "-c", "echo mnt:right | chpasswd"]).returncode == 0
    argv = [sys.executable, "-m", "mnt", "setup", "firewall", "-K", "-i", str(hosts.inventory_path)]
    said = on_a_terminal(
        argv, [("Password for sudo on node[1-2]: ", typed)], {"XDG_STATE_HOME": str(tmp_path)}
    )
    assert said.code == code, said.text
    assert ("type the password of mnt for sudo again" in said.text) is (code == 1)
    assert typed not in "".join(file.read_text() for file in (tmp_path / "mnt" / "setup").iterdir())


@pytest.mark.matrix
def test_an_ansible_cfg_of_others_is_not_read(hosts: Lab, run_mnt: Mnt, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    (tmp_path / "ansible.cfg").write_text(
        f"[defaults]\nlog_path = {trap}\n[privilege_escalation]\nbecome = false\n"
    )
    done = run_mnt("setup", "firewall", "--check", lab=hosts, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert not trap.exists()


def test_ctrl_c_ends_ansible(hosts: Lab) -> None:
    argv = [sys.executable, "-m", "mnt", "setup", "firewall", "-i", str(hosts.inventory_path)]
    # A host on which the first task does not end.
    shell = "while :; do sleep 1; done"
    write_file(hosts.host("node2"), "/usr/bin/printenv", f"#!/bin/sh\n{shell}\n")
    env = {**os.environ, "MNT_TEST": uuid.uuid4().hex}
    pipe = subprocess.PIPE
    running = subprocess.Popen(
        argv, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=env
    )
    wait_for(lambda: "printenv" in hosts.host("node2").exec(["ps", "-eo", "args"]).stdout)
    mine = {"MNT_TEST": env["MNT_TEST"]}
    assert len([*pids_with_environment(mine)]) > 3
    os.killpg(running.pid, signal.SIGINT)
    said = rest_of(running)
    assert running.returncode == 130, said
    assert "Traceback" not in said
    assert [*pids_with_environment(mine)] == []


def test_a_host_key_that_has_changed(hosts: Lab, run_mnt: Mnt, tmp_path: Path) -> None:
    """Nothing runs there, whatever Ansible's own setting for host keys is, and whatever ssh accepts."""
    address = hosts.host("node2").spec.management
    real = output(hosts.host("node2"), "cat", "/etc/ssh/ssh_host_ed25519_key.pub").split()[:2]
    config = tmp_path / "ssh_config"
    config.write_text(f"Host *\n KnownHostsCommand /bin/echo {address} {' '.join(real)}\n")
    known, inventory = tmp_path / "known_hosts", tmp_path / "inventory.yaml"
    text = hosts.inventory_path.read_text()
    old = str(hosts.inventory_path.with_name("known_hosts"))
    assert old in text
    text = text.replace(old, str(known)).replace("config: null", f"config: {config}")
    inventory.write_text(text)
    key = " ".join(keys.generate().public.split()[:2])
    known.write_text(f"{address} {key}\n")  # node1's is recorded by mnt's login
    env = {"ANSIBLE_HOST_KEY_CHECKING": "False", "MNT_INVENTORY": str(inventory)}
    done = run_mnt("setup", "firewall", "--json", env=env)
    found = documents(done)["firewall"]["hosts"]
    assert (found["node1"]["status"], found["node2"]["status"]) == ("changed", "unreachable"), done.stdout
    assert found["node2"]["problem"].startswith("host key: ")
    said = run_mnt("setup", "firewall", "--check", env=env).stderr
    assert "node2: host key: " in said
    assert "mnt trust" in said
    assert hosts.host("node2").exec(["nft", "list", "ruleset"]).stdout == ""


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nonsense"], "there is no playbook 'nonsense'"),
        (["firewall", "-e", "x"], "expected KEY=VALUE"),
        (["firewall", "--debs", "/nonexistent"], "there is no such directory"),
    ],
)
def test_bad_usage(lab: Lab, run_mnt: Mnt, args: list[str], message: str) -> None:
    done = run_mnt("setup", *args, lab=lab)
    assert done.returncode == 2
    assert message in done.stderr


def test_nothing_to_do(lab: Lab, run_mnt: Mnt) -> None:
    done = run_mnt("setup", lab=lab)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "preflight asks for nothing that a playbook brings\n"
    assert json.loads(run_mnt("setup", "--json", lab=lab).stdout) == {
        "ok": True,
        "check": False,
        "playbooks": {},
    }


def test_json_asks_nothing_and_shows_no_table(hosts: Lab, run_mnt: Mnt) -> None:
    output(hosts.host("node2"), "mount", "-o", "remount,size=32m", "/dev/shm")
    done = run_mnt("setup", "--json", lab=hosts)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing is run: --json asks nothing" in done.stderr
    assert "add --yes" in done.stderr
    done = run_mnt("setup", "--json", "--check", lab=hosts)
    assert [*documents(done)] == ["tuning"]
