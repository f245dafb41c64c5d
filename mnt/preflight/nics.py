"""The training NIC of each host, as the checks see it. Pure."""

from __future__ import annotations

from mnt.network.nic import NicChoice, NicProblem, choose
from mnt.preflight.facts import FleetFacts


def training_nics(fleet: FleetFacts) -> dict[str, NicChoice | NicProblem]:
    """The choice for each host that told its interfaces; the master's problem is not that of its workers."""
    interfaces = fleet.interfaces()
    known = [host for host in fleet.hosts if host.name in interfaces]
    choices: dict[str, NicChoice | NicProblem] = {}
    while known:
        chosen = choose(fleet.inventory, known, interfaces)
        first = known[0].name
        if not isinstance(chosen[first], NicProblem):
            return {**choices, **chosen}
        choices[first] = chosen[first]
        known = known[1:]
    return choices


def working_nics(fleet: FleetFacts) -> dict[str, NicChoice]:
    """The chosen NICs that are up and have link; `nic` reports the others."""
    return {
        host: choice
        for host, choice in training_nics(fleet).items()
        if isinstance(choice, NicChoice) and choice.interface.up and choice.interface.carrier is not False
    }
