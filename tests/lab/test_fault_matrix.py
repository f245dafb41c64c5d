"""The fault matrix: each kind of fault on one of four hosts.

Preflight must name that host and the right check, no other host and no other check, and come back in time;
then, healed, it must be all green again. The default run takes a sample; `tox -e matrix` takes all.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import faults
import pytest
import sessions
import yaml
from waiting import at_most

from mnt.lab.lab import Lab, LabHost, LabRequest, down

RunMnt = Callable[..., subprocess.CompletedProcess[str]]
Break = Callable[[Lab, LabHost], AbstractContextManager[Any]]

PYTHON = "/usr/local/bin/train-python"
TORCH = "2.13.0+cpu"
SECONDS = 90  # 2 for hosts that answer, 10 for the phase in which one hangs; on a busy machine more


@dataclass(frozen=True)
class Fault:
    name: str
    check: str  # the one that must find it
    inject: Break
    host: str = "node2"
    severity: str = "fail"
    says: str = ""  # in the finding's message
    witness: str | None = None  # if only this host has seen it, which may be at fault too


def master_port_closed(lab: Lab, host: LabHost) -> AbstractContextManager[None]:
    return faults.firewalled(host, *faults.drop_ports(host, "29500"))


def master_lockout(lab: Lab, host: LabHost) -> AbstractContextManager[None]:
    return faults.sshd_configured(host, f"DenyUsers mnt@{lab.host('node1').spec.management}\n")


def overlap(lab: Lab, host: LabHost) -> AbstractContextManager[None]:
    training = lab.spec.training
    return faults.second_address(host, f"{training[200]}/{training.prefixlen}")


def loopback_name(lab: Lab, host: LabHost) -> AbstractContextManager[None]:
    """As Debian's installer writes it."""
    return faults.file_holds(host, "/etc/hosts", f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n")


CUT_OFF = "it reaches no other host"

# The first of these are the sample: one of each family.
SAMPLE = [
    Fault("no-shared", "storage-mount", lambda lab, host: faults.no_shared(host), "node3"),
    Fault(
        "firewall-all",
        "nic-reach",
        lambda lab, host: faults.firewalled(host, *faults.drop_all(host)),
        says=CUT_OFF,
    ),
    Fault(
        "firewall-port-range",
        "nic-reach",
        lambda lab, host: faults.firewalled(host, *faults.drop_ports(host, "1024-29000, 30000-65535")),
        "node4",
        says="the ports that NCCL and gloo use are closed",
    ),
    Fault(
        "other-torch",
        "torch-version",
        lambda lab, host: faults.other_package(host, "torch", "2.12.0+cpu", TORCH),
        says="torch is 2.12.0+cpu",
    ),
    Fault("nic-renamed", "nic", lambda lab, host: faults.nic_renamed(host), "node4", says="there is no NIC"),
    Fault("switch-mtu", "mtu", lambda lab, host: faults.switch_mtu(lab, host, 1400), says="are lost"),
    Fault("sshd-down", "ssh", lambda lab, host: faults.sshd_down(host), "node3", says="refused"),
]
REST = [
    Fault("another-shared", "storage-mount", lambda lab, host: faults.another_shared(host), "node4"),
    Fault(
        "firewall-one-way",
        "nic-reach",
        lambda lab, host: faults.firewalled(host, *faults.drop_incoming(host)),
        says="no other host can connect to it",
    ),
    Fault("firewall-master-port", "nic-reach", master_port_closed, "node1", says="port 29500 is closed"),
    Fault("firewall-port-of-a-worker", "nic-reach", master_port_closed, "node3", "warn", says="is closed"),
    Fault("partition", "nic-reach", lambda lab, host: faults.partitioned(lab, host), "node3", says=CUT_OFF),
    Fault("partition-of-the-master", "nic-reach", lambda lab, host: faults.partitioned(lab, host), "node1"),
    Fault("ssh-silent", "ssh", lambda lab, host: faults.ssh_silent(host), says="banner"),
    Fault("host-off", "ssh", lambda lab, host: faults.host_off(host), says="connect"),
    Fault("master-off", "ssh", lambda lab, host: faults.host_off(host), "node1"),
    Fault("master-locked-out", "ssh-mesh", master_lockout, "node3", severity="warn", witness="node1"),
    Fault(
        "slow-shell", "shell-slow", lambda lab, host: faults.start_up_file(host, "sleep 3\n"), severity="warn"
    ),
    Fault(
        "noisy-shell",
        "shell-noise",
        lambda lab, host: faults.start_up_file(host, "echo hello; echo hello >&2\n"),
        severity="warn",
    ),
    Fault(
        "wrong-interpreter",
        "python-version",
        lambda lab, host: faults.link_leads_to(host, PYTHON, "/bin/false"),
        "node4",
    ),
    Fault(
        "other-os",
        "os-release",
        lambda lab, host: faults.file_holds(host, "/etc/os-release", "ID=ubuntu\nVERSION_ID=24.04\n"),
    ),
    Fault("nic-down", "nic", lambda lab, host: faults.nic_down(host), "node3", says="is down"),
    Fault("nic-unplugged", "nic", lambda lab, host: faults.nic_unplugged(lab, host), says="has no link"),
    Fault("mtu", "mtu", lambda lab, host: faults.nic_mtu(host, 1400), severity="warn", says="is 1400"),
    Fault("two-nics-in-one-subnet", "subnet-overlap", overlap, severity="warn"),
    Fault(
        "stray-route",
        "route",
        lambda lab, host: faults.stray_route(host, lab.host("node4")),
        says="leaves through mgmt0",
    ),
    Fault(
        "clock",
        "clock",
        lambda lab, host: faults.sshd_configured(host, faults.clock_off(host, "+90s")),
        "node3",
    ),
    Fault(
        "disk-full", "local-space", lambda lab, host: faults.small_disk(host, "/tmp", "4m"), says="is small"
    ),
    Fault("loopback-name", "hostname-loopback", loopback_name, severity="warn"),
    Fault("port-taken", "port-free", lambda lab, host: faults.port_taken(host, 29500), "node1"),
    Fault("port-of-a-worker", "port-free", lambda lab, host: faults.port_taken(host, 29500), severity="warn"),
]


@contextmanager
def four_hosts() -> Iterator[Lab]:
    """Four hosts that all have the same torch, by its metadata, and an interpreter that can be swapped."""
    name = sessions.new_name()
    try:
        lab = Lab.up(LabRequest(name=name, count=4), python=PYTHON)
        for host in lab.hosts:
            faults.install(host, "torch", TORCH)
            assert host.exec(["ln", "-s", "/usr/bin/python3", PYTHON]).returncode == 0
        yield lab
    finally:
        down(name)


@pytest.fixture(scope="module")
def hosts(lab_support: None) -> Iterator[Lab]:
    with four_hosts() as lab:
        yield lab


@pytest.fixture(scope="module")
def inventory(hosts: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The lab's, with each host's NIC by its name: a renamed one is then gone."""
    document = yaml.safe_load(hosts.inventory_path.read_text())
    for host in hosts.hosts:
        document["hosts"][host.name]["nic"] = host.spec.nic
    path: Path = tmp_path_factory.mktemp("matrix") / "inventory.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


@pytest.fixture
def preflight(run_mnt: RunMnt, inventory: Path) -> Callable[[], dict[str, Any]]:
    def run() -> dict[str, Any]:
        done = run_mnt("preflight", "--json", "-i", str(inventory))
        assert done.returncode in (0, 1), done.stderr
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    return run


@pytest.mark.parametrize(
    "fault",
    [
        *(pytest.param(fault, id=fault.name) for fault in SAMPLE),
        *(pytest.param(fault, id=fault.name, marks=pytest.mark.matrix) for fault in REST),
    ],
)
def test_a_fault_is_found_where_it_is_and_nowhere_else(
    hosts: Lab, preflight: Callable[[], dict[str, Any]], fault: Fault
) -> None:
    with fault.inject(hosts, hosts.host(fault.host)), at_most(SECONDS):
        document = preflight()
    findings = [(each["check"], each["severity"], each["hosts"]) for each in document["findings"]]
    assert findings == [(fault.check, fault.severity, [*filter(None, [fault.witness]), fault.host])], (
        document["findings"]
    )
    assert fault.says in document["findings"][0]["message"]
    assert document["ok"] == (fault.severity != "fail")

    assert preflight()["findings"] == []
