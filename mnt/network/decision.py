"""The network of a job: its mode, and each node's NIC, RDMA ports and variables. Pure.

Mode `auto` becomes rdma if every node of the job has a usable RDMA port. Otherwise it becomes tcp on all
nodes, because all nodes of a job must use the same transport.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from mnt.facts.fleet import FleetFacts
from mnt.network.env import Variable, environment
from mnt.network.hca import Hca, HostContext, RdmaProblem, choose_hcas
from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.network.roce import RocePorts, gid_variables

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
            return f"training NIC: {self.nic}", self.nic.fix
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
        return {host: nic for host, nic in nics.items() if isinstance(nic, NicChoice) and nic.failure is None}


def decide(fleet: FleetFacts) -> NetworkDecision:
    """Decide for the hosts of one job; hosts that did not report their interfaces are left out.

    A machine that has several entries in the inventory gets a network as the first of them.
    """
    twins = {twin: _twin(twin, first) for twin, first in fleet.twins().items()}
    interfaces = {name: nics for name, nics in fleet.interfaces().items() if name not in twins}
    nics = {**choose(fleet.inventory, fleet.hosts, interfaces), **twins}
    chosen = {name: nic for name, nic in nics.items() if isinstance(nic, NicChoice)}
    ports = _of_one_kind(_ports(fleet, chosen))
    gids = gid_variables(_roce_ports(fleet, chosen, ports), fleet.inventory.network.subnet)
    ports |= {name: problem for name, problem in gids.items() if isinstance(problem, RdmaProblem)}
    settings = fleet.inventory.network
    mode, reason = decide_mode(settings.mode, ports, by_option=settings.mode_by_option)
    nodes = {}
    for host in (host for host in fleet.hosts if host.name in nics):
        nic, hcas, gid_settings = nics[host.name], ports.get(host.name), gids.get(host.name, [])
        if isinstance(nic, NicProblem):
            nodes[host.name] = NodeNetwork(nic)
        elif mode == "tcp":
            variables = environment(nic, host, mode, reason, (), ())
            nodes[host.name] = NodeNetwork(nic, variables=tuple(variables))
        elif isinstance(hcas, RdmaProblem):
            nodes[host.name] = NodeNetwork(nic, problem=hcas)
        else:
            assert not isinstance(gid_settings, RdmaProblem)  # noqa: S101 - narrows the type
            variables = environment(nic, host, mode, reason, hcas or (), gid_settings)
            nodes[host.name] = NodeNetwork(nic, hcas or (), tuple(variables))
    return NetworkDecision(mode, reason, nodes)


def _twin(twin: str, first: str) -> NicProblem:
    return NicProblem(
        f"it is the same machine as {first}",
        (),
        f"exclude it: -x {shlex.quote(twin)}; or correct its `address` in the inventory",
        twin_of=first,
    )


def decide_mode(configured: str, ports: Mapping[str, Ports], *, by_option: bool = False) -> tuple[str, str]:
    """The mode (tcp or rdma), and the reason for it.

    Args:
        configured: `network.mode` of the inventory, or `--mode`.
        ports: the RDMA ports of every host that has a training NIC.
        by_option: whether it is `--mode`.
    """
    if configured != "auto":
        return configured, f"--mode {configured}" if by_option else f"network.mode is {configured}"
    auto = "--mode auto" if by_option else "auto"
    for host, hcas in ports.items():
        if hcas is None:
            return "tcp", f"{auto}: {host} did not report its RDMA devices"
        if isinstance(hcas, RdmaProblem):
            return "tcp", f"{auto}: {host}: {hcas.message}"
    if not ports:
        return "tcp", f"{auto}: no host has a training NIC"
    return "rdma", f"{auto}: every node has an active RDMA port"


def _ports(fleet: FleetFacts, nics: Mapping[str, NicChoice]) -> dict[str, Ports]:
    """The RDMA ports of every host that has a NIC."""
    subnet = fleet.inventory.network.subnet
    return {
        host.name: None
        if facts.rdma is None
        else choose_hcas(HostContext(facts.rdma, host, nics[host.name], facts.interfaces, subnet))
        for host, facts in fleet.answers()
        if host.name in nics
    }


def _of_one_kind(ports: Mapping[str, Ports]) -> dict[str, Ports]:
    """Allow one kind of ports only, InfiniBand or RoCE: that of most nodes; in a tie, of the first node."""
    nodes_with = Counter(hcas[0].port.kind for hcas in ports.values() if isinstance(hcas, tuple))
    usual = max(nodes_with, key=nodes_with.__getitem__, default=None)
    allowed = dict(ports)
    for name, hcas in ports.items():
        if isinstance(hcas, tuple) and hcas[0].port.kind != usual:
            allowed[name] = RdmaProblem(
                f"its RDMA ports are {hcas[0].port.kind}, but those of most nodes are {usual}",
                tuple(hca.label for hca in hcas),
                f"set network.rdma.devices of this host to {usual} devices, or leave the host out: -x HOST",
            )
    return allowed


def _roce_ports(
    fleet: FleetFacts, nics: Mapping[str, NicChoice], ports: Mapping[str, Ports]
) -> dict[str, RocePorts]:
    """The nodes with RoCE ports."""
    roce = {}
    for host, facts in fleet.answers():
        hcas = ports.get(host.name)
        if isinstance(hcas, tuple) and hcas[0].gid is not None:
            roce[host.name] = RocePorts(nics[host.name], hcas, host.rdma.gid_index, facts.nccl_version)
    return roce
