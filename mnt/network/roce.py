"""How NCCL is told which GID to use on RoCE ports, on all nodes of a job at once. Pure.

From 2.21 on NCCL finds the GID itself by an address range, which can be the same on every node. Before, it
takes one index for all ports of a process, found here on each node. InfiniBand ignores all of it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mnt.network import gid
from mnt.network.hca import Hca, RdmaProblem
from mnt.network.nic import NicChoice
from mnt.network.variable import Variable


@dataclass(frozen=True)
class RocePorts:
    """A node's RoCE ports, with what decides how NCCL is told of them."""

    nic: NicChoice
    hcas: Sequence[Hca]  # each has a GID
    told: int | str  # network.rdma.gid_index
    nccl: tuple[int, ...] | None  # version; None: not known


def gid_variables(
    nodes: Mapping[str, RocePorts], subnet: str | None
) -> dict[str, list[Variable] | RdmaProblem]:
    """The variables for each node, or why NCCL cannot be told.

    Args:
        nodes: all nodes of the job that have RoCE ports.
        subnet: network.subnet, the first choice for the range.
    """
    old = min((node.nccl for node in nodes.values() if node.nccl), default=gid.FINDS_GIDS) < gid.FINDS_GIDS
    searched = [node for node in nodes.values() if node.told == "auto"]
    wanted = [(hca.port.gids, hca.gid) for node in searched for hca in node.hcas if hca.gid]
    found = None if old or not wanted else gid.address_range(wanted, _preferred(searched, subnet))
    return {
        name: _by_index(node, old)
        if old or node.told != "auto" or found is None
        else list(_by_range(node, found))
        for name, node in nodes.items()
    }


def _preferred(nodes: Sequence[RocePorts], subnet: str | None) -> list[str]:
    """The networks that a person would name: the training subnet, and those of the nodes' NICs."""
    networks = [subnet] if subnet else []
    for node in nodes:
        for address in node.nic.interface.ipv4:
            if address.split("/")[0] == node.nic.address:
                networks.append(str(ipaddress.ip_network(address, strict=False)))
    return list(dict.fromkeys(networks))


def _by_range(node: RocePorts, found: str) -> Iterator[Variable]:
    if found != gid.EVERYWHERE:
        yield Variable("NCCL_IB_ADDR_RANGE", found, f"picks {_listed(node)} (NCCL 2.21 and newer)")
    yield Variable("NCCL_IB_ADDR_FAMILY", "AF_INET", f"picks {_listed(node)} (NCCL 2.21 and newer)")
    yield Variable("NCCL_IB_ROCE_VERSION_NUM", "2", "RoCE v2: the version that can be routed")


def _by_index(node: RocePorts, old: bool) -> list[Variable] | RdmaProblem:
    """One index for all ports of the node."""
    indices = {hca.gid.index for hca in node.hcas if hca.gid}
    if len(indices) == 1:
        (index,) = indices
        if node.told != "auto":
            reason = "inventory: network.rdma.gid_index"
        elif old:
            reason = f"{_listed(node)}; NCCL before 2.21 takes only an index"
        else:
            reason = f"{_listed(node)}; no address range makes NCCL find it"
        return [Variable("NCCL_IB_GID_INDEX", str(index), reason)]
    return RdmaProblem(
        "the devices need different GID indices, and NCCL takes one for all",
        tuple(f"{hca.label} {hca.gid}" for hca in node.hcas),
        "upgrade NCCL to 2.21 or newer, or name devices with one index in network.rdma.devices"
        if old
        else "give the training addresses one subnet, or name devices with one index in network.rdma.devices",
    )


def _listed(node: RocePorts) -> str:
    return ", ".join(f"GID {hca.gid.index} of {hca.label} ({hca.gid.ipv4})" for hca in node.hcas if hca.gid)
