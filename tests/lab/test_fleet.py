"""Fleets over real sshd: logins that fail in each phase, host keys, gateways, streams, and Ctrl-C."""

from __future__ import annotations

import _thread
import hashlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import faults
import pytest
from fabric.connection import Connection
from fabric.tasks import task as fabric_task
from lab_fleets import execute, fleet_of, hosts_of
from waiting import HANG, PATIENCE, at_most

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection, Outcome, Timeouts
from mnt.inventory.model import Host
from mnt.lab.lab import Lab, LabHost

MakeLab = Callable[..., Lab]


def hostname(connection: HostConnection) -> str:
    return execute(connection, "hostname").stdout.decode().strip()


def error_of(fleet: Fleet, host: str = "node1") -> HostError:
    with fleet:
        error = fleet.run(hostname)[host].error
    assert error is not None
    return error


def fingerprint(host: LabHost) -> str:
    said = host.exec(["ssh-keygen", "-lf", "/etc/ssh/ssh_host_ed25519_key.pub"]).stdout
    return said.split()[1]


# -- what works


def test_tasks_run_on_all_hosts_in_their_order(lab: Lab) -> None:
    came: list[Outcome[str]] = []
    with fleet_of(lab) as fleet:
        results = fleet.run(hostname, on_result=came.append)
        assert list(results) == ["node1", "node2", "node3", "node4"]
        assert results.values_by_host() == {name: name for name in results}
        assert results.ok
        assert {outcome.host for outcome in came} == set(results)
        assert all(outcome.seconds > 0 for outcome in came)
        some = fleet.run_each(lambda connection, word: word, {"node3": ("c",), "node1": ("a",)})
        assert some.values_by_host() == {"node1": "a", "node3": "c"}
        assert list(some) == ["node1", "node3"]


def test_one_connection_a_host_for_the_life_of_the_fleet(lab: Lab) -> None:
    with fleet_of(lab) as fleet:
        ports = [
            fleet.run(lambda c: execute(c, "echo $SSH_CLIENT").stdout).values_by_host() for _ in range(2)
        ]
        assert ports[0] == ports[1]
        connection = fleet.connection("node1")
        connection.close()
        assert hostname(connection) == "node1"  # it opens again


def test_an_inventory_drives_fabric_tasks(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"\0\xff\n")

    @fabric_task
    def there_and_back(connection: Connection) -> bytes:
        connection.put(str(tmp_path / "there"), "copied")
        connection.get("copied", str(tmp_path / "back"))
        connection.run("rm copied", hide=True, in_stream=False)
        return (tmp_path / "back").read_bytes()

    with fleet_of(lab) as fleet:
        for _ in range(2):
            results = fleet.run_each(lambda host: there_and_back(host.fabric), {"node1": ()})
            assert results["node1"].value == b"\0\xff\n"
            connection = fleet.connection("node1")
            port = connection.fabric.run("echo $SSH_CLIENT", hide=True, in_stream=False).stdout
            assert port == execute(connection, "echo $SSH_CLIENT").stdout.decode(), "one connection for both"
            connection.close()


def test_no_more_hosts_at_once_than_the_fan_out(lab: Lab) -> None:
    lock = threading.Lock()
    two = threading.Barrier(2, timeout=PATIENCE)
    at_work, most = 0, 0

    def task(connection: HostConnection) -> None:
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        two.wait()
        time.sleep(0.1)  # a third would come now
        with lock:
            at_work -= 1

    with Fleet(hosts_of(lab), fanout=2) as fleet:
        assert fleet.run(task).ok
    assert most == 2


def test_a_bug_in_a_task_is_one_hosts_error_and_keeps_its_cause(lab: Lab) -> None:
    def task(connection: HostConnection) -> str:
        return "x" + 1 if connection.target.name == "node2" else "well"  # type: ignore[operator]

    with fleet_of(lab) as fleet:
        results = fleet.run(task)
    assert list(results.errors()) == ["node2"]
    error = results.errors()["node2"]
    assert error.phase == "command"
    assert isinstance(error.__cause__, TypeError)


# -- commands


def test_both_streams_are_drained(lab: Lab) -> None:
    script = "head -c 10000000 /dev/zero >&2; head -c 10000000 /dev/zero; echo last >&2; exit 3"
    with fleet_of(lab) as fleet:
        done = fleet.run_each(execute, {"node1": (script,)}).values_by_host()["node1"]
    assert (len(done.stdout), done.exit_code) == (10_000_000, 3)
    assert done.stderr.endswith("last\n")
    assert len(done.stderr) <= 1 << 16


def test_standard_input_is_streamed_while_output_comes(lab: Lab) -> None:
    chunks = [os.urandom(1 << 16) for _ in range(160)]
    digest = hashlib.sha256(b"".join(chunks)).hexdigest()
    taken = hashlib.sha256()
    with fleet_of(lab) as fleet:
        connection = fleet.connection("node1")
        done = execute(connection, "tee /dev/stderr", stdin=iter(chunks), on_stdout=taken.update)
    assert taken.hexdigest() == digest
    assert done.exit_code == 0


@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("nonesuch 2>&1", 127)])
def test_exit_codes(lab: Lab, command: str, code: int) -> None:
    with fleet_of(lab) as fleet:
        assert execute(fleet.connection("node1"), command).exit_code == code


def test_a_child_that_keeps_stdout_does_not_hold_us_up(lab: Lab) -> None:
    with fleet_of(lab) as fleet:
        done = execute(fleet.connection("node1"), f"sleep {HANG} & echo $!")
        assert done.exit_code == 0
        assert execute(fleet.connection("node1"), f"kill {int(done.stdout)}").exit_code == 0  # it was there


def test_a_command_past_its_limit(lab: Lab) -> None:
    with fleet_of(lab) as fleet, pytest.raises(HostError, match=r"^node1: command: not done within 0\.5 s$"):
        execute(fleet.connection("node1"), f"sleep {HANG}", timeout=0.5)


# -- logins that fail


def test_a_refused_port(make_lab: MakeLab) -> None:
    lab = make_lab()
    faults.stop_sshd(lab.host("node1"))
    address = lab.host("node1").spec.management
    assert error_of(fleet_of(lab)).message == f"node1: connect: refused by {address} port 22"


@pytest.mark.timing
def test_a_host_without_power_delays_nobody(make_lab: MakeLab) -> None:
    lab = make_lab()
    faults.power_off(lab.host("node1"))
    with fleet_of(lab, timeouts=Timeouts(connect=2)) as fleet:
        results = fleet.run(hostname)
    assert results["node2"].value == "node2"
    assert results["node2"].seconds < 1.5
    error = results.errors()["node1"]
    assert error.phase == "connect"
    assert "No route to host" in error.message or "within 2 s" in error.message


def test_packets_that_are_dropped(make_lab: MakeLab) -> None:
    lab = make_lab()
    faults.firewall(lab.host("node1"), "tcp dport 22 drop")
    address = lab.host("node1").spec.management
    error = error_of(fleet_of(lab, timeouts=Timeouts(connect=2)))
    assert error.message == f"node1: connect: no answer from {address} port 22 within 2 s"


def test_a_host_that_accepts_and_never_speaks(make_lab: MakeLab) -> None:
    lab = make_lab()
    faults.silence_sshd(lab.host("node1"))
    error = error_of(fleet_of(lab, timeouts=Timeouts(banner=2)))
    assert error.message == "node1: banner: no SSH banner within 2 s"


def test_a_wrong_key(lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "id_ed25519"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    error = error_of(fleet_of(lab, identity=str(key)))
    assert error.message == f"node1: authentication: no key accepted; tried {key}"
    assert error.fix == f"ssh-copy-id -i {key} -p 22 mnt@{lab.host('node1').spec.management}"


def test_a_missing_key(lab: Lab) -> None:
    error = error_of(fleet_of(lab, identity="/nowhere/key"))
    assert error.message == "node1: authentication: no key accepted; tried none; /nowhere/key: missing"


def test_too_many_keys_in_the_agent(
    make_lab: MakeLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab()
    socket = str(tmp_path / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.PIPE)
    try:
        assert agent.stdout is not None
        agent.stdout.readline()
        monkeypatch.setenv("SSH_AUTH_SOCK", socket)
        keys = [tmp_path / f"key{number}" for number in range(8)]
        for key in keys:
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", key.name, "-f", key], check=True
            )
        subprocess.run(["ssh-add", "-q", *keys, lab.directory / "identity"], check=True)
        error = error_of(fleet_of(lab, identity=None))
        assert "the host closed the connection after" in error.message
        assert "agent: key0" in error.message
        assert error.fix is not None
        assert "identity" in error.fix
        with fleet_of(lab) as fleet:  # the inventory names one: the agent is left out
            assert fleet.run(hostname).ok
    finally:
        agent.terminate()
        agent.communicate()


def test_a_login_storm_is_kept_within_max_startups(make_lab: MakeLab) -> None:
    lab = make_lab(count=1)
    faults.configure_sshd(lab.host("node1"), "MaxStartups 10:100:10\n")
    (host,) = hosts_of(lab)
    many = [replace(host, name=f"alias{number}") for number in range(40)]
    with Fleet(many) as fleet:
        assert fleet.run(hostname).errors() == {}


# -- host keys


def test_an_unknown_key_is_recorded_once(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "ssh" / "known_hosts"
    for _ in range(2):
        with fleet_of(lab, known_hosts=str(file)) as fleet:
            assert fleet.run(hostname).ok
    names = [line.split()[0] for line in file.read_text().splitlines()]
    assert sorted(names) == sorted(str(host.spec.management) for host in lab.hosts)
    # OpenSSH agrees with what was written.
    options = ["-oBatchMode=yes", "-oStrictHostKeyChecking=yes", f"-oUserKnownHostsFile={file}"]
    where = f"mnt@{lab.host('node2').spec.management}"
    command = ["ssh", "-F", "none", "-i", lab.directory / "identity", *options, where, "hostname"]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "node2\n"


def test_strict_refuses_what_is_unknown(lab: Lab, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    error = error_of(fleet_of(lab, known_hosts=str(file), host_keys="strict"))
    shown = fingerprint(lab.host("node1"))
    assert error.message == f"node1: host key: no key of this host is known; it shows ssh-ed25519 {shown}"
    assert not file.exists()


def test_a_changed_key_is_refused_before_anything_is_sent(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab()
    broken = lab.host("node1")
    file = tmp_path / "known_hosts"
    with fleet_of(lab, known_hosts=str(file)) as fleet:
        assert fleet.run(hostname).ok
    before = fingerprint(broken)
    new_key = (
        "rm /etc/ssh/ssh_host_ed25519_key*; ssh-keygen -q -t ed25519 -N '' -f /etc/ssh/ssh_host_ed25519_key"
    )
    assert broken.exec(["sh", "-c", new_key]).returncode == 0
    faults.configure_sshd(broken, "LogLevel VERBOSE\n")
    broken.exec(["sh", "-c", ": > /run/sshd.log"])
    number = next(
        index
        for index, line in enumerate(file.read_text().splitlines(), start=1)
        if line.startswith(f"{broken.spec.management} ")
    )
    error = error_of(fleet_of(lab, known_hosts=str(file)))
    log = broken.exec(["cat", "/run/sshd.log"]).stdout
    assert error.message == (
        f"node1: host key: changed: {file}:{number} has ssh-ed25519 {before}, "
        f"the host shows ssh-ed25519 {fingerprint(broken)}"
    )
    assert error.fix is not None
    assert error.fix.endswith("as it may be another machine; if so: mnt trust --replace")
    assert "mnt" not in log.replace("mnt-lab", ""), "the user's name was sent"
    assert "Connection from" in log


def test_a_known_key_of_another_type_is_asked_for(make_lab: MakeLab, tmp_path: Path) -> None:
    lab = make_lab()
    broken = lab.host("node1")
    broken.exec(["ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", "/etc/ssh/ssh_host_ecdsa_key"])
    faults.configure_sshd(broken, "HostKey /etc/ssh/ssh_host_ecdsa_key\n")
    kind, blob, *_ = broken.exec(["cat", "/etc/ssh/ssh_host_ecdsa_key.pub"]).stdout.split()
    file = tmp_path / "known_hosts"
    file.write_text(f"{broken.spec.management} {kind} {blob}\n")
    with fleet_of(lab, known_hosts=str(file), host_keys="strict") as fleet:
        assert fleet.run_each(hostname, {"node1": ()}).ok


# -- gateways


def behind(lab: Lab, gateway: str) -> list[Host]:
    """The hosts but node1, by way of it."""
    return [host for host in hosts_of(lab, gateway=gateway) if host.name != "node1"]


def test_one_transport_to_a_gateway_serves_all(lab: Lab) -> None:
    gateway = lab.host("node1")
    count = ["sh", "-c", "grep -c 'Accepted publickey' /run/sshd.log"]
    before = int(gateway.exec(count).stdout)
    with Fleet(behind(lab, f"mnt@{gateway.spec.management}:22")) as fleet:
        clients = fleet.run(lambda c: execute(c, "echo $SSH_CLIENT").stdout.split()[0].decode())
        assert set(clients.values_by_host().values()) == {str(gateway.spec.management)}
    assert int(gateway.exec(count).stdout) == before + 1


def test_several_hops(lab: Lab) -> None:
    hops = ",".join(str(lab.host(name).spec.management) for name in ("node1", "node2"))
    (host,) = [host for host in hosts_of(lab, gateway=hops) if host.name == "node3"]
    with Fleet([host]) as fleet:
        client = execute(fleet.connection("node3"), "echo $SSH_CLIENT").stdout.split()[0].decode()
    assert client == str(lab.host("node2").spec.management)


def test_proxy_jump_of_ssh_config(lab: Lab, tmp_path: Path) -> None:
    gateway = lab.host("node1").spec.management
    config = tmp_path / "config"
    config.write_text(
        f"Host gate\n HostName {gateway}\nHost {lab.host('node2').spec.management}\n ProxyJump gate\n"
    )
    with fleet_of(lab, config=str(config)) as fleet:
        client = execute(fleet.connection("node2"), "echo $SSH_CLIENT").stdout.split()[0].decode()
    assert client == str(gateway)


def test_a_gateway_that_fails_is_named_and_asked_once(make_lab: MakeLab) -> None:
    lab = make_lab(count=4)
    faults.stop_sshd(lab.host("node1"))
    address = lab.host("node1").spec.management
    with at_most(30), Fleet(behind(lab, str(address))) as fleet:
        errors = fleet.run(hostname).errors()
    assert [error.message for error in errors.values()] == [
        f"{name}: connect: gateway {address}: refused by {address} port 22" for name in errors
    ]
    assert len(errors) == 3


def test_a_host_that_the_gateway_cannot_reach(make_lab: MakeLab) -> None:
    lab = make_lab()
    faults.stop_sshd(lab.host("node2"))
    with Fleet(behind(lab, str(lab.host("node1").spec.management))) as fleet:
        (error,) = fleet.run(hostname).errors().values()
    assert error.message.startswith("node2: connect: the gateway cannot reach ")


# -- connections that end


def test_a_connection_lost_in_the_middle(make_lab: MakeLab) -> None:
    lab = make_lab()
    host = lab.host("node1")
    with fleet_of(lab) as fleet, pytest.raises(HostError, match=r"^node1: channel: .*connection lost"):
        while_it_sleeps(fleet.connection("node1"), lambda: faults.stop_sshd(host))


def while_it_sleeps(connection: HostConnection, act: Callable[[], None]) -> None:
    """Run a command that sleeps for long; `act` once it does. Raises HostError."""
    asleep = threading.Event()

    def wait_and_act() -> None:
        if asleep.wait(PATIENCE):
            act()

    actor = threading.Thread(target=wait_and_act)
    actor.start()
    try:
        sleep = f"echo asleep; exec sleep {HANG}"
        execute(connection, sleep, timeout=PATIENCE, on_stdout=lambda data: asleep.set())
    finally:
        actor.join()


def test_a_peer_that_shows_no_sign_of_life(make_lab: MakeLab) -> None:
    lab = make_lab()
    host = lab.host("node1")
    with fleet_of(lab, timeouts=Timeouts(keepalive=1)) as fleet:
        connection = fleet.connection("node1")
        assert execute(connection, "sleep 5", timeout=PATIENCE).exit_code == 0  # silence alone is no reason
        with pytest.raises(HostError, match="node1: channel: connection lost: no sign of life for 4 s"):
            while_it_sleeps(connection, lambda: faults.firewall(host, "tcp dport 22 drop"))


def test_ctrl_c_is_raised_at_once_and_closes_everything(lab: Lab) -> None:
    def interrupt(outcome: Outcome[object]) -> None:
        _thread.interrupt_main(signal.SIGINT)

    def task(connection: HostConnection) -> None:
        if connection.target.name != "node1":
            execute(connection, f"sleep {HANG}", timeout=PATIENCE)

    fleet = fleet_of(lab)
    with at_most(30), pytest.raises(KeyboardInterrupt):
        fleet.run(task, on_result=interrupt)
    assert not any(fleet.connection(host.name).is_connected for host in lab.hosts)
