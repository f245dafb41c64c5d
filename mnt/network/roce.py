"""The variables that select the GID of RoCE ports, for all nodes of a job together. Pure.

NCCL 2.21 and newer finds the GID by an address range, which can be the same on every node. Older versions
take one index for all ports of a process, which is determined here for each node. InfiniBand ignores all of
this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mnt.network import gid
from mnt.network.env import Variable
from mnt.network.hca import Hca, RdmaProblem
from mnt.network.nic import NicChoice


@dataclass(frozen=True)
class RocePorts:
    """The RoCE ports of a node, and what decides how their GIDs are selected."""

    nic: NicChoice
    hcas: Sequence[Hca]  # each has a GID
    gid_index: int | str  # network.rdma.gid_index: a number, or `auto`
    nccl_version: tuple[int, ...] | None  # None: unknown


def gid_variables(
    nodes: Mapping[str, RocePorts], subnet: str | None
) -> dict[str, list[Variable] | RdmaProblem]:
    """The variables of each node, or why no variables can select its GIDs.

    Args:
        nodes: all nodes of the job that have RoCE ports.
        subnet: network.subnet, the first choice for the range.
    """
    versions = [node.nccl_version for node in nodes.values() if node.nccl_version]
    old = min(versions, default=gid.FINDS_GIDS) < gid.FINDS_GIDS
    automatic = [node for node in nodes.values() if node.gid_index == "auto"]
    ports = [(hca.port.gids, hca.gid) for node in automatic for hca in node.hcas if hca.gid]
    networks = dict.fromkeys(str(node.nic.network) for node in automatic)
    preferred = [*([subnet] if subnet else []), *networks]
    found = None if old or not ports else gid.address_range(ports, preferred)
    return {
        name: _by_index(node, old)
        if old or node.gid_index != "auto" or found is None
        else list(_by_range(node, found))
        for name, node in nodes.items()
    }


def _by_range(node: RocePorts, address_range: str) -> Iterator[Variable]:
    if address_range != gid.EVERYWHERE:
        yield Variable("NCCL_IB_ADDR_RANGE", address_range, f"picks {_listed(node)} (NCCL 2.21 and newer)")
    yield Variable("NCCL_IB_ADDR_FAMILY", "AF_INET", f"picks {_listed(node)} (NCCL 2.21 and newer)")
    yield Variable("NCCL_IB_ROCE_VERSION_NUM", "2", "RoCE v2: the version that can be routed")


def _by_index(node: RocePorts, old: bool) -> list[Variable] | RdmaProblem:
    """One index for all ports of the node."""
    indices = {hca.gid.index for hca in node.hcas if hca.gid}
    if len(indices) == 1:
        (index,) = indices
        if node.gid_index != "auto":
            reason = "inventory: network.rdma.gid_index"
        elif old:
            reason = f"{_listed(node)}; NCCL before 2.21 takes only an index"
        else:
            reason = f"{_listed(node)}; no address range makes NCCL find it"
        return [Variable("NCCL_IB_GID_INDEX", str(index), reason)]
    return RdmaProblem(
        "the devices need different GID indices, but NCCL takes one index for all devices",
        tuple(f"{hca.label} {hca.gid}" for hca in node.hcas),
        "upgrade NCCL to 2.21 or newer, or set network.rdma.devices to devices of one index"
        if old
        else "put all training addresses in one subnet, or set network.rdma.devices to devices of one index",
    )


def _listed(node: RocePorts) -> str:
    return ", ".join(f"GID {hca.gid.index} of {hca.label} ({hca.gid.ipv4})" for hca in node.hcas if hca.gid)
