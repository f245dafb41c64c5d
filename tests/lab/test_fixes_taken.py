"""The fix of each kind of fault of the fault matrix is done word for word; then preflight is green.

The faults are those of `test_fault_matrix`. `ELSEWHERE` names the tests that do so already. `NOT_HERE` has
those that a lab cannot do, and why; so it is with the checks of GPUs, RDMA devices and drivers, whose faults
no lab can have either, and with `neighbour-table`, `kernel` and `swappiness`: the hosts of a lab have one
kernel, which is that of the machine.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import faults
import pytest
import yaml
from fixes import open_with_nft, put_at_the_top, run_as_user
from ports import free_port
from setups import allow_sudo
from test_fault_matrix import REST, SAMPLE, Fault, four_hosts

from mnt.lab.lab import Lab, LabHost

RunMnt = Callable[..., subprocess.CompletedProcess[str]]

ELSEWHERE = {
    "no-shared": "test_nfs.test_the_fix_leads_out (a tmpfs cannot be mounted a second time elsewhere)",
    "another-shared": "test_preflight_fixes.test_storage_links_and_memory",
    "other-torch": "test_setup_mends.test_no_environment_and_then_other_versions",
    "nic-down": "test_preflight_fixes.test_a_command_to_paste",
    "mtu": "test_preflight_fixes.test_storage_links_and_memory",
    "loopback-name": "test_preflight_fixes.test_a_name_that_leads_to_the_loopback_address",
}
NOT_HERE = {
    "switch-mtu": "it is the switch's",
    "partition": "a cable, or a VLAN of the switch",
    "partition-of-the-master": "a cable, or a VLAN of the switch",
    "nic-unplugged": "a cable",
    "sshd-down": "the way in is closed: it takes a console",
    "ssh-silent": "the way in is closed: it takes a console",
    "host-off": "a power switch",
    "master-off": "a power switch",
    "clock": "time namespaces do not cover the wall clock: the time is that of each process, by faketime(1)",
}


@dataclass
class Site:
    """A lab, an inventory that a test may edit, and what preflight says."""

    lab: Lab
    file: Path
    run_mnt: RunMnt
    options: list[str] = field(default_factory=list)  # that a fix adds to the command

    def preflight(self) -> list[dict[str, Any]]:
        done = self.run_mnt("preflight", "--json", "-i", str(self.file), *self.options)
        assert done.returncode in (0, 1), done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)["findings"]
        return found

    def edit(self, *keys: str, value: Any) -> None:
        document = inner = yaml.safe_load(self.file.read_text())
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = value
        self.file.write_text(yaml.safe_dump(document, sort_keys=False))


Take = Callable[[Site, LabHost, str], None]


def on_the_host(take: Callable[[LabHost, str], Any]) -> Take:
    return lambda site, host, fix: take(host, fix)


def after(words: str, *, before: str = "") -> Take:
    """The command that follows these words of the fix, and ends before those."""

    def take(site: Site, host: LabHost, fix: str) -> None:
        _, found, command = fix.partition(words)
        assert found, fix
        run_as_user(host, command.partition(before)[0] if before else command)

    return take


def set_nic(site: Site, host: LabHost, fix: str) -> None:
    match = re.fullmatch(r"set `nic` of (\S+) in the inventory to the one in \S+: (\S+)", fix)
    assert match is not None, fix
    site.edit("hosts", match[1], "nic", value=match[2])


def set_python(site: Site, host: LabHost, fix: str) -> None:
    match = re.fullmatch(r".*set `python` of the host in the inventory, for example to (\S+) \(.*\)", fix)
    assert match is not None, fix
    site.edit("hosts", host.name, "python", value=match[1])


def set_master_port(site: Site, host: LabHost, fix: str) -> None:
    assert "; or set network.master_port to another port; " in fix
    site.edit("network", "master_port", value=free_port())


def leave_out(site: Site, host: LabHost, fix: str) -> None:
    assert fix.endswith(", or leave the host out: -x HOST")
    site.options += ["-x", host.name]


def move_to_another_subnet(site: Site, host: LabHost, fix: str) -> None:
    assert fix.startswith("move one to another subnet, ")
    address = site.lab.spec.training[200]
    run_as_user(host, f"sudo ip addr del {address}/{site.lab.spec.training.prefixlen} dev mgmt0")
    run_as_user(host, "sudo ip addr add 198.51.100.9/24 dev mgmt0")


def keep_both(site: Site, host: LabHost, fix: str) -> None:
    match = re.search(r"or keep both: (.*); then leave this check out: (.*)", fix)
    assert match is not None, fix
    run_as_user(host, match[1])
    site.options += match[2].split()
    peer = site.lab.host("node1").spec.training
    for own in (host.spec.training, site.lab.spec.training[200]):
        shown = run_as_user(host, f"ip route get {peer} from {own}")
        assert f"dev {host.spec.nic} " in shown


def let_the_master_in(site: Site, host: LabHost, fix: str) -> None:
    """The hosts have the keys that `mnt ssh-setup` makes; what shuts the master out is sshd's rule."""
    assert f"if {host.name} refuses its key: AllowUsers, DenyUsers" in fix
    run_as_user(
        host,
        "sudo sh -c 'sed -i /DenyUsers/d /etc/ssh/sshd_config.d/test.conf; kill -HUP $(cat /run/sshd.pid)'",
    )


# The ways out that a fix names, by the fault. The first two are the sample.
WAYS: dict[str, list[Take]] = {
    "firewall-port-range": [on_the_host(open_with_nft)],
    "nic-renamed": [set_nic],
    "noisy-shell": [on_the_host(put_at_the_top)],
    "firewall-all": [on_the_host(open_with_nft)],
    "firewall-one-way": [on_the_host(open_with_nft)],
    "firewall-master-port": [on_the_host(open_with_nft)],
    "firewall-port-of-a-worker": [on_the_host(open_with_nft)],
    "slow-shell": [on_the_host(put_at_the_top)],
    "wrong-interpreter": [set_python],
    "other-os": [leave_out],
    "two-nics-in-one-subnet": [move_to_another_subnet, keep_both],
    "stray-route": [after("or until the next boot: ")],
    "disk-full": [after("if it is a tmpfs (findmnt /tmp): ")],
    "port-taken": [after("if it is a leftover: ", before="; or "), set_master_port],
    "port-of-a-worker": [after("if it is a leftover: ", before="; or ")],
    "master-locked-out": [let_the_master_in],
}
FAULTS = {fault.name: fault for fault in (*SAMPLE, *REST)}
_SAMPLE = ("firewall-port-range", "nic-renamed")
_CLEAN = """
    ip addr del 198.51.100.9/24 dev mgmt0
    ip rule del table 213; ip route flush table 213
    sysctl -w net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.all.arp_announce=0
    for peer in $(ip -4 route show scope link | grep -v / | cut -d" " -f1); do ip route del $peer; done
    true
"""


def test_every_fault_has_its_place() -> None:
    assert sorted([*ELSEWHERE, *NOT_HERE, *WAYS]) == sorted(FAULTS)


@pytest.fixture(scope="module")
def lab(lab_support: None) -> Iterator[Lab]:
    """As that of the fault matrix, with a user who may use sudo."""
    with four_hosts() as lab:
        allow_sudo(lab)
        yield lab


@pytest.fixture
def site(lab: Lab, run_mnt: RunMnt, tmp_path: Path) -> Site:
    site = Site(lab, tmp_path / "inventory.yaml", run_mnt)
    document = yaml.safe_load(lab.inventory_path.read_text())
    for host in lab.hosts:
        document["hosts"][host.name]["nic"] = host.spec.nic
    site.file.write_text(yaml.safe_dump(document, sort_keys=False))
    return site


@contextmanager
def injected(
    lab: Lab, host: LabHost, fault: Callable[[Lab, LabHost], AbstractContextManager[Any]]
) -> Iterator[None]:
    """The fault; what the fix has mended already need not heal."""
    with contextlib.ExitStack() as opened:
        with contextlib.ExitStack() as fails:
            fails.enter_context(fault(lab, host))
            opened.push(fails.pop_all())
        try:
            yield
        finally:
            with contextlib.suppress(AssertionError):
                opened.close()
            host.exec(["sh", "-c", _CLEAN])


def lead_out(site: Site, fault: Fault, take: Take) -> None:
    host = site.lab.host(fault.host)
    with injected(site.lab, host, fault.inject):
        (finding,) = site.preflight()
        assert finding["check"] == fault.check
        take(site, host, finding["fix"])
        assert site.preflight() == [], finding["fix"]


@pytest.mark.parametrize(
    ("name", "number"),
    [
        pytest.param(
            name, number, id=name + "-again" * number, marks=[] if name in _SAMPLE else pytest.mark.matrix
        )
        for name, ways in WAYS.items()
        for number in range(len(ways))
    ],
)
def test_the_fix_leads_out(site: Site, name: str, number: int) -> None:
    lead_out(site, FAULTS[name], WAYS[name][number])


# --- kinds beyond the matrix -----------------------------------------------------------------------------


@contextmanager
def no_way_out(host: LabHost, ports: str) -> Iterator[None]:
    """Its firewall lets the host open no connection to these ports over the training NIC."""
    opening = "tcp flags & (syn | ack) == syn"
    rules = (
        "add table inet test; add chain inet test output { type filter hook output priority 0; };"
        f"add rule inet test output oifname {host.spec.nic} {opening} tcp dport {{ {ports} }} drop"
    )
    assert host.exec(["nft", rules]).returncode == 0
    try:
        yield
    finally:
        host.exec(["nft", "delete table inet test"])


@contextmanager
def other_shell(host: LabHost, shell: str, file: str, text: str) -> Iterator[None]:
    before = host.exec(["getent", "passwd", "mnt"]).stdout.strip().rpartition(":")[2]
    faults.write_file(host, file, text, user=True)
    faults.set_shell(host, shell)
    try:
        yield
    finally:
        faults.set_shell(host, before)
        host.exec(["rm", "-f", file], user=True)


BEYOND = [
    Fault("nothing-out", "nic-reach", lambda lab, host: no_way_out(host, "1-65535")),
    Fault("no-range-out", "nic-reach", lambda lab, host: no_way_out(host, "1024-29000, 30000-65535")),
    Fault(
        "zsh", "shell-noise", lambda lab, host: other_shell(host, "/usr/bin/zsh", ".zshenv", "echo hello\n")
    ),
]
TAKES: dict[str, Take] = {"nic-reach": on_the_host(open_with_nft), "shell-noise": on_the_host(put_at_the_top)}


@pytest.mark.matrix
@pytest.mark.parametrize("fault", BEYOND, ids=lambda fault: fault.name)
def test_beyond_the_matrix(site: Site, fault: Fault) -> None:
    if fault.name == "zsh" and site.lab.host(fault.host).exec(["test", "-x", "/usr/bin/zsh"]).returncode:
        pytest.skip("no zsh")
    lead_out(site, fault, TAKES[fault.check])
