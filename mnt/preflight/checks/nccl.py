"""Will NCCL use the network that `mnt` chose?"""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts, version_numbers
from mnt.facts.rdma import RdmaFacts
from mnt.inventory.model import Host
from mnt.network.conflicts import conflicts
from mnt.network.decision import NetworkDecision
from mnt.preflight.findings import Problem, Severity
from mnt.preflight.registry import host_check, network_check

# The first kernel with DMA-BUF between a GPU and an RDMA device.
_DMA_BUF_KERNEL = (5, 12)


@network_check("rdma")
def rdma(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Every host has what the mode requires: in mode rdma an active port, and on RoCE a usable GID.

    The mode is `network.mode`, or `--mode`. In mode auto nothing fails, because the job falls back to TCP. If
    some hosts have RDMA, the fallback is a warning, because it is rarely intended. `mnt net` shows the
    decision and its reason.
    """
    for host, node in network.nodes.items():
        if node.problem is not None:
            yield Problem(
                hosts=(host,),
                message=f"the host cannot train over RDMA: {node.problem.message}",
                found=", ".join(node.problem.candidates) or "nothing",
                expected=f"an active RDMA port ({network.reason})",
                fix=node.problem.fix,
            )
    if fleet.inventory.network.mode == "auto" and network.mode == "tcp":
        active = [
            host.name
            for host, facts in fleet.answers()
            if facts.rdma and any(port.active for device in facts.rdma.devices for port in device.ports)
        ]
        if active:
            yield Problem(
                hosts=tuple(active),
                message="the host has RDMA, but jobs would train over TCP",
                found=network.reason,
                expected="a usable RDMA port on every host",
                fix="fix the problem that `mnt net` shows, or set network.mode in the inventory to tcp",
                severity=Severity.WARN,
            )


@network_check("gpudirect", severity=Severity.WARN)
def gpudirect(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """If jobs train over RDMA, the RDMA devices can read and write the memory of the GPUs.

    This needs nvidia_peermem, or DMA-BUF with NVIDIA's open kernel modules and Linux 5.12 or newer. Without
    either, all data goes through the memory of the host.
    """
    for host, facts in fleet.answers():
        node = network.nodes.get(host.name)
        gpus = facts.gpus is not None and facts.gpus.found
        if node and node.hcas and gpus and facts.rdma and not _shares(facts.rdma, facts.kernel):
            driver = "open" if facts.rdma.open_driver else "closed"
            yield Problem(
                hosts=(host.name,),
                message="RDMA devices cannot access the memory of the GPUs",
                found=f"no nvidia_peermem; Linux {facts.kernel} with NVIDIA's {driver} kernel modules",
                expected="nvidia_peermem, or NVIDIA's open kernel modules on Linux 5.12 or newer",
                fix="sudo modprobe nvidia_peermem",
            )


def _shares(rdma: RdmaFacts, kernel: str | None) -> bool:
    numbers = version_numbers(kernel or "")
    recent = numbers is None or numbers >= _DMA_BUF_KERNEL
    return rdma.peermem or (rdma.open_driver is not False and recent)


@network_check("nccl-conf", severity=Severity.INFO)
def nccl_conf(fleet: FleetFacts, network: NetworkDecision) -> Iterator[Problem]:
    """Nothing conflicts with the network variables: ~/.nccl.conf, /etc/nccl.conf or the inventory's `env`.

    The environment of a job overrides the files, so the variables of `mnt` stay in force, and such a conflict
    is information, as is a variable that concerns none of them: NCCL_NVLS_ENABLE in a file is the choice of
    its administrator. But it is a warning if a file adds a variable that disables others, for example a GID
    index or NCCL_IB_DISABLE. If hosts share a home directory, one file cannot hold settings that differ per
    host.
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


@host_check("topo-file")
def topo_file(host: Host, facts: HostFacts) -> Iterator[Problem]:
    """The topology file of `network.tuning.topo_file` exists on the host.

    NCCL continues without it, and prints no warning.
    """
    path = host.tuning.topo_file
    state = facts.paths.get(path) if path else None
    if path and state is not None and state.kind != "file":
        yield Problem(
            message=f"there is no topology file {path}",
            found=state.error or state.kind,
            expected=f"a file {path} (inventory: network.tuning.topo_file)",
            fix=f"copy the file to {shlex.quote(path)}, or remove topo_file from the inventory",
        )
