"""The network environment of a node: which variables, which values, and why. Pure.

Meanings of the variables: NCCL 2.30 user guide and source. `=` before a name makes NCCL match it exactly
(`eth` alone would match eth1 too); gloo takes plain names.
"""

from __future__ import annotations

from dataclasses import dataclass

from mnt.inventory.model import Network
from mnt.network.nic import NicChoice


@dataclass(frozen=True)
class Variable:
    name: str
    value: str
    reason: str


def network_environment(network: Network, nic: NicChoice) -> list[Variable]:
    """The variables that bind a node's collectives to its training NIC."""
    why = f"{nic.interface.name} {nic.address}: {nic.reason}"
    variables = [
        Variable("NCCL_SOCKET_IFNAME", f"={nic.interface.name}", why),
        Variable("GLOO_SOCKET_IFNAME", nic.interface.name, why),
    ]
    if network.mode == "tcp":
        variables.append(Variable("NCCL_IB_DISABLE", "1", "network.mode is tcp: sockets only"))
    else:
        variables += _rdma(network)
    return variables


def _rdma(network: Network) -> list[Variable]:
    """What the inventory says of RDMA; what it leaves open, NCCL finds by itself (GIDs since 2.21)."""
    rdma = network.rdma
    variables = []
    if rdma.devices:
        variables.append(
            Variable("NCCL_IB_HCA", "=" + ",".join(rdma.devices), "inventory: network.rdma.devices")
        )
    if rdma.gid_index != "auto":
        variables.append(
            Variable("NCCL_IB_GID_INDEX", str(rdma.gid_index), "inventory: network.rdma.gid_index")
        )
    if rdma.gdr_level is not None:
        variables.append(Variable("NCCL_NET_GDR_LEVEL", rdma.gdr_level, "inventory: network.rdma.gdr_level"))
    return variables
