"""SSH as people have it: ssh_config, agents, algorithms, start-up files and forced commands of real hosts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from fixes import put_at_the_top
from lab_fleets import fleet_of, hosts_of
from test_fleet import MakeLab, error_of, hostname
from test_run import own_state  # noqa: F401 - a fixture
from waiting import PATIENCE, at_most

from mnt.errors import HostError
from mnt.fleet import Fleet, Timeouts
from mnt.lab.lab import Lab
from mnt.tasks.program import run_program

Mnt = Callable[..., subprocess.CompletedProcess[str]]
SOON = Timeouts(start=3)


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """An ssh-agent without keys; its socket."""
    socket = str(tmp_path / "agent")
    process = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    monkeypatch.setenv("SSH_AUTH_SOCK", socket)
    yield socket
    process.terminate()
    process.communicate()


def written(lab: Lab, directory: Path, config: str, gateway: str | None = None) -> Path:
    """The lab's inventory with an ssh_config, and a gateway."""
    (directory / "config").write_text(config)
    text = lab.inventory_path.read_text().replace("config: null", f"config: {directory / 'config'}")
    if gateway is not None:
        text = text.replace("ssh:\n", f"ssh:\n  gateway: {gateway}\n", 1)
    (directory / "inventory.yaml").write_text(text)
    return directory / "inventory.yaml"


# -- ssh_config


def test_a_match_block_leaves_the_gateway_its_user(lab: Lab, tmp_path: Path, run_mnt: Mnt) -> None:
    gateway = lab.host("node1").spec.management
    inventory = written(lab, tmp_path, "Match host nowhere\n Port 4\n", gateway)
    for worker in ("paramiko", "ssh"):
        done = run_mnt("run", "-i", str(inventory), "-n", "node2", "--worker", worker, "echo $SSH_CLIENT")
        assert done.stdout.startswith(f"node2 | {gateway} "), done.stderr


@pytest.mark.parametrize("gateway", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        "RemoteCommand echo something else\n RequestTTY force",
        "LocalForward 127.0.0.1:22 127.0.0.1:22\n ExitOnForwardFailure yes",
        "SessionType none",
        "StdinNull yes\n ForkAfterAuthentication yes",
        "LogLevel DEBUG3",
        "ControlMaster auto\n ControlPersist 600\n ControlPath {directory}/%n",
    ],
)
def test_the_session_stays_ours(lab: Lab, tmp_path: Path, run_mnt: Mnt, config: str, gateway: bool) -> None:
    by = lab.host("node1").spec.management if gateway else None
    inventory = written(lab, tmp_path, f"Host *\n {config.format(directory=tmp_path)}\n", by)
    words = ("run", "-i", str(inventory), "-n", "node2", "--worker", "ssh", "cat; echo end >&2")
    with at_most(PATIENCE):
        done = run_mnt(*words, input="in\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "node2 | in\n", "node2 | end\n")
    assert set(os.listdir(tmp_path)) <= {"config", "inventory.yaml", "state"}, "a master stays"


def test_a_public_key_names_the_agents_key(lab: Lab, tmp_path: Path, agent: str) -> None:
    public = tmp_path / "cluster.pub"
    derived = subprocess.run(["ssh-keygen", "-y", "-f", lab.directory / "identity"], capture_output=True)
    public.write_bytes(derived.stdout)
    error = error_of(fleet_of(lab, identity=str(public)))
    assert f"{public}: a public key, and no agent holds its private key" in error.message
    subprocess.run(["ssh-add", "-q", lab.directory / "identity"], check=True)
    with fleet_of(lab, identity=str(public)) as fleet:
        assert fleet.run(hostname).ok


def test_a_link_local_address(lab: Lab, tmp_path: Path) -> None:
    shown = lab.host("node1").exec(["ip", "-6", "-o", "addr", "show", "mgmt0", "scope", "link"]).stdout
    match = re.search(r"inet6 (fe80:[0-9a-f:]+)/", shown)
    assert match is not None
    route = subprocess.run(
        ["ip", "-o", "route", "get", str(lab.host("node1").spec.management)], capture_output=True, text=True
    )
    device = route.stdout.partition(" dev ")[2].split()[0]
    config = tmp_path / "config"
    config.write_text("Match host nowhere\n Port 4\n")
    (host, *_) = hosts_of(lab, config=str(config), known_hosts=str(tmp_path / "known_hosts"))
    with Fleet([replace(host, address=f"{match[1]}%{device}")]) as fleet:
        assert fleet.run(hostname).values_by_host() == {"node1": "node1"}


# -- algorithms


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (
            "Ciphers chacha20-poly1305@openssh.com\nMACs umac-128-etm@openssh.com\n"
            "KexAlgorithms sntrup761x25519-sha512@openssh.com\n",
            "key exchange: only sntrup761x25519-sha512@openssh.com; "
            "cipher: only chacha20-poly1305@openssh.com; MAC: only umac-128-etm@openssh.com",
        ),
        ("MACs umac-64@openssh.com\n", "MAC: only umac-64@openssh.com"),
    ],
)
def test_a_host_with_other_algorithms(make_lab: MakeLab, run_mnt: Mnt, config: str, said: str) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), config)
    error = error_of(fleet_of(lab))
    assert error.message.endswith(f"nothing that mnt's SSH client, paramiko, has: {said}")
    assert error.fix is not None
    # Both ways out, taken literally.
    assert error.fix.endswith("mnt run --worker ssh")
    assert run_mnt("run", "--worker", "ssh", "hostname", lab=lab).stdout == "node1 | node1\n"
    for algorithm, option in re.findall(r"(\S+@\S+) to (\w+)", error.fix):
        config = re.sub(f"(?m)^{option} .*", rf"\g<0>,{algorithm}", config)
    faults.configure_sshd(lab.host("node1"), config)
    with fleet_of(lab) as fleet:
        assert fleet.run(hostname).ok


# -- start-up files, forced commands


READS = (
    "a start-up file of the login shell, /bin/bash, reads the standard input that is meant for the command"
)


@pytest.mark.parametrize(
    ("startup", "said"),
    [
        ("exit 1", "runs no command, exit code 1; a start-up file may end it: ~/.bashrc:2: exit 1"),
        ("read -t 3 x", f"{READS}: ~/.bashrc:2: read -t 3 x"),
        ("cat >/dev/null", f"{READS}: ~/.bashrc:2: cat >/dev/null"),
        (
            "echo moved >&2; exec false",
            "runs no command, exit code 1: moved; a start-up file may end it: "
            "~/.bashrc:2: echo moved >&2; exec false",
        ),
        (
            "exec sleep 1000",
            "has not ended within 3 s; a start-up file may end it: ~/.bashrc:2: exec sleep 1000",
        ),
        ("exec cat", "and has not ended within 3 s; a start-up file may end it: ~/.bashrc:2: exec cat"),
    ],
)
def test_a_start_up_file_in_the_way(make_lab: MakeLab, run_mnt: Mnt, startup: str, said: str) -> None:
    lab = make_lab(count=1)
    host = lab.host("node1")
    faults.write_file(host, ".bashrc", f"# exit\n{startup}\n", user=True)
    with fleet_of(lab, timeouts=SOON) as fleet, at_most(PATIENCE), pytest.raises(HostError) as failure:
        run_program(fleet.connection("node1"), "ssh.mesh", {"workers": []}, timeout=None)
    assert said in failure.value.message
    assert failure.value.fix is not None
    put_at_the_top(host, failure.value.fix)
    assert run_mnt("run", "hostname", lab=lab).stdout == "node1 | node1\n"


@pytest.mark.parametrize("worker", ["paramiko", "ssh"])
def test_mnt_run_does_not_wait_for_ever(make_lab: MakeLab, run_mnt: Mnt, worker: str) -> None:
    lab = make_lab(count=1)
    faults.write_file(lab.host("node1"), ".bashrc", "cat >/dev/null\n", user=True)
    with at_most(PATIENCE):
        done = run_mnt("run", "--worker", worker, "hostname", lab=lab)
    assert done.returncode == 255
    assert f"mnt: node1: command: {READS}: ~/.bashrc:1: cat >/dev/null" in done.stderr


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("echo This account runs backups only.", "exit code 0: This account runs backups only."),
        ("echo one; echo two >&2; exit 3", "exit code 3: two"),
        ("cat", "and has not ended within 3 s"),
    ],
)
def test_a_forced_command(make_lab: MakeLab, command: str, said: str) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), f"Match User mnt\n ForceCommand {command}\nMatch all\n")
    with fleet_of(lab, timeouts=SOON) as fleet, at_most(PATIENCE), pytest.raises(HostError) as failure:
        run_program(fleet.connection("node1"), "ssh.mesh", {"workers": []})
    assert failure.value.phase == "command"
    assert failure.value.message.endswith(f"runs no command, {said}")
    assert "remove ForceCommand in its sshd_config" in str(failure.value.fix)
