"""SSH, NIC, GPU and port checks: healthy, and each way to fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fleets import findings, healthy, make_fleet, nic, only_finding, texts

from mnt.errors import HostError
from mnt.facts.host import Listener
from mnt.facts.system import GpuRow, Gpus
from mnt.inventory.model import Network, Ssh
from mnt.preflight.findings import Severity

# --- ssh -------------------------------------------------------------------------------------------------


def test_an_unreachable_host_is_one_finding_with_its_phase() -> None:
    error = HostError("node3", "connect", "connection refused", fix="start sshd there")
    finding = only_finding(make_fleet({"node3": error}), "ssh", "node3")
    assert finding.message == "connect: connection refused"
    assert finding.fix == "start sshd there"


def test_a_failure_without_a_way_out_gets_one() -> None:
    error = HostError("node1", "answer", "ended without an answer")
    assert (
        only_finding(make_fleet({"node1": error}), "ssh", "node1").fix == "ssh -v -o BatchMode=yes node1 true"
    )


def test_a_changed_host_key_has_a_check_of_its_own() -> None:
    error = HostError(
        "node2", "host key", "it has changed: SHA256:aa is now SHA256:bb", fix="ssh-keygen -R node2"
    )
    finding = only_finding(make_fleet({"node2": error}), "host-key", "node2")
    assert "SHA256:bb" in finding.found


def test_the_master_being_down_blames_no_worker() -> None:
    error = HostError("node1", "connect", "timed out")
    only_finding(make_fleet({"node1": error}, network=Network()), "ssh", "node1")


MESH: dict[str, str | None] = {"node2": None, "node3": None, "node4": None}


@pytest.mark.parametrize(
    ("failed", "blamed"),
    [
        ({}, []),
        ({"node3": "Permission denied (publickey)"}, ["ssh-mesh node1,node3 warn"]),
        (dict.fromkeys(MESH, "Permission denied (publickey)"), ["ssh-mesh node1 warn"]),
        (
            {"node2": "Connection refused", "node4": "timed out"},
            ["ssh-mesh node1,node2 warn", "ssh-mesh node1,node4 warn"],
        ),
    ],
)
def test_the_mesh(failed: dict[str, str], blamed: list[str]) -> None:
    assert texts(findings(make_fleet(mesh={**MESH, **failed}))) == blamed
    required = make_fleet(mesh={**MESH, **failed}, host={"ssh": Ssh(mesh="required")})
    assert texts(findings(required)) == [text.replace("warn", "fail") for text in blamed]


def test_a_login_of_the_master_is_a_matter_of_both() -> None:
    """The worker may refuse, and the master may lie; its words are marked as its own."""
    fleet = make_fleet(count=2, mesh={"node2": "Permission denied"})
    finding = only_finding(fleet, "ssh-mesh", "node1", "node2")
    assert finding.message == "node1 cannot log in to node2; node1 says: Permission denied"
    assert finding.found == "node1 says: Permission denied"


@pytest.mark.parametrize("liar", ["node1", "node3"])
def test_an_address_that_two_hosts_claim_names_both(liar: str) -> None:
    """The liar moves the training to another network, which has to be seen."""
    odd = {liar: {"interfaces": (*healthy(int(liar[-1])).interfaces, nic("dummy0", "10.0.0.2/32"))}}
    found = [each for each in findings(make_fleet(odd)) if each.check == "address-unique"]
    assert [(each.hosts, each.message) for each in found] == [
        (tuple(sorted(["node2", liar])), "several hosts claim the address 10.0.0.2")
    ]


@pytest.mark.parametrize("name", ["docker0 172.17.0.1/16", "lo 10.9.9.9/32", "idrac0 169.254.1.2/24"])
def test_addresses_that_each_host_may_have_for_itself(name: str) -> None:
    own = nic(*name.split(" "))
    every = {f"node{n}": {"interfaces": (*healthy(n).interfaces, own)} for n in range(1, 5)}
    assert [each for each in findings(make_fleet(every)) if each.check == "address-unique"] == []


# --- NIC -------------------------------------------------------------------------------------------------

LO = nic("lo", "127.0.0.1/8")


@pytest.mark.parametrize(
    ("interfaces", "message"),
    [
        ((LO, nic("eth2", "10.0.0.2/24", up=False, carrier=None)), "the training NIC eth2 is down"),
        ((LO, nic("eth2", "10.0.0.2/24", carrier=False)), "the training NIC eth2 has no link"),
        ((LO, nic("eth2", "192.168.0.2/24")), "no NIC has an address in 10.0.0.0/24"),
        (
            (LO, nic("eth2", "10.0.0.2/24"), nic("eth3", "10.0.0.3/24")),
            "several NICs have an address in 10.0.0.0/24",
        ),
    ],
)
def test_a_nic_that_will_not_do(interfaces: tuple[Any, ...], message: str) -> None:
    (finding,) = (
        each for each in findings(make_fleet({"node2": {"interfaces": interfaces}})) if each.check == "nic"
    )
    assert (finding.hosts, finding.message) == (("node2",), message)


def test_a_nic_whose_driver_tells_no_carrier_is_well() -> None:
    assert findings(make_fleet({"node2": {"interfaces": (LO, nic("e", "10.0.0.2/24", carrier=None))}})) == []


def test_a_nic_that_is_named_but_absent_lists_what_there_is() -> None:
    fleet = make_fleet()
    hosts = tuple(replace(host, nic="ib9") if host.name == "node2" else host for host in fleet.hosts)
    finding = only_finding(replace(fleet, hosts=hosts), "nic", "node2")
    assert finding.message == "there is no NIC ib9"
    assert finding.found == "eth2 10.0.0.2/24"


def test_a_masters_nic_problem_is_not_its_workers() -> None:
    nics = (LO, nic("eth1", "10.0.0.1/24"), nic("eth9", "10.0.0.9/24"))
    fleet = make_fleet({"node1": {"interfaces": nics}}, network=Network())
    assert texts(findings(fleet)) == ["nic node1 fail", "subnet-overlap node1 warn"]


def test_unknown_interfaces_are_no_verdict() -> None:
    assert findings(make_fleet({"node2": {"interfaces": ()}})) == []


# --- GPUs ------------------------------------------------------------------------------------------------


def gpus(count: int, tool: str | None = "/usr/bin/nvidia-smi", error: str | None = None) -> dict[str, Any]:
    return {"gpus": Gpus(tool, tuple(GpuRow(str(i), driver_version="580") for i in range(count)), error)}


@pytest.mark.parametrize(
    ("facts", "severity", "found"),
    [
        (gpus(7), Severity.FAIL, "7"),
        (gpus(9), Severity.WARN, "9"),
        (gpus(0, tool=None), Severity.FAIL, "0: there is no nvidia-smi"),
        (
            gpus(0, error="Driver/library version mismatch"),
            Severity.FAIL,
            "0: Driver/library version mismatch",
        ),
    ],
)
def test_gpus_that_do_not_match(facts: dict[str, Any], severity: Severity, found: str) -> None:
    fleet = make_fleet({"node3": facts}, everywhere=gpus(8), host={"gpus": 8})
    finding = only_finding(fleet, "gpu-count", "node3")
    assert (finding.severity, finding.found) == (severity, found)


@pytest.mark.parametrize(
    "facts", [gpus(0, tool=None), gpus(0, error="No devices were found"), {"gpus": None}]
)
def test_no_gpus_wanted_and_none_there_is_well(facts: dict[str, Any]) -> None:
    assert findings(make_fleet(everywhere=facts)) == []


# --- ports -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "found", "fix"),
    [
        (
            Listener("0.0.0.0", 1000, "ubuntu", 4242, "python train.py"),
            "pid 4242 of ubuntu: python train.py listens on 0.0.0.0",
            "kill 4242",
        ),
        (Listener("::", 1001, "eve"), "a process of eve listens on ::", "ask eve"),
        (Listener("::", 1001), "a process of uid 1001 listens on ::", "ask uid 1001"),
    ],
)
def test_a_port_that_is_taken_names_its_holder(listener: Listener, found: str, fix: str) -> None:
    finding = only_finding(make_fleet({"node1": {"listeners": (listener,)}}), "port-free", "node1")
    assert (finding.severity, finding.found) == (Severity.FAIL, found)
    assert fix in finding.fix
    on_worker = only_finding(make_fleet({"node2": {"listeners": (listener,)}}), "port-free", "node2")
    assert on_worker.severity is Severity.WARN


@pytest.mark.parametrize(("state", "shown"), [("running", " (running)"), ("lost", " (lost)"), (None, "")])
def test_a_port_that_a_job_of_the_users_holds(state: str | None, shown: str) -> None:
    listener = Listener(
        "10.0.0.1", 1000, "ubuntu", 45, "python -m torch..", job="20260101-x", job_state=state
    )
    finding = only_finding(make_fleet({"node1": {"listeners": (listener,)}}), "port-free", "node1")
    assert finding.message == f"port 29500 is in use by job 20260101-x{shown}"
    assert finding.fix.startswith("mnt stop 20260101-x -n node1, or wait for its end; or ")
    assert "45" not in finding.fix


def test_one_holder_that_listens_twice_is_two_findings_on_one_host() -> None:
    listeners = tuple(Listener(address, 0, "root", 7, "x") for address in ("0.0.0.0", "::"))
    assert texts(findings(make_fleet({"node1": {"listeners": listeners}}))) == ["port-free node1 fail"] * 2


def test_the_fixture_is_a_healthy_host() -> None:
    assert healthy(1).trains_with is not None
