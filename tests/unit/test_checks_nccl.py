"""The checks of what NCCL will do with the network."""

from __future__ import annotations

from typing import Any

import pytest
from fleets import findings, make_fleet, only_finding
from network_facts import infiniband, roce, table

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import PathFacts
from mnt.facts.nccl import ConfFile
from mnt.facts.rdma import RdmaFacts
from mnt.facts.system import GpuRow, Gpus
from mnt.inventory.model import Network, Tuning
from mnt.preflight.findings import Finding, Severity


def found_by(check: str, fleet: FleetFacts) -> list[Finding]:
    return [finding for finding in findings(fleet) if finding.check == check]


IB = {"rdma": RdmaFacts((infiniband("mlx5_0"),))}
NONE = {"rdma": RdmaFacts()}
GPU = {"gpus": Gpus("/usr/bin/nvidia-smi", (GpuRow("0"),))}


def network(mode: str) -> Network:
    return Network(mode=mode, subnet="10.0.0.0/24")


def test_no_rdma_anywhere_is_well_unless_it_is_asked_for() -> None:
    assert found_by("rdma", make_fleet(everywhere=NONE)) == []
    assert found_by("rdma", make_fleet(everywhere=NONE, network=network("tcp"))) == []
    finding = found_by("rdma", make_fleet(everywhere=NONE, network=network("rdma")))[0]
    assert (finding.severity, finding.hosts) == (Severity.FAIL, ("node1", "node2", "node3", "node4"))


def test_the_one_host_without_an_active_port() -> None:
    down = {"rdma": RdmaFacts((infiniband("mlx5_0", state="DOWN"),))}
    finding = only_finding(
        make_fleet({"node3": down}, everywhere=IB, network=network("rdma")), "rdma", "node3"
    )
    assert finding.found == "mlx5_0 port 1 DOWN (Polling)"


def test_the_gids_that_are_there_are_listed() -> None:
    wrong = {"rdma": RdmaFacts((roce("mlx5_0", "eth1", table("eth1", "10.7.0.1")),))}
    fleet = make_fleet({"node1": wrong}, count=1, network=network("rdma"))
    assert "3: 10.7.0.1 RoCE v2 eth1" in only_finding(fleet, "rdma", "node1").found


def test_falling_back_to_tcp_is_told_to_those_who_have_rdma() -> None:
    fleet = make_fleet({"node3": NONE}, everywhere=IB, network=network("auto"))
    (finding,) = found_by("rdma", fleet)
    assert (finding.severity, finding.hosts) == (Severity.WARN, ("node1", "node2", "node4"))
    assert finding.found == "auto: node3: there is no RDMA device"


@pytest.mark.parametrize(
    ("facts", "warned"),
    [
        ({"kernel": "6.8.0", "rdma": RdmaFacts((infiniband("mlx5_0"),), open_driver=True)}, False),
        ({"kernel": "6.8.0", "rdma": RdmaFacts((infiniband("mlx5_0"),), open_driver=False)}, True),
        ({"kernel": "5.4.0", "rdma": RdmaFacts((infiniband("mlx5_0"),), open_driver=True)}, True),
        (
            {"kernel": "5.4.0", "rdma": RdmaFacts((infiniband("mlx5_0"),), peermem=True, open_driver=False)},
            False,
        ),
        (
            {"kernel": "5.4.0", "rdma": RdmaFacts((infiniband("mlx5_0"),), open_driver=False), "gpus": None},
            False,
        ),
        ({"kernel": "5.4.0", "rdma": RdmaFacts(open_driver=False)}, False),
    ],
)
def test_gpu_memory_for_rdma(facts: dict[str, Any], warned: bool) -> None:
    fleet = make_fleet(count=2, everywhere={**GPU, **facts})
    assert [finding.severity for finding in found_by("gpudirect", fleet)] == [Severity.WARN] * warned


@pytest.mark.parametrize(
    ("line", "severity"), [("NCCL_ALGO=Ring", Severity.INFO), ("NCCL_IB_DISABLE=1", Severity.WARN)]
)
def test_a_file_on_a_shared_home_is_one_finding(line: str, severity: Severity) -> None:
    conf = {"nccl_conf": (ConfFile("/home/ubuntu/.nccl.conf", line),)}
    (finding,) = found_by("nccl-conf", make_fleet(everywhere={**IB, **conf}))
    assert (finding.severity, finding.found, len(finding.hosts)) == (severity, line, 4)


@pytest.mark.parametrize(
    ("seen", "found"),
    [
        (PathFacts("file"), None),
        (PathFacts("missing", error="No such file or directory"), "No such file or directory"),
        (PathFacts("dir"), "dir"),
    ],
)
def test_the_topology_file(seen: PathFacts, found: str | None) -> None:
    path = "/etc/nccl/topo.xml"
    fleet = make_fleet(
        {"node2": {"paths": {path: seen}}},
        everywhere={"paths": {path: PathFacts("file")}},
        host={"tuning": Tuning(topo_file=path)},
    )
    assert [(each.hosts, each.found) for each in found_by("topo-file", fleet)] == (
        [(("node2",), found)] if found else []
    )
