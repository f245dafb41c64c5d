"""What a lab host is: its network, its files, its logins."""

from __future__ import annotations

import json
import pty
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import sessions
from ssh_client import ssh
from terminals import on_a_terminal
from waiting import PATIENCE, wait_for

from mnt.inventory import loader
from mnt.lab.lab import Lab, LabHost, down

NICS = {"node1": "eth0", "node2": "enp26s0np0", "node3": "ens3f0", "node4": "eno1"}

RECEIVE = """
import select, socket, sys, time
with socket.create_server((sys.argv[1], 5000)) as listener:
    print("ready", flush=True)
    peers = [listener.accept()[0] for _ in range(int(sys.argv[2]))]
    while peers:
        for peer in select.select(peers, [], [])[0]:
            if not peer.recv(1 << 16):
                peers.remove(peer)
    print(time.monotonic())
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 5000)) as stream:
    print("ready", flush=True)
    sys.stdin.readline()
    stream.sendall(bytes(int(sys.argv[2])))
"""


def output(host: LabHost, *argv: str, user: bool = False) -> str:
    done = host.exec(argv, user=user)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_each_host_has_its_name_and_its_two_nics(lab: Lab) -> None:
    for host in lab.hosts:
        assert output(host, "hostname") == f"{host.name}\n"
        links = {link["ifname"]: link for link in json.loads(output(host, "ip", "-j", "-4", "addr"))}
        assert set(links) == {"lo", "mgmt0", NICS[host.name]}
        for nic, address in (("mgmt0", host.spec.management), (host.spec.nic, host.spec.training)):
            assert [found["local"] for found in links[nic]["addr_info"]] == [address]
            assert links[nic]["operstate"] == "UP"
        assert set(output(host, "ls", "/sys/class/net").split()) == set(links)


def test_the_ordinary_user_logs_in_by_key(lab: Lab) -> None:
    done = ssh(lab, "node2", 'id -un; hostname; pwd; echo "$SHELL"')
    assert done.stdout.split() == ["mnt", "node2", "/home/mnt", "/bin/bash"]
    assert done.stderr == ""
    assert "mnt:" not in Path("/etc/passwd").read_text()


def test_nobody_else_does(lab: Lab) -> None:
    for done in (
        ssh(lab, "node1", "true", identity="/dev/null"),
        ssh(lab, "node1", "true", user="root"),
    ):
        assert done.returncode == 255
        # The one method on offer: a password is not even asked for.
        assert "Permission denied (publickey)." in done.stderr


def test_every_host_logs_in_to_every_other(lab: Lab) -> None:
    others = 'for host in node1 node2 node3 node4; do ssh -oBatchMode=yes "$host" hostname; done'
    for host in lab.hosts:
        done = ssh(lab, host.name, others)
        assert done.stdout.split() == list(NICS), done.stderr


def test_names_resolve_to_the_address_that_ssh_uses(lab: Lab) -> None:
    for host in lab.hosts:
        found = output(lab.host("node1"), "getent", "ahostsv4", host.name).split()
        assert found[0] == host.spec.management


def test_there_is_no_way_out(lab: Lab) -> None:
    done = lab.host("node1").exec(["ip", "route", "get", "192.0.2.1"])
    assert "Network is unreachable" in done.stderr
    routes = json.loads(output(lab.host("node1"), "ip", "-j", "route"))
    assert {route["dst"] for route in routes} == {str(lab.spec.management), str(lab.spec.training)}


def test_the_two_networks_are_two_cables(lab: Lab) -> None:
    """A training address does not answer on the management network."""
    host, peer = lab.hosts[0], lab.hosts[1]
    output(host, "ip", "route", "add", peer.spec.training, "dev", "mgmt0")
    try:
        probe = f"import socket; socket.create_connection(('{peer.spec.training}', 22), 10)"
        done = host.exec(["/usr/bin/python3", "-c", probe])
        assert "No route to host" in done.stderr
    finally:
        output(host, "ip", "route", "del", peer.spec.training, "dev", "mgmt0")
    output(host, "/usr/bin/python3", "-c", probe)


def test_shared_is_one_directory_for_all_and_the_users(lab: Lab) -> None:
    output(lab.host("node1"), "touch", "/shared/hosts-test", user=True)
    try:
        assert output(lab.host("node4"), "ls", "/shared", user=True) == "hosts-test\n"
    finally:
        output(lab.host("node4"), "rm", "/shared/hosts-test", user=True)
    mounts = [line.split()[:3] for line in output(lab.host("node3"), "cat", "/proc/mounts").splitlines()]
    assert [f"mnt-lab-{lab.spec.name}", "/shared", "tmpfs"] in mounts


def test_what_a_host_writes_stays_in_the_host(make_lab: Callable[..., Lab], tmp_path: Path) -> None:
    one, two = make_lab(count=2).hosts
    name = f"mnt-lab-test-{time.monotonic_ns()}"
    places = ("/etc", "/usr/bin", "/var/lib", "/tmp", "/run", "/dev/shm", "/dev", "/root", "/home", "/")
    for place in places:
        output(one, "touch", f"{place}/{name}")
        assert not Path(place, name).exists()
        assert two.exec(["test", "-e", f"{place}/{name}"]).returncode == 1
    output(one, "rm", "/etc/debian_version", "/usr/bin/ls")
    assert Path("/etc/debian_version").exists()
    assert Path("/usr/bin/ls").exists()


def test_homes_logs_and_keys_of_the_machine_are_not_seen(lab: Lab) -> None:
    host = lab.host("node1")
    assert output(host, "find", "/root", "-mindepth", "1") == ""
    assert output(host, "ls", "/home") == "mnt\n"
    # A shell of another test may have left its own history.
    assert output(host, "find", "/home/mnt", "-name", ".bash*", "!", "-name", ".bash_history") == ""
    assert set(output(host, "ls", "/etc/ssh").split()) == {
        "ssh_host_ed25519_key",
        "ssh_host_ed25519_key.pub",
        "sshd_config",
        "sshd_config.d",
    }
    # But for what the jobs of other tests keep there: torch's cache.
    assert output(host, "ls", "--ignore=mnt-tmp-*", "/dev/shm", "/tmp") == "/dev/shm:\n\n/tmp:\n"
    assert "root:*:" in output(host, "cat", "/etc/shadow")
    assert "lab.json" not in output(host, "find", "/run")


def test_host_keys_are_the_hosts_own(lab: Lab) -> None:
    keys = [output(host, "cat", "/etc/ssh/ssh_host_ed25519_key.pub") for host in lab.hosts]
    assert len(set(keys)) == len(lab.hosts)


def test_pids_are_the_hosts_own_and_orphans_are_reaped(lab: Lab) -> None:
    host = lab.host("node1")
    # Its parent is gone before it ends.
    orphan = output(host, "sh", "-c", "sleep 0.1 >/dev/null & echo $!").strip()

    def processes_of_the_host() -> list[list[str]]:
        return [line.split() for line in output(host, "ps", "-eo", "pid=,stat=,comm=").splitlines()]

    wait_for(lambda: orphan not in [pid for pid, _, _ in processes_of_the_host()])
    processes = processes_of_the_host()
    assert [comm for pid, _, comm in processes if pid == "1"] == ["sh"]
    assert {comm for _, _, comm in processes} == {"sh", "sleep", "sshd", "ps"}


def test_file_systems_below_the_root_are_seen_read_only(lab_support: None) -> None:
    """The machine has a mount of its own on /srv, made in a mount namespace that only `up` is in."""
    name = sessions.new_name()
    script = (
        "mount -n -t tmpfs tmpfs /srv; mkdir /srv/deep; mount -n -t tmpfs tmpfs /srv/deep;"
        'echo seen > /srv/file; echo seen > /srv/deep/file; exec "$@"'
    )
    command = [sys.executable, "-m", "mnt", "lab", "up", "1", "--name", name]
    try:
        subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", *command], check=True)
        host = Lab.find(name).host("node1")
        for directory in ("/srv", "/srv/deep"):
            assert output(host, "cat", f"{directory}/file") == "seen\n"
            assert "Read-only" in host.exec(["touch", f"{directory}/file"]).stderr
    finally:
        down(name)


def test_one_home_for_all(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(count=2, shared_home=True)
    output(lab.host("node1"), "touch", "note", user=True)
    assert "note" in output(lab.host("node2"), "ls", user=True)
    assert ssh(lab, "node2", "ssh -oBatchMode=yes node1 ls").stdout == "note\n"


def test_a_home_for_each(make_lab: Callable[..., Lab]) -> None:
    lab = make_lab(count=2)
    output(lab.host("node1"), "touch", "note", user=True)
    assert output(lab.host("node2"), "ls", user=True) == ""


@pytest.mark.timing
@pytest.mark.parametrize("direction", ["out of one host", "into one host"])
def test_training_links_are_shaped_both_ways(make_lab: Callable[..., Lab], direction: str) -> None:
    """Two streams meet in one link of 80 Mbit/s; were it free, the other ends' would let twice as much by."""
    lab = make_lab(count=3, rate=80_000_000)
    one, *others = lab.hosts
    pairs = [(one, other) if direction.startswith("out") else (other, one) for other in others]
    receivers = [one] if direction.startswith("into") else others
    seconds = _receive_all(pairs, receivers, size=4_000_000)
    megabits = 2 * 4_000_000 * 8 / seconds / 1e6
    assert 40 < megabits < 110


def _receive_all(pairs: list[tuple[LabHost, LabHost]], receivers: list[LabHost], *, size: int) -> float:
    """Seconds until all is received. Each pair is a sender and its receiver; all senders start at once."""
    receiving = [
        _start(host, RECEIVE, host.spec.training, str([to for _, to in pairs].count(host)))
        for host in receivers
    ]
    sending = [_start(host, SEND, to.spec.training, str(size)) for host, to in pairs]
    started = time.monotonic()  # one clock for the machine and its hosts
    for process in sending:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in sending:
        process.communicate(timeout=PATIENCE)
    return max(float(process.communicate(timeout=PATIENCE)[0]) for process in receiving) - started


def _start(host: LabHost, program: str, *args: str) -> subprocess.Popen[str]:
    command = host.command(["/usr/bin/python3", "-c", program, *args])
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=host.environment()
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.timing
def test_an_unshaped_link_is_fast(lab: Lab) -> None:
    one, two = lab.hosts[:2]
    seconds = _receive_all([(one, two)], [two], size=20_000_000)
    assert 20_000_000 * 8 / seconds / 1e6 > 400


def test_the_inventory_says_what_there_is(lab: Lab) -> None:
    loaded = loader.load(lab.inventory_path)
    for host in lab.hosts:
        assert loaded.host(host.name).address == host.spec.management
    assert loaded.network.subnet == str(lab.spec.training)
    assert ssh(lab, "node1", *loaded.host("node1").python, "-V").stdout.startswith("Python 3")


def test_the_extension_cache_is_the_users_to_write(lab: Lab) -> None:
    directory = loader.load(lab.inventory_path).hosts[0].env["TORCH_EXTENSIONS_DIR"]
    output(lab.host("node1"), "sh", "-c", f"touch {directory}/x && rm {directory}/x", user=True)


def test_exec_passes_on_streams_and_exit_code(
    lab: Lab, run_mnt: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    named = ("lab", "exec", "--name", lab.spec.name)
    done = run_mnt(*named, "node3", "--", "sh", "-c", "cat; echo err >&2; exit 7", input="in\n")
    assert (done.stdout, done.stderr, done.returncode) == ("in\n", "err\n", 7)
    assert run_mnt(*named, "node3", "id", "-un").stdout == "root\n"
    assert run_mnt(*named, "--user", "node3", "id", "-un").stdout == "mnt\n"
    assert run_mnt(*named, "node3", "echo", "--name", "-h").stdout == "--name -h\n"
    done = run_mnt(*named, "node9", "true")
    assert done.returncode == 2
    assert "no host 'node9'" in done.stderr


def test_exec_passes_the_terminal_through(lab: Lab) -> None:
    command = [sys.executable, "-m", "mnt", "lab", "exec", "--name", lab.spec.name, "node1", "--"]
    _, terminal = pty.openpty()
    done = subprocess.run(
        [*command, "sh", "-c", "test -t 0 && test -t 1"], stdin=terminal, stdout=terminal, check=False
    )
    assert done.returncode == 0


ATTACK = """
import fcntl, os, termios
def try_(act):
    try:
        act()
    except OSError:
        pass
def inject(descriptor):
    for key in b"id\\n":
        fcntl.ioctl(descriptor, termios.TIOCSTI, bytes([key]))
for descriptor in (0, 1, 2):
    try_(lambda: inject(descriptor))
try_(lambda: inject(os.open("/dev/tty", os.O_RDWR)))
print("theirs:", *(os.fstat(descriptor).st_rdev for descriptor in (0, 1, 2) if os.isatty(descriptor)))
"""
OURS = """
import array, fcntl, os, termios
waiting = array.array("i", [0])
fcntl.ioctl(2, termios.FIONREAD, waiting)
print("ours:", os.fstat(2).st_rdev, waiting[0])
"""


@pytest.mark.parametrize("given", ["", "</dev/null", "</dev/null | cat", ">/dev/stderr | cat"])
def test_the_user_of_a_host_cannot_type_into_roots_terminal(lab: Lab, given: str) -> None:
    exec_ = [sys.executable, "-m", "mnt", "lab", "exec", "--name", lab.spec.name, "--user", "node1", "--"]
    attack = shlex.join([*exec_, "/usr/bin/python3", "-c", ATTACK])
    look = shlex.join([sys.executable, "-c", OURS])
    said = on_a_terminal(["/bin/sh", "-c", f"{attack} {given}; {look}"], []).text
    # Both streams come together, so a line may begin behind keys that the attack typed into its own terminal.
    (theirs,) = (found.split() for found in re.findall("theirs:([ 0-9]*)", said))
    ((ours, waiting),) = re.findall("ours: ([0-9]+) ([0-9]+)", said)
    assert waiting == "0"
    assert len(theirs) == {"": 3, "</dev/null": 2, "</dev/null | cat": 1, ">/dev/stderr | cat": 3}[given]
    assert ours not in theirs


def test_exec_of_the_user_on_a_terminal(lab: Lab) -> None:
    """Questions, keys and the exit code are passed on; what is typed is not shown twice."""
    exec_ = [sys.executable, "-m", "mnt", "lab", "exec", "--name", lab.spec.name, "--user", "node1", "--"]
    script = "read -r line; echo [$line]; stty -isig -icanon; echo wait; head -c 1 | od -An -tx1; exit 7"
    said = on_a_terminal([*exec_, "sh", "-c", f"echo ready; {script}"], [("ready", "word"), ("wait", "^C")])
    assert said.code == 7, said.text
    assert "ready\nword\n[word]\n" in said.text
    assert " 03\n" in said.text
    said = on_a_terminal([*exec_, "sh", "-c", "kill -9 $$"], [])
    assert said.code == 128 + 9


def test_exec_brings_nothing_of_the_callers_environment(
    lab: Lab, run_mnt: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    done = run_mnt(
        "lab", "exec", "--name", lab.spec.name, "node1", "--", "env", env={"SECRET": "of the caller"}
    )
    assert "SECRET" not in done.stdout
    assert "HOME=/root\n" in done.stdout
