"""The network of the selected hosts, as `mnt net` shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.facts.nccl import effective
from mnt.facts.trial import Trial
from mnt.inventory.model import Host
from mnt.network.conflicts import Conflict, conflicts
from mnt.network.decision import NetworkDecision, NodeNetwork
from mnt.network.env import Variable, with_inventory
from mnt.network.expected import Expected, expect
from mnt.network.hca import Hca
from mnt.network.nic import NicChoice
from mnt.network.used import Used, differences, read_used


@dataclass(frozen=True)
class NodeOverview:
    """The network that one host would train with, and the one that NCCL would choose there by itself."""

    host: str
    network: NodeNetwork
    variables: tuple[Variable, ...]  # the inventory's `env` included
    expected: Expected
    conflicts: tuple[Conflict, ...]
    used: Used | None = None  # what a trial used; None: there was no trial, or it showed nothing
    differences: tuple[str, ...] = ()  # between what was used and what was set

    @property
    def problem(self) -> tuple[str, str] | None:
        """Why the host cannot train now, in one line, and the fix; None: it can."""
        nic = self.network.nic
        return self.network.obstacle or (nic.failure if isinstance(nic, NicChoice) else None)

    @property
    def status(self) -> str:
        """ok, fail, or waiting (for another host whose problem must be solved first)."""
        if self.problem is None:
            return "ok"
        return "waiting" if self.network.waits_for else "fail"

    def shell(self) -> list[str]:
        """`export` lines for a POSIX shell. Values are quoted: zsh would expand a bare `=eth0`."""
        return [f"export {variable.name}={_quoted(variable.value)}" for variable in self.variables]

    def document(self) -> dict[str, Any]:
        nic = self.network.nic
        chosen = nic if isinstance(nic, NicChoice) else None
        return {
            "status": self.status,
            "problem": _problem(self.problem),
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

    def used_document(self) -> dict[str, Any] | None:
        if self.used is None:
            return None
        return {
            "backend": self.used.backend,
            "transport": self.used.transport,
            "interfaces": list(map(str, self.used.interfaces)),
            "hcas": self.used.labels(),
            "said": list(self.used.evidence),
            "text": str(self.used),
            "as_set": not self.differences,
            "differs": list(self.differences),
        }


@dataclass(frozen=True)
class NetworkOverview:
    """Every selected host has an entry in either `nodes` or `errors`."""

    fleet: FleetFacts
    decision: NetworkDecision
    nodes: Mapping[str, NodeOverview]
    errors: Mapping[str, HostError]

    @property
    def ok(self) -> bool:
        """Every host answered and has what the mode needs, and the trial, if any, used what was set."""
        trial_ok = self.fleet.trial is None or self.fleet.trial.problem is None
        nodes_ok = all(node.problem is None and not node.differences for node in self.nodes.values())
        return not self.errors and trial_ok and nodes_ok

    def document(self) -> dict[str, Any]:
        """The JSON document of `mnt net --json`."""
        document = {
            "ok": self.ok,
            "mode": self.decision.mode,
            "reason": self.decision.reason,
            "hosts": {host.name: self._host_document(host.name) for host in self.fleet.hosts},
        }
        if trial := self.fleet.trial:
            document["deep"] = {
                "ok": trial.problem is None,
                "problem": _problem(trial.problem),
                "backend": trial.backend,
                "world_size": trial.world_size,
            }
        return document

    def _host_document(self, name: str) -> dict[str, Any]:
        if name in self.errors:
            error = self.errors[name]
            return {"status": "unreachable", "problem": _problem((error.message, error.advice))}
        node = self.nodes[name]
        return {**node.document(), **({"used": node.used_document()} if self.fleet.trial else {})}


def network_overview(fleet: FleetFacts, decision: NetworkDecision) -> NetworkOverview:
    """The overview of the decision and of the facts about it."""
    found = conflicts(decision, fleet.hosts, fleet.facts)
    nodes = {
        host.name: _node(host, facts, decision, found, fleet.trial)
        for host, facts in fleet.answers()
        if host.name in decision.nodes
    }
    silent = {
        host.name: HostError(
            host.name, "answer", "the host did not report its interfaces", fix="run mnt preflight for details"
        )
        for host, _ in fleet.answers()
        if host.name not in nodes
    }
    return NetworkOverview(fleet, decision, nodes, {**fleet.errors, **silent})


def _node(
    host: Host, facts: HostFacts, decision: NetworkDecision, found: list[Conflict], trial: Trial | None
) -> NodeOverview:
    network = decision.nodes[host.name]
    environment = effective(host.env, facts.nccl_conf)
    variables = tuple(with_inventory(network.variables, host.env)) if network.variables else ()
    used = read_used(trial, host.name, facts.interfaces) if trial else None
    different: tuple[str, ...] = ()
    if used is not None:
        different = differences(used, network, {each.name: each.value for each in variables}, decision.mode)
    elif trial is not None and trial.problem is None:
        different = ("the trial did not show which network it used",)
    return NodeOverview(
        host=host.name,
        network=network,
        variables=variables,
        expected=expect(facts.interfaces, facts.rdma, environment, facts.nccl_version),
        conflicts=tuple(conflict for conflict in found if conflict.host == host.name),
        used=used,
        differences=different,
    )


def _problem(problem: tuple[str, str | None] | None) -> dict[str, str | None] | None:
    """A message and its fix, as JSON."""
    return None if problem is None else {"message": problem[0], "fix": problem[1]}


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
