"""mnt run by OpenSSH's client through gateways: one login at each, and nothing that stays behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from lab_fleets import hosts_of
from setups import allow_sudo, setup
from test_run import own_state, started  # noqa: F401 - a fixture
from waiting import HANG, PATIENCE, wait_for
from watching import running

from mnt.fleet import Fleet, HostConnection
from mnt.fleet.processes import OpenSshConnection
from mnt.lab.lab import Lab, LabHost
from mnt.run.command import from_words
from mnt.run.outputs import Capture
from mnt.tasks.command import run_command

Mnt = Callable[..., subprocess.CompletedProcess[str]]
MakeLab = Callable[..., Lab]
Behind = Callable[..., Path]

CLIENT = "echo $SSH_CLIENT | cut -d ' ' -f 1"


@pytest.fixture
def behind(tmp_path: Path) -> Behind:
    """`behind(lab, "node2 via node1", ..)`: the lab's inventory, with an ssh_config of these ProxyJumps."""

    def write(lab: Lab, *ways: str) -> Path:
        lines = [f"Host {host.name}g\n HostName {host.spec.management}\n" for host in lab.hosts]
        for way in ways:
            host, gateway = way.split(" via ")
            lines.append(f"Host {host}g {lab.host(host).spec.management}\n ProxyJump {gateway}g\n")
        (tmp_path / "ssh config").write_text("".join(lines))
        config = str(tmp_path / "ssh config")
        text = lab.inventory_path.read_text().replace("config: null", f"config: '{config}'")
        (tmp_path / "inventory.yaml").write_text(text)
        return tmp_path / "inventory.yaml"

    return write


def logins(host: LabHost) -> int:
    return int(host.exec(["sh", "-c", "grep -c 'Accepted publickey' /run/sshd.log"]).stdout)


def masters(lab: Lab) -> dict[str, str]:
    """The masters on this machine for the lab's hosts, and what they leave: directory -> command line."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # it ended
        match = re.search(r"(/tmp/mnt-ssh-\w+)/0", words)
        if match is not None and str(lab.directory) in words:
            found[match[1]] = words
    return found


def gone(lab: Lab, directories: dict[str, str]) -> bool:
    return not masters(lab) and not any(map(os.path.exists, directories))


RELAY = """
import os, select, socket, sys
open(sys.argv[1], "w").close()
peer = socket.create_connection((sys.argv[2], int(sys.argv[3])))
while True:
    ready, _, _ = select.select([0, peer], [], [])
    for source in ready:
        data = os.read(0, 65536) if source == 0 else peer.recv(65536)
        if not data:
            sys.exit()
        os.write(1, data) if source is peer else peer.sendall(data)
"""


def test_a_proxy_command_before_a_proxy_jump(run_mnt: Mnt, lab: Lab, behind: Behind, tmp_path: Path) -> None:
    inventory = behind(lab, "node2 via node1")
    (tmp_path / "relay.py").write_text(RELAY)
    relay = f"{sys.executable} {tmp_path}/relay.py {tmp_path}/used %h %p"
    config = tmp_path / "ssh config"
    jumps = config.read_text()
    proxied = f"Host {lab.host('node2').spec.management}\n ProxyCommand {relay}\n"
    config.write_text(proxied + jumps)
    before = logins(lab.host("node1"))
    done = run_mnt("run", "-i", str(inventory), "--worker", "ssh", "-n", "node2", CLIENT)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "used").exists()
    assert logins(lab.host("node1")) == before
    config.write_text(jumps + proxied)
    (tmp_path / "used").unlink()
    done = run_mnt("run", "-i", str(inventory), "--worker", "ssh", "-n", "node2", CLIENT)
    assert done.stdout.split()[-1] == lab.host("node1").spec.management
    assert not (tmp_path / "used").exists()


def test_one_hop_is_one_login(lab: Lab, run_mnt: Mnt, behind: Behind) -> None:
    inventory = behind(lab, "node2 via node1", "node3 via node1")
    before = logins(lab.host("node1"))
    done = run_mnt(
        "run", "-i", str(inventory), "--worker", "ssh", "-n", "node[2-3]", f"{CLIENT}; cat", input="in\n"
    )
    gateway = lab.host("node1").spec.management
    assert sorted(done.stdout.splitlines()) == [
        line for n in (2, 3) for line in (f"node{n} | {gateway}", f"node{n} | in")
    ]
    assert (done.returncode, done.stderr) == (0, "")
    assert logins(lab.host("node1")) == before + 1
    assert masters(lab) == {}


def test_two_hops_and_a_direct_host(lab: Lab, run_mnt: Mnt, behind: Behind) -> None:
    inventory = behind(lab, "node2 via node1", "node3 via node2", "node4 via node2")
    before = [logins(lab.host(name)) for name in ("node1", "node2")]
    done = run_mnt("run", "-i", str(inventory), "--worker", "ssh", "-n", "node[1,3-4]", CLIENT)
    second = lab.host("node2").spec.management
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines())[1:] == [f"node3 | {second}", f"node4 | {second}"]
    # node1 is a host, too: a login for the command, and one for its input.
    assert [logins(lab.host(name)) for name in ("node1", "node2")] == [before[0] + 3, before[1] + 1]
    assert masters(lab) == {}


def test_a_gateway_of_the_inventory_sees_one_login_of_many_hosts(make_lab: MakeLab) -> None:
    lab = make_lab(count=2)
    gateway, far = lab.hosts
    faults.configure_sshd(gateway, "MaxStartups 1:100:1\n")  # a second login at the same time is turned away
    faults.configure_sshd(far, "MaxStartups 200\n")
    host = hosts_of(lab, gateway=f"mnt@{gateway.spec.management}:22")[1]
    many = [replace(host, name=f"alias{number}") for number in range(24)]
    before = logins(gateway)

    def task(connection: HostConnection) -> bytes:
        capture = Capture()
        assert run_command(connection, from_words([CLIENT]), capture) == 0
        return capture.out.read()

    with Fleet(many, connect=OpenSshConnection) as fleet:
        results = fleet.run(task)
        assert results.errors() == {}
        assert set(results.values_by_host().values()) == {f"{gateway.spec.management}\n".encode()}
        assert len(masters(lab)) == 1
    assert logins(gateway) == before + 1
    assert masters(lab) == {}


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_an_end_leaves_nothing(lab: Lab, behind: Behind, end: signal.Signals) -> None:
    inventory = behind(lab, "node2 via node1", "node3 via node2", "node4 via node2")
    words = ("-i", str(inventory), "--worker", "ssh", "-n", "node[3-4]", "sleep 4325")
    with started(lab, *words) as process:
        hosts = [lab.host("node3"), lab.host("node4")]
        wait_for(lambda: all(running(host, "sleep 4325") for host in hosts))
        there = masters(lab)
        assert len(there) == 2
        process.send_signal(end)
        assert process.wait(PATIENCE) == (130 if end == signal.SIGINT else -end)
        assert end == signal.SIGKILL or gone(lab, there)  # else without the head
    wait_for(lambda: gone(lab, there))
    wait_for(lambda: not any(running(host, "sleep 4325") for host in hosts))


def test_ctrl_c_while_a_gateway_is_silent(make_lab: MakeLab, behind: Behind) -> None:
    lab = make_lab(count=3)
    inventory = behind(lab, "node2 via node1", "node3 via node1")
    faults.silence_sshd(lab.host("node1"))
    words = ("-i", str(inventory), "--worker", "ssh", "-n", "node[2-3]", "--connect-timeout", str(HANG))
    with started(lab, *words, "hostname") as process:
        there = wait_for(lambda: masters(lab) or None)
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
        assert gone(lab, there)


def test_a_gateway_that_fails_is_named_and_asked_once(
    make_lab: MakeLab, run_mnt: Mnt, behind: Behind
) -> None:
    lab = make_lab(count=3)
    inventory = behind(lab, "node2 via node1", "node3 via node1")
    words = ("run", "-i", str(inventory), "--worker", "ssh", "-n", "node[2-3]", "--connect-timeout", "60")
    faults.stop_sshd(lab.host("node2"))
    done = run_mnt(*words, "hostname")
    assert (done.returncode, done.stdout) == (255, "node3 | node3\n")
    assert "mnt: node2: connect: the gateway cannot reach it, or forwards nothing\n" in done.stderr
    faults.stop_sshd(lab.host("node1"))
    done = run_mnt(*words, "hostname")
    assert (done.returncode, done.stdout) == (255, "")
    refused = f"ssh: connect to host {lab.host('node1').spec.management} port 22: Connection refused"
    for name in ("node2", "node3"):
        assert f"mnt: {name}: connect: gateway node1g: {refused}\n" in done.stderr
    assert masters(lab) == {}


@pytest.mark.parametrize("gateway", [None, "node1g,node2g"], ids=["ssh_config", "inventory"])
def test_ansible_uses_no_socket_that_ssh_config_names(
    make_lab: MakeLab, behind: Behind, tmp_path: Path, gateway: str | None
) -> None:
    """Another user listens there, and would see the forwarding, and answer for the gateway."""
    pytest.importorskip("ansible_runner", reason="pip install 'mnt-cluster[setup]'")
    lab = make_lab(count=3)
    allow_sudo(lab)
    ways = [] if gateway else ["node2 via node1", "node3 via node2"]
    inventory = behind(lab, *ways)
    if gateway:
        text = inventory.read_text()
        inventory.write_text(text.replace("  config: '", f"  gateway: {gateway}\n  config: '"))
    before = [logins(host) for host in lab.hosts]
    with tempfile.TemporaryDirectory(prefix="mnt-test-") as short, socket.socket(socket.AF_UNIX) as eve:
        eve.bind(f"{short}/eve")
        eve.listen()
        eve.settimeout(0.1)
        with (tmp_path / "ssh config").open("a") as config:
            config.write(f"Host *\n ControlPath {short}/eve\n")
        assert setup(inventory, "firewall", "--check", "-n", "node3")["hosts"]["node3"]["status"] == "changed"
        with pytest.raises(TimeoutError):
            eve.accept()
    assert all(logins(host) > count for host, count in zip(lab.hosts, before, strict=True))
