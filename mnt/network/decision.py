"""The network of a job: its mode, and each node's NIC, RDMA ports and variables. Pure.

Mode `auto` becomes rdma if every node of the job has a usable RDMA port. Otherwise it becomes tcp on all
nodes, because all nodes of a job must use the same transport.
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
from mnt.network.hca import Hca, HostContext, RdmaProblem, choose_hcas
from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.network.roce import RocePorts, gid_variables
from mnt.network.variable import Variable

# None: the host did not report its RDMA devices.
Ports = tuple[Hca, ...] | RdmaProblem | None


@dataclass(frozen=True)
class NodeNetwork:
    """The network of one node of a job. A node without a NIC, or with a problem, has no variables."""

    nic: NicChoice | NicProblem
    hcas: tuple[Hca, ...] = ()
    variables: tuple[Variable, ...] = ()
    problem: RdmaProblem | None = None  # why the node cannot train in this mode

    @property
    def waits_for(self) -> str | None:
        """The host whose NIC must be decided first; None: no other host."""
        return self.nic.waits_for if isinstance(self.nic, NicProblem) else None

    @property
    def obstacle(self) -> tuple[str, str] | None:
        """Why the node cannot train, in one line, and the fix; None: it can."""
        if isinstance(self.nic, NicProblem):
            listed = f" (found: {', '.join(self.nic.candidates)})" if self.nic.candidates else ""
            return f"training NIC: {self.nic.message}{listed}", self.nic.fix
        return None if self.problem is None else (f"RDMA: {self.problem}", self.problem.fix)


@dataclass(frozen=True)
class NetworkDecision:
    """Made once per command, for every host that reported its interfaces."""

    mode: str  # tcp or rdma
    reason: str
    nodes: Mapping[str, NodeNetwork]  # in rank order

    def working(self) -> dict[str, NicChoice]:
        """The chosen NICs that are up and have a link, by host."""
        nics = {host: node.nic for host, node in self.nodes.items()}
        return {
            host: nic
            for host, nic in nics.items()
            if isinstance(nic, NicChoice) and nic.interface.up and nic.interface.carrier is not False
        }


def decide(fleet: FleetFacts) -> NetworkDecision:
    """Decide for the hosts of one job; hosts that did not report their interfaces are left out."""
    inventory, facts = fleet.inventory, fleet.facts
    nics = choose(inventory, fleet.hosts, fleet.interfaces())
    known = [host for host in fleet.hosts if host.name in nics]
    ports = _ports(inventory, known, nics, facts)
    gids = _gids(inventory, known, nics, facts, ports)
    ports |= {name: problem for name, problem in gids.items() if isinstance(problem, RdmaProblem)}
    mode, reason = decide_mode(inventory.network.mode, ports)
    nodes = {}
    for host in known:
        nic, hcas, gid_settings = nics[host.name], ports.get(host.name), gids.get(host.name, [])
        if isinstance(nic, NicProblem):
            nodes[host.name] = NodeNetwork(nic)
        elif mode == "tcp":
            nodes[host.name] = NodeNetwork(nic, variables=tuple(tcp_environment(nic, host.tuning, reason)))
        elif isinstance(hcas, RdmaProblem):
            nodes[host.name] = NodeNetwork(nic, problem=hcas)
        else:
            assert not isinstance(gid_settings, RdmaProblem)
            environment = rdma_environment(nic, hcas or (), host.rdma, host.tuning, gid_settings)
            nodes[host.name] = NodeNetwork(nic, hcas or (), tuple(environment))
    return NetworkDecision(mode, reason, nodes)


def decide_mode(configured: str, ports: Mapping[str, Ports]) -> tuple[str, str]:
    """The mode (tcp or rdma), and the reason for it.

    Args:
        configured: `network.mode` of the inventory.
        ports: the RDMA ports of every host that has a training NIC.
    """
    if configured != "auto":
        return configured, f"network.mode is {configured}"
    for host, hcas in ports.items():
        if hcas is None:
            return "tcp", f"auto: {host} did not report its RDMA devices"
        if isinstance(hcas, RdmaProblem):
            return "tcp", f"auto: {host}: {hcas.message}"
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
        nic, known = nics[host.name], facts.get(host.name)
        if isinstance(nic, NicProblem):
            continue
        if known is None or known.rdma is None:
            ports[host.name] = None
            continue
        context = HostContext(nic, known.interfaces, inventory.network.subnet, host.exclude)
        ports[host.name] = choose_hcas(known.rdma, host.rdma, context)
    return _of_one_kind(ports)


def _of_one_kind(ports: Mapping[str, Ports]) -> dict[str, Ports]:
    """Allow one kind of ports only, InfiniBand or RoCE: that of most nodes; in a tie, of the first node."""
    kinds = {name: hcas[0].port.link_layer for name, hcas in ports.items() if isinstance(hcas, tuple)}
    if len(set(kinds.values())) < 2:
        return dict(ports)
    usual, _ = Counter(kinds.values()).most_common(1)[0]
    odd = {name: kind for name, kind in kinds.items() if kind != usual}
    return {
        name: RdmaProblem(
            f"its RDMA ports are {_kind(odd[name])}, but those of most nodes are {_kind(usual)}",
            tuple(hca.label for hca in hcas) if isinstance(hcas, tuple) else (),
            f"set network.rdma.devices of this host to {_kind(usual)} devices, or exclude the host with -x",
        )
        if name in odd
        else hcas
        for name, hcas in ports.items()
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
    """The variables that select the GIDs, for the nodes with RoCE ports."""
    roce = {}
    for host in hosts:
        nic, hcas = nics[host.name], ports.get(host.name)
        if isinstance(nic, NicChoice) and isinstance(hcas, tuple) and hcas[0].gid is not None:
            roce[host.name] = RocePorts(nic, hcas, host.rdma.gid_index, facts[host.name].nccl_version)
    return gid_variables(roce, inventory.network.subnet)
