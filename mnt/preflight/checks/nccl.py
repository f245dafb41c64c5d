"""Will NCCL use the network that was chosen for it?"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.rdma import RdmaFacts
from mnt.network.conflicts import conflicts
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import check, network_check

# The first kernel that shares memory between a GPU and an RDMA device by DMA-BUF.
_DMA_BUF_KERNEL = (5, 12)


@network_check("rdma")
def rdma(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Every host has what `network.mode` asks for: in mode rdma an active port, and on RoCE a usable GID.

    In mode auto nothing fails, for the job falls back to TCP; where other hosts have RDMA that is a warning,
    for it is seldom meant. `mnt net` shows what was decided, and why.
    """
    for host, node in network.nodes.items():
        if node.problem is not None:
            yield Problem(
                hosts=(host,),
                message=f"no training over RDMA: {node.problem.message}",
                found=", ".join(node.problem.listed) or "nothing",
                expected="an active RDMA port (inventory: network.mode is rdma)",
                fix=node.problem.fix,
            )
    if fleet.inventory.network.mode == "auto" and network.mode == "tcp":
        yield from _fallen_back(fleet, network.reason)


def _fallen_back(fleet: FleetFacts, reason: str) -> Iterator[Problem]:
    active = [
        host.name
        for host, facts in fleet.answers()
        if facts.rdma and any(port.active for device in facts.rdma.devices for port in device.ports)
    ]
    if active:
        yield Problem(
            hosts=tuple(active),
            message="there is RDMA, and jobs would train over TCP",
            found=reason,
            expected="an RDMA port that passes on every host",
            fix="mend what `mnt net` tells, or set network.mode in the inventory to tcp",
            severity=Severity.WARN,
        )


@network_check("gpudirect", severity=Severity.WARN)
def gpudirect(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Where jobs train over RDMA, the RDMA devices can read and write the GPUs' memory.

    By nvidia_peermem, or by DMA-BUF, which needs NVIDIA's open kernel modules and Linux 5.12 or newer.
    Without either every byte goes through the host's memory.
    """
    for host, facts in fleet.answers():
        node = network.nodes.get(host.name)
        gpus = facts.gpus is not None and facts.gpus.found
        if node and node.hcas and gpus and facts.rdma and not _shares(facts.rdma, facts.kernel):
            driver = "open" if facts.rdma.open_driver else "closed"
            yield Problem(
                hosts=(host.name,),
                message="RDMA devices cannot reach the GPUs' memory",
                found=f"no nvidia_peermem; Linux {facts.kernel} with NVIDIA's {driver} kernel modules",
                expected="nvidia_peermem, or NVIDIA's open kernel modules on Linux 5.12 or newer",
                fix="sudo modprobe nvidia_peermem",
            )


def _shares(rdma: RdmaFacts, kernel: str | None) -> bool:
    numbers = re.match(r"(\d+)\.(\d+)", kernel or "")
    recent = numbers is None or (int(numbers[1]), int(numbers[2])) >= _DMA_BUF_KERNEL
    return rdma.peermem or (rdma.open_driver is not False and recent)


@network_check("nccl-conf", severity=Severity.INFO)
def nccl_conf(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Nothing fights the network variables: no ~/.nccl.conf, no /etc/nccl.conf, no `env` of the inventory.

    The environment of a job wins over the files. So what `mnt` sets stays as it is, and that is only worth
    knowing; but a file that adds what makes those values void, a GID index or NCCL_IB_DISABLE, is a warning.
    On a home that hosts share, a file cannot say what differs between them.
    """
    for conflict in conflicts(network, fleet.hosts, fleet.facts):
        yield Problem(
            hosts=(conflict.host,),
            message=conflict.message,
            found=conflict.found,
            expected=conflict.expected,
            fix=conflict.fix,
            severity=Severity.WARN if conflict.harmful else None,
        )


@check("topo-file")
def topo_file(fleet: FleetFacts) -> Iterator[Problem]:
    """The topology file of `network.tuning.topo_file` is on the host.

    NCCL goes on without it, and says nothing.
    """
    for host, facts in fleet.answers():
        path = host.tuning.topo_file
        seen = facts.paths.get(path) if path else None
        if path and seen is not None and seen.kind != "file":
            yield Problem(
                hosts=(host.name,),
                message=f"there is no topology file {path}",
                found=seen.error or seen.kind,
                expected=f"a file {path} (inventory: network.tuning.topo_file)",
                fix=f"copy it there, or take topo_file out: ls -l {shlex.quote(path)}",
            )
