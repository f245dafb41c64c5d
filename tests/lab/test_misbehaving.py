"""Hosts that misbehave, at the login and in mid-command: every error names its phase and a remedy.

test_fleet.py has the plainer ones: refused and dropped packets, silence, wrong and missing keys, gateways.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import faults
import pytest
from lab_fleets import execute, fleet_of, hosts_of
from terminals import on_a_terminal, without_a_terminal
from test_fleet import MakeLab, error_of, fingerprint, hostname, while_it_sleeps
from waiting import HANG, PATIENCE, at_most, wait_for

from mnt.errors import HostError
from mnt.fleet import Fleet, Timeouts
from mnt.lab.lab import Lab, LabHost
from mnt.tasks.program import run_program

Mnt = Callable[..., subprocess.CompletedProcess[str]]

# Passes bytes on between port argv[1] and sshd, with a pause of argv[2] seconds after the server's banner.
_SLOW_PROXY = """
import os, socket, sys, threading, time
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
if os.fork():
    raise SystemExit
os.setsid()
for stream in (0, 1, 2):
    os.dup2(os.open(os.devnull, os.O_RDWR), stream)
def pump(source, target, pause):
    try:
        while data := source.recv(65536):
            target.sendall(data)
            time.sleep(pause)
            pause = 0
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
while True:
    client, _ = listener.accept()
    server = socket.create_connection(("127.0.0.1", 22))
    threading.Thread(target=pump, args=(client, server, 0), daemon=True).start()
    threading.Thread(target=pump, args=(server, client, float(sys.argv[2])), daemon=True).start()
"""


def slow_proxy(host: LabHost, port: int, pause: float) -> None:
    started = host.exec(["/usr/bin/python3", "-c", _SLOW_PROXY, str(port), str(pause)])
    assert started.returncode == 0, started.stderr


def address(lab: Lab, name: str = "node1") -> str:
    return lab.host(name).spec.management


def only_host_key(host: LabHost, kind: str) -> str:
    """Give the host a key of that kind and no other; its type and base64, as in known_hosts."""
    path = f"/etc/ssh/ssh_host_{kind}_key"
    made = host.exec(
        ["sh", "-c", f"ssh-keygen -q -t {kind} -N '' -f {path}; rm /etc/ssh/ssh_host_ed25519_key"]
    )
    assert made.returncode == 0, made.stderr
    faults.configure_sshd(host, f"HostKey {path}\n")
    return " ".join(host.exec(["cat", f"{path}.pub"]).stdout.split()[:2])


# -- sshd that is slow, or has had enough


def test_a_banner_and_then_silence(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    slow_proxy(lab.host("node1"), 2222, 600)
    with at_most(60):
        error = error_of(fleet_of(lab, port=2222, timeouts=Timeouts(key_exchange=1)))
    assert error.message == "node1: key exchange: not done within 1 s"
    assert error.fix is not None


def test_a_slow_key_exchange_is_waited_for(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    slow_proxy(lab.host("node1"), 2222, 3)
    with fleet_of(lab, port=2222, timeouts=Timeouts(key_exchange=60)) as fleet:
        outcome = fleet.run(hostname)["node1"]
    assert outcome.value == "node1"
    assert outcome.seconds > 3


def test_64_logins_to_one_sshd_at_default_settings(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    (host,) = hosts_of(lab)
    many = [replace(host, name=f"alias{number}") for number in range(64)]
    with Fleet(many) as fleet:
        results = fleet.run(hostname)
    assert results.errors() == {}
    log = lab.host("node1").exec(["cat", "/run/sshd.log"]).stdout
    assert log.count("Accepted publickey") == 64  # none was tried again once it had been let in


def test_a_server_that_drops_some_of_the_logins(make_lab: MakeLab) -> None:
    """Four strangers sit in MaxStartups, which drops some of what comes: drawn anew for each attempt.

    Six hosts with five attempts each: by chance it fails less than once in a thousand times.
    """
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "MaxStartups 4:15:100\n")
    (host,) = hosts_of(lab)
    many = [replace(host, name=f"alias{number}") for number in range(6)]
    with strangers(address(lab), 4), Fleet(many) as fleet:
        assert fleet.run(hostname).errors() == {}


@contextmanager
def strangers(where: str, count: int) -> Iterator[None]:
    """Connections to sshd that never log in."""
    held = [socket.create_connection((where, 22)) for _ in range(count)]
    try:
        yield
    finally:
        for connection in held:
            connection.close()


def test_a_server_that_drops_all_logins(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "MaxStartups 1\n")
    with strangers(address(lab), 1):
        error = error_of(fleet_of(lab))
    assert error.phase in ("banner", "key exchange")
    assert error.fix is not None
    assert "MaxStartups" in error.fix


def test_one_session_a_connection(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "MaxSessions 1\n")
    with fleet_of(lab) as fleet:
        connection = fleet.connection("node1")
        with connection.start(f"sleep {HANG}"), connection.start("cat") as echo:
            for _ in range(3):  # one after the other, while two are running
                assert hostname(connection) == "node1"
            echo.write([b"there"])
            assert echo.read(5) == b"there"
        logins = execute(connection, "true").exit_code
    assert logins == 0
    log = lab.host("node1").exec(["cat", "/run/sshd.log"]).stdout
    assert 3 <= log.count("Accepted publickey") <= 5


def test_no_session_at_all(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "MaxSessions 0\n")
    error = error_of(fleet_of(lab))
    assert error.message == "node1: channel: the host allows no session"
    assert error.fix == "set MaxSessions in its sshd_config to at least 1"


# -- keys and users


def test_a_user_who_may_not_log_in(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "DenyUsers mnt\n")
    error = error_of(fleet_of(lab))
    key = lab.directory / "identity"
    assert error.message == f"node1: authentication: no key accepted; tried {key}"
    assert error.fix == f"ssh-copy-id -i {key} -p 22 mnt@{address(lab)}"


def test_a_server_that_takes_passwords_only(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "PubkeyAuthentication no\nPasswordAuthentication yes\n")
    error = error_of(fleet_of(lab))
    assert error.message == "node1: authentication: the host accepts no keys of mnt, only password"
    assert error.fix == "set PubkeyAuthentication yes in its sshd_config"


def test_an_identity_file_of_ssh_config_that_does_not_exist(lab: Lab, tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(f"Host *\n IdentityFile /nowhere/key\n IdentityFile {lab.directory}/identity\n")
    with fleet_of(lab, identity=None, config=str(config)) as fleet:
        assert fleet.run(hostname).ok


PASSPHRASE = "it's secret"


@pytest.fixture
def locked(lab: Lab, tmp_path: Path) -> Path:
    """The lab's key under a passphrase, and no agent; an inventory that names it."""
    key = tmp_path / "locked key"
    key.write_bytes((lab.directory / "identity").read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", PASSPHRASE, "-f", key], check=True)
    inventory = tmp_path / "inventory.yaml"
    text = lab.inventory_path.read_text().replace(f"{lab.directory}/identity", str(key))
    inventory.write_text(text)
    return inventory


STATUS = [sys.executable, "-m", "mnt", "status", "--json", "-i"]
NO_AGENT = {"SSH_AUTH_SOCK": ""}


def test_a_passphrase_is_asked_once_for_all_hosts(locked: Path) -> None:
    answers = [("Passphrase of ", "wrong"), ("Passphrase of ", PASSPHRASE)]
    said = on_a_terminal([*STATUS, str(locked)], answers, NO_AGENT)
    assert said.code == 0, said.text
    assert said.text.count("Passphrase of ") == 2
    assert PASSPHRASE not in said.text
    assert '"jobs"' in said.text


def test_a_passphrase_that_is_not_known(locked: Path) -> None:
    said = on_a_terminal([*STATUS, str(locked)], [("Passphrase of ", "wrong")] * 3, NO_AGENT)
    assert said.code == 1
    assert "needs a passphrase, and the right one was not given" in said.text


def test_ctrl_c_at_the_passphrase(locked: Path) -> None:
    said = on_a_terminal([*STATUS, str(locked)], [("Passphrase of ", "^C")], NO_AGENT)
    assert said.code == 130, said.text


def test_a_passphrase_is_never_asked_where_there_is_no_terminal(locked: Path) -> None:
    command = [sys.executable, "-m", "mnt", "preflight", "--only", "ssh", "-i", str(locked)]
    done = without_a_terminal(command, NO_AGENT)
    assert done.returncode == 1
    assert "needs a passphrase; no agent holds it, and there is no terminal to ask at" in done.stdout
    assert f"ssh-add '{locked.parent}/locked key'" in done.stdout


def test_an_agent_makes_the_passphrase_needless(
    locked: Path, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", tmp_path / "agent"], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(tmp_path / "agent"))
        subprocess.run(["ssh-add", "-q", lab.directory / "identity"], check=True)
        public = subprocess.run(["ssh-keygen", "-y", "-f", lab.directory / "identity"], capture_output=True)
        (locked.parent / "locked key.pub").write_bytes(public.stdout)
        assert without_a_terminal([*STATUS, str(locked)]).returncode == 0
    finally:
        agent.terminate()
        agent.communicate()


# -- host keys


@pytest.mark.parametrize("kind", ["rsa", "ecdsa"])
def test_only_one_kind_of_host_key(make_lab: MakeLab, tmp_path: Path, kind: str) -> None:
    lab = make_lab(count=1)
    key = only_host_key(lab.host("node1"), kind)
    file = tmp_path / "known_hosts"
    for mode in ("accept-new", "strict"):
        with fleet_of(lab, known_hosts=str(file), host_keys=mode) as fleet:
            assert fleet.run(hostname).ok
    assert file.read_text() == f"{address(lab)} {key}\n"


def test_several_kinds_known_the_host_has_one_of_them(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(count=1)
    host = lab.host("node1")
    (tmp_path / "old").mkdir()
    lines = [
        f"{address(lab)} " + " ".join(host.exec(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split())
    ]
    lines.append(f"{address(lab)} {only_host_key(host, 'ecdsa')}")
    file = tmp_path / "known_hosts"
    file.write_text("\n".join(lines) + "\n")
    with fleet_of(lab, known_hosts=str(file), host_keys="strict") as fleet:
        assert fleet.run(hostname).ok


def test_hashed_known_hosts(lab: Lab, make_lab: MakeLab, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text((lab.directory / "known_hosts").read_text())
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", file], check=True, capture_output=True)
    assert address(lab) not in file.read_text()
    with fleet_of(lab, known_hosts=str(file), host_keys="strict") as fleet:
        assert fleet.run(hostname).ok
    other = make_lab(count=1).host("node1")
    wrong = file.read_text().splitlines()
    key = " ".join(other.exec(["cat", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout.split()[:2])
    file.write_text("".join(f"{line.split()[0]} {key}\n" for line in wrong))
    error = error_of(fleet_of(lab, known_hosts=str(file)))
    assert error.phase == "host key"
    assert fingerprint(other) in error.message
    assert fingerprint(lab.host("node1")) in error.message


# -- ways to a host


def add_user(host: LabHost, name: str) -> None:
    """A further user who lets in who the lab's user lets in."""
    script = (
        'useradd -m -s /bin/bash "$1" && cp -r /home/mnt/.ssh "/home/$1/" && chown -R "$1:$1" "/home/$1"'
        ' && usermod -p "*" "$1"'
    )
    done = host.exec(["sh", "-c", script, "sh", name])
    assert done.returncode == 0, done.stderr


def test_two_hops_with_users_of_their_own(make_lab: MakeLab) -> None:
    lab = make_lab(count=4)
    add_user(lab.host("node1"), "first")
    add_user(lab.host("node2"), "second")
    hops = f"first@{address(lab, 'node1')}:22,second@{address(lab, 'node2')}"
    with Fleet([host for host in hosts_of(lab, gateway=hops) if host.name in ("node3", "node4")]) as fleet:
        clients = fleet.run(lambda c: execute(c, "echo $SSH_CLIENT $USER").stdout.decode().split())
    assert {(client[0], client[3]) for client in clients.values_by_host().values()} == {
        (address(lab, "node2"), "mnt")
    }
    for name, user in (("node1", "first"), ("node2", "second")):
        log = lab.host(name).exec(["cat", "/run/sshd.log"]).stdout
        assert log.count(f"Accepted publickey for {user} ") == 1


def test_include_and_match(lab: Lab, tmp_path: Path) -> None:
    """`Match` is evaluated by ssh itself (`ssh -G`); the included file gives user and port."""
    (tmp_path / "more").write_text(f"Host {address(lab)}\n Port 22\n")
    config = tmp_path / "config"
    config.write_text(
        f"Include {tmp_path}/more\nMatch host {address(lab)} exec true\n User mnt\n"
        f" IdentityFile {lab.directory}/identity\n"
    )
    with fleet_of(lab, user=None, identity=None, config=str(config)) as fleet:
        assert fleet.run_each(hostname, {"node1": ()}).ok


def test_an_ipv6_literal_and_a_port_of_its_own(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab(count=2)
    # With the high bit set: a group that begins with 0 would be written without it.
    prefix = f"fd00:6d6e:74:{int(lab.spec.token[:4], 16) | 0x8000:x}::"
    subprocess.run(
        ["ip", "-6", "addr", "add", f"{prefix}1/64", "dev", lab.spec.head_link, "nodad"], check=True
    )
    for number, host in enumerate(lab.hosts, start=2):
        added = host.exec(["ip", "-6", "addr", "add", f"{prefix}{number}/64", "dev", "mgmt0", "nodad"])
        assert added.returncode == 0, added.stderr
    faults.start_sshd(lab.host("node1"), "-p", "2222", "-o", "PidFile=none")
    file = tmp_path / "known_hosts"
    first, second = hosts_of(lab, known_hosts=str(file))
    hosts = [
        replace(first, address=f"{prefix}2", ssh=replace(first.ssh, port=2222)),
        replace(second, address=f"[{prefix}3]"),
    ]
    with Fleet(hosts) as fleet:
        found = fleet.run(lambda c: execute(c, "echo $SSH_CONNECTION").stdout.decode().split()[2:])
    assert found.values_by_host() == {"node1": [f"{prefix}2", "2222"], "node2": [f"{prefix}3", "22"]}
    names = {line.split()[0] for line in file.read_text().splitlines()}
    assert names == {f"[{prefix}2]:2222", f"{prefix}3"}
    through = [replace(hosts[1], ssh=replace(second.ssh, gateway=f"mnt@[{prefix}2]:2222"))]
    with Fleet(through) as fleet:
        assert fleet.run(hostname)["node2"].value == "node2"


# -- shells


def test_a_login_shell_that_runs_nothing(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.set_shell(lab.host("node1"), "/usr/bin/false")
    with fleet_of(lab) as fleet, pytest.raises(HostError) as failure:
        run_program(fleet.connection("node1"), "ssh.mesh", {"workers": []})
    assert failure.value.message == (
        "node1: command: the login shell, /usr/bin/false, runs no command, exit code 1"
    )
    assert failure.value.fix == "as root on the host: usermod --shell /bin/bash mnt"


# -- commands


def test_50_megabytes_on_both_streams(lab: Lab) -> None:
    size = 50_000_000
    script = f"head -c {size} /dev/zero >&2 & head -c {size} /dev/zero; wait; exit 3"
    came = 0

    def count(data: bytes) -> None:
        nonlocal came
        came += len(data)

    with fleet_of(lab) as fleet:
        done = execute(fleet.connection("node1"), script, timeout=PATIENCE, on_stdout=count)
    assert (came, done.exit_code, len(done.stderr)) == (size, 3, 1 << 16)


def test_a_command_that_ends_before_it_has_read_its_input(lab: Lab) -> None:
    """The channel is closed by the time that we write: what the command said counts, nothing else."""
    with fleet_of(lab) as fleet:
        connection = fleet.connection("node1")
        for chunks in ([b"x"], [b"x" * 10_000_000]):
            done = execute(connection, "echo so; exit 4", stdin=chunks)
            assert (done.stdout, done.exit_code) == (b"so\n", 4)
        running = connection.start("echo so; exit 4")
        wait_for(lambda: running._channel.closed)
        running.write([b"late"])
        running.end_input()
        assert running.read() + running.read() == b"so\n"
        assert running.exit_code == 4
        running.close()


def test_a_command_that_forks_and_keeps_all_streams_open(lab: Lab) -> None:
    with fleet_of(lab) as fleet:
        connection = fleet.connection("node1")
        done = execute(connection, f"sh -c 'sleep {HANG} & echo $! >&2; echo out'", timeout=PATIENCE)
        assert (done.stdout, done.exit_code) == (b"out\n", 0)
        assert execute(connection, f"kill {int(done.stderr)}").exit_code == 0  # it was there


# -- hosts that die


LOST = "^node1: channel: connection lost: "
KNOWN = 30  # seconds; it takes 14


def test_a_host_that_dies_in_mid_command(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    with fleet_of(lab) as fleet, at_most(KNOWN), pytest.raises(HostError, match=LOST):
        while_it_sleeps(fleet.connection("node1"), partial(faults.power_off, lab.host("node1")))


@pytest.mark.parametrize("gateway", [False, pytest.param(True, marks=pytest.mark.matrix)])
def test_a_host_that_dies_while_it_is_sent_something(make_lab: MakeLab, gateway: bool) -> None:
    lab = make_lab(count=2)
    host = lab.host("node1")
    via = {"gateway": address(lab, "node2")} if gateway else {}
    is_read = threading.Event()

    def endless() -> Iterator[bytes]:
        while True:
            yield b"z" * 65536

    def die() -> None:
        if is_read.wait(PATIENCE):
            faults.power_off(host)

    dying = threading.Thread(target=die)
    dying.start()
    reader = "head -c 1000000 >/dev/null; echo read; exec cat >/dev/null"
    with fleet_of(lab, **via) as fleet:
        task = partial(execute, fleet.connection("node1"), reader, stdin=endless(), timeout=PATIENCE)
        with at_most(KNOWN), pytest.raises(HostError, match=LOST):
            task(on_stdout=lambda data: is_read.set())
    dying.join()


# -- clocks

_FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"


def test_a_clock_that_is_two_days_ahead(make_lab: MakeLab, run_mnt: Mnt, tmp_path: Path) -> None:
    if not os.path.exists(_FAKETIME):
        pytest.skip("faketime is not installed (apt-get install faketime)")
    lab = make_lab(count=2)
    environment = f"SetEnv LD_PRELOAD={_FAKETIME} FAKETIME=+2d FAKETIME_DONT_FAKE_MONOTONIC=1\n"
    faults.configure_sshd(lab.host("node1"), environment)
    with fleet_of(lab) as fleet:
        said = execute(fleet.connection("node1"), "date +%s").stdout
    assert 2 * 86_400 - PATIENCE < int(said) - time.time() < 2 * 86_400 + 1
    checked = run_mnt("preflight", "--only", "clock", lab=lab)
    assert checked.returncode == 1
    assert "node1" in checked.stdout
    (tmp_path / "show.py").write_text("print('trained')\n")
    assert run_mnt("push", str(tmp_path), lab=lab).returncode == 0
    refused = run_mnt("launch", "show.py", lab=lab)
    assert refused.returncode == 125
    assert "clock: node1" in refused.stderr
