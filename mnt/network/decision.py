"""The network of a job: its mode, and each node's NIC, RDMA ports and variables. Pure.

`auto` is rdma where every node of the job has an RDMA port that passes, and tcp where one has not: one job
speaks one language.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.rdma import INFINIBAND
from mnt.inventory.model import Host, Inventory
from mnt.network.env import rdma_environment, tcp_environment
from mnt.network.hca import Hca, RdmaProblem, Surroundings, choose_hcas
from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.network.roce import RocePorts, gid_variables
from mnt.network.variable import Variable

# None: the host did not say what it has.
Ports = tuple[Hca, ...] | RdmaProblem | None


@dataclass(frozen=True)
class NodeNetwork:
    """What a node of a job uses. Without a NIC, or with a problem, it has no variables."""

    nic: NicChoice | NicProblem
    hcas: tuple[Hca, ...] = ()
    variables: tuple[Variable, ...] = ()
    problem: RdmaProblem | None = None  # why it cannot train in this mode

    @property
    def waits_for(self) -> str | None:
        """The host whose NIC has to be settled first."""
        return self.nic.waits_for if isinstance(self.nic, NicProblem) else None

    @property
    def obstacle(self) -> tuple[str, str] | None:
        """Why the node cannot train, in one line, and the way out."""
        if isinstance(self.nic, NicProblem):
            listed = f" (there: {', '.join(self.nic.candidates)})" if self.nic.candidates else ""
            return f"training NIC: {self.nic.message}{listed}", self.nic.fix
        return None if self.problem is None else (f"RDMA: {self.problem}", self.problem.fix)


@dataclass(frozen=True)
class NetworkDecision:
    """Made once a command, of every host that told its interfaces."""

    mode: str  # tcp or rdma
    reason: str
    nodes: Mapping[str, NodeNetwork]  # in rank order

    def working(self) -> dict[str, NicChoice]:
        """The chosen NICs that are up and have link."""
        nics = {host: node.nic for host, node in self.nodes.items()}
        return {
            host: nic
            for host, nic in nics.items()
            if isinstance(nic, NicChoice) and nic.interface.up and nic.interface.carrier is not False
        }


def decide(fleet: FleetFacts) -> NetworkDecision:
    """Decide for the hosts of one job; those that did not tell their interfaces are left out."""
    inventory, facts = fleet.inventory, fleet.facts
    nics = choose(inventory, fleet.hosts, fleet.interfaces())
    known = [host for host in fleet.hosts if host.name in nics]
    ports = _ports(inventory, known, nics, facts)
    gids = _gids(inventory, known, nics, facts, ports)
    ports |= {name: told for name, told in gids.items() if isinstance(told, RdmaProblem)}
    mode, reason = decide_mode(inventory.network.mode, ports)
    nodes = {}
    for host in known:
        nic, found, told = nics[host.name], ports.get(host.name), gids.get(host.name, [])
        if isinstance(nic, NicProblem):
            nodes[host.name] = NodeNetwork(nic)
        elif mode == "tcp":
            nodes[host.name] = NodeNetwork(nic, variables=tuple(tcp_environment(nic, host.tuning, reason)))
        elif isinstance(found, RdmaProblem):
            nodes[host.name] = NodeNetwork(nic, problem=found)
        else:
            assert not isinstance(told, RdmaProblem)
            environment = rdma_environment(nic, found or (), host.rdma, host.tuning, told)
            nodes[host.name] = NodeNetwork(nic, found or (), tuple(environment))
    return NetworkDecision(mode, reason, nodes)


def decide_mode(told: str, ports: Mapping[str, Ports]) -> tuple[str, str]:
    """The mode, and why.

    Args:
        told: network.mode.
        ports: of every host that has a training NIC.
    """
    if told != "auto":
        return told, f"network.mode is {told}"
    for host, found in ports.items():
        if found is None:
            return "tcp", f"auto: {host} did not say what RDMA devices it has"
        if isinstance(found, RdmaProblem):
            return "tcp", f"auto: {host}: {found.message}"
    if not ports:
        return "tcp", "auto: no host has a training NIC"
    return "rdma", "auto: every node has an active RDMA port"


def _ports(
    inventory: Inventory,
    hosts: Sequence[Host],
    nics: Mapping[str, NicChoice | NicProblem],
    facts: Mapping[str, HostFacts],
) -> dict[str, Ports]:
    """The RDMA ports of every host that has a NIC."""
    ports: dict[str, Ports] = {}
    for host in hosts:
        nic, said = nics[host.name], facts.get(host.name)
        if isinstance(nic, NicProblem):
            continue
        if said is None or said.rdma is None:
            ports[host.name] = None
            continue
        around = Surroundings(nic, said.interfaces, inventory.network.subnet, host.exclude)
        ports[host.name] = choose_hcas(said.rdma, host.rdma, around)
    return _of_one_kind(ports)


def _of_one_kind(ports: Mapping[str, Ports]) -> dict[str, Ports]:
    """All nodes on InfiniBand or all on RoCE: the kind of most nodes, of the first where they are even."""
    kinds = {name: found[0].port.link_layer for name, found in ports.items() if isinstance(found, tuple)}
    if len(set(kinds.values())) < 2:
        return dict(ports)
    usual, _ = Counter(kinds.values()).most_common(1)[0]
    odd = {name: kind for name, kind in kinds.items() if kind != usual}
    return {
        name: RdmaProblem(
            f"its RDMA ports are {_kind(odd[name])}, and those of most nodes {_kind(usual)}",
            tuple(hca.label for hca in found) if isinstance(found, tuple) else (),
            "name devices of one kind in network.rdma.devices of this host, or leave it out",
        )
        if name in odd
        else found
        for name, found in ports.items()
    }


def _kind(link_layer: str | None) -> str:
    return "InfiniBand" if link_layer == INFINIBAND else "RoCE"


def _gids(
    inventory: Inventory,
    hosts: Sequence[Host],
    nics: Mapping[str, NicChoice | NicProblem],
    facts: Mapping[str, HostFacts],
    ports: Mapping[str, Ports],
) -> dict[str, list[Variable] | RdmaProblem]:
    """How NCCL is told of the GIDs, on the nodes whose ports are RoCE."""
    roce = {}
    for host in hosts:
        nic, found = nics[host.name], ports.get(host.name)
        if isinstance(nic, NicChoice) and isinstance(found, tuple) and found[0].gid is not None:
            roce[host.name] = RocePorts(nic, found, host.rdma.gid_index, facts[host.name].nccl_version)
    return gid_variables(roce, inventory.network.subnet)
