"""Everything about the network of the selected hosts, as `mnt net` shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mnt.errors import HostError
from mnt.inventory.model import Host
from mnt.network.conflicts import Conflict, conflicts
from mnt.network.decision import NetworkDecision, NodeNetwork, decide
from mnt.network.env import with_inventory
from mnt.network.expected import Expected, expect
from mnt.network.hca import Hca
from mnt.network.nccl import effective, nccl_version
from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.network.variable import Variable
from mnt.preflight.facts import FleetFacts, HostFacts


@dataclass(frozen=True)
class NodeReport:
    """What one host that answered would train with, and what NCCL would choose there by itself."""

    host: str
    network: NodeNetwork
    variables: tuple[Variable, ...]  # the inventory's `env` included
    expected: Expected
    conflicts: tuple[Conflict, ...]

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why the host cannot train, and the way out."""
        if isinstance(self.network.nic, NicProblem):
            nic = self.network.nic
            listed = f" (there: {', '.join(nic.candidates)})" if nic.candidates else ""
            return f"training NIC: {nic.message}{listed}", nic.fix
        if self.network.problem is not None:
            return f"RDMA: {self.network.problem}", self.network.problem.fix
        return None

    def shell(self) -> list[str]:
        """`export` lines for a POSIX shell, and for zsh, which would take a bare `=eth0` for a program."""
        return [f"export {variable.name}={_quoted(variable.value)}" for variable in self.variables]

    def document(self) -> dict[str, Any]:
        nic = self.network.nic
        chosen = nic if isinstance(nic, NicChoice) else None
        return {
            "status": "ok" if self.problem is None else "fail",
            "problem": None if self.problem is None else {"message": self.problem[0], "fix": self.problem[1]},
            "nic": chosen.interface.name if chosen else None,
            "address": chosen.address if chosen else None,
            "reason": chosen.reason if chosen else None,
            "hcas": [_hca_document(hca) for hca in self.network.hcas],
            "variables": [asdict(variable) for variable in self.variables],
            "expected": {**asdict(self.expected), "text": str(self.expected)},
            "conflicts": [
                {key: value for key, value in asdict(conflict).items() if key != "host"}
                for conflict in self.conflicts
            ],
        }


@dataclass(frozen=True)
class NetworkReport:
    """Every selected host has an entry in either `nodes` or `errors`."""

    hosts: tuple[str, ...]  # in rank order
    decision: NetworkDecision
    nodes: Mapping[str, NodeReport]
    errors: Mapping[str, HostError]

    @property
    def ok(self) -> bool:
        """Every host answered, and has what the mode needs."""
        return not self.errors and all(node.problem is None for node in self.nodes.values())

    def document(self) -> dict[str, Any]:
        """As `mnt net --json` prints it."""
        return {
            "ok": self.ok,
            "mode": self.decision.mode,
            "reason": self.decision.reason,
            "hosts": {
                name: self.nodes[name].document() if name in self.nodes else _lost(self.errors[name])
                for name in self.hosts
            },
        }


def network_report(fleet: FleetFacts) -> NetworkReport:
    """Decide for the hosts that answered, and tell what stands beside it."""
    nics = choose(fleet.inventory, fleet.hosts, fleet.interfaces())
    decision = decide(fleet.inventory, fleet.hosts, nics, fleet.facts)
    found = conflicts(decision, fleet.hosts, fleet.facts)
    nodes = {
        host.name: _node(host, facts, decision.nodes[host.name], found)
        for host, facts in fleet.answers()
        if host.name in decision.nodes
    }
    silent = {
        host.name: HostError(
            host.name, "answer", "the host did not say what interfaces it has", fix="mnt preflight"
        )
        for host, _ in fleet.answers()
        if host.name not in nodes
    }
    names = tuple(host.name for host in fleet.hosts)
    return NetworkReport(names, decision, nodes, {**fleet.errors, **silent})


def _node(host: Host, facts: HostFacts, network: NodeNetwork, found: list[Conflict]) -> NodeReport:
    by_itself = effective(host.env, facts.nccl_conf)
    return NodeReport(
        host=host.name,
        network=network,
        variables=tuple(with_inventory(network.variables, host.env)) if network.variables else (),
        expected=expect(facts.interfaces or (), facts.rdma, by_itself, nccl_version(facts)),
        conflicts=tuple(conflict for conflict in found if conflict.host == host.name),
    )


def _lost(error: HostError) -> dict[str, Any]:
    return {"status": "unreachable", "problem": {"message": error.message, "fix": error.fix}}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _hca_document(hca: Hca) -> dict[str, Any]:
    return {
        "device": hca.label,
        "port": hca.port.number,
        "link_layer": hca.port.link_layer,
        "rate": hca.port.rate,
        "gid_index": hca.gid.index if hca.gid else None,
        "gid": hca.gid.ipv4 if hca.gid else None,
        "reason": hca.reason,
    }
