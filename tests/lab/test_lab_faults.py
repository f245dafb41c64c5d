"""Each fault is what it says, and of one host only."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import faults
import pytest
from ssh_client import ssh
from waiting import PATIENCE

from mnt.lab.lab import Lab, LabHost


@pytest.fixture
def lab(make_lab: Callable[..., Lab]) -> Lab:
    return make_lab(count=2)


@pytest.fixture
def broken(lab: Lab) -> LabHost:
    return lab.host("node1")


@pytest.fixture(autouse=True)
def other_host_is_well(lab: Lab) -> Iterator[None]:
    yield
    assert ssh(lab, "node2", "hostname; ls -d /shared").stdout.split() == ["node2", "/shared"]


def connect(host: LabHost, port: int = 22, timeout: float = PATIENCE) -> socket.socket:
    return socket.create_connection((host.spec.management, port), timeout=timeout)


def test_power_off(lab: Lab, broken: LabHost) -> None:
    faults.power_off(broken)
    assert not broken.alive
    with pytest.raises(OSError, match=r"timed out|No route to host"):
        connect(broken, timeout=1)


def test_no_sshd(lab: Lab, broken: LabHost) -> None:
    faults.stop_sshd(broken)
    with pytest.raises(ConnectionRefusedError):
        connect(broken)
    assert broken.exec(["hostname"]).stdout == "node1\n"
    faults.start_sshd(broken)
    assert ssh(lab, "node1", "hostname").stdout == "node1\n"


def test_silent_sshd(broken: LabHost) -> None:
    faults.silence_sshd(broken)
    with connect(broken) as stream:
        stream.settimeout(1)
        with pytest.raises(TimeoutError):
            stream.recv(1)


def test_further_sshd(broken: LabHost) -> None:
    faults.start_sshd(broken, "-p", "2222", "-oPidFile=none")
    for port in (22, 2222):
        with connect(broken, port) as stream:
            assert stream.recv(4) == b"SSH-"


def test_configured_sshd(lab: Lab, broken: LabHost) -> None:
    faults.configure_sshd(broken, "ForceCommand echo forced\n")
    assert ssh(lab, "node1", "hostname").stdout == "forced\n"


def test_shared_is_not_mounted(lab: Lab, broken: LabHost) -> None:
    faults.unmount_shared(broken)
    assert ssh(lab, "node1", "grep -c ' /shared ' /proc/mounts; ls -d /shared").stdout == "0\n/shared\n"


def test_another_shell(lab: Lab, broken: LabHost) -> None:
    faults.set_shell(broken, "/bin/dash")
    assert ssh(lab, "node1", 'readlink "/proc/$$/exe"').stdout == "/usr/bin/dash\n"


def test_a_noisy_start_up_file(lab: Lab, broken: LabHost) -> None:
    faults.write_file(broken, ".bashrc", "echo noise\n", user=True)
    assert ssh(lab, "node1", "echo answer").stdout == "noise\nanswer\n"


def test_firewall(lab: Lab, broken: LabHost) -> None:
    faults.firewall(broken, "tcp dport 22 drop")
    with pytest.raises(TimeoutError):
        connect(broken, timeout=1)
