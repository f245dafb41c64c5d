"""The edge of preflight: asks the hosts, and puts what they answer into typed facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mnt.errors import HostError
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host, Inventory
from mnt.preflight.checks.storage import LOCAL_DISKS
from mnt.preflight.checks.versions import packages_to_look_up
from mnt.preflight.facts import FleetFacts, HostFacts
from mnt.preflight.nonces import gather_nonces
from mnt.preflight.reach import gather_reach
from mnt.tasks.mesh import mesh
from mnt.tasks.probe import probe
from mnt.tasks.program import NoPython


def gather_facts(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    *,
    with_mesh: bool = False,
    with_nonces: bool = False,
    with_reach: bool = False,
) -> FleetFacts:
    """Probe all of `hosts` at once, one round trip each; a host that cannot be probed becomes an error.

    Args:
        fleet: holds a connection to each of `hosts`.
        hosts: in rank order; the first is the master.
        with_mesh: also log in from the master to every worker that answered.
        with_nonces: also have one host write to the shared storage and the others look.
        with_reach: also have all connect to each other over the training network.
    """
    facts: dict[str, HostFacts] = {}
    errors: dict[str, HostError] = {}
    common = probe_arguments(inventory)
    outcomes = fleet.run_each(probe, {host.name: ({**common, **own_arguments(host)},) for host in hosts})
    for name, outcome in outcomes.items():
        try:
            facts[name] = _facts(outcome)
        except HostError as error:
            errors[name] = error
    gathered = FleetFacts(
        inventory=inventory,
        hosts=tuple(hosts),
        facts=facts,
        errors=errors,
        mesh=_mesh(fleet, facts, hosts) if with_mesh and len(hosts) > 1 else None,
    )
    return replace(
        gathered,
        nonces=gather_nonces(fleet, gathered) if with_nonces else None,
        reach=gather_reach(fleet, gathered) if with_reach else None,
    )


def probe_arguments(inventory: Inventory) -> dict[str, Any]:
    """What the probe has to look at because the inventory speaks of it."""
    topologies = {host.tuning.topo_file for host in inventory.hosts if host.tuning.topo_file}
    return {
        "packages": packages_to_look_up(inventory.require),
        "mounts": [mount.path for mount in inventory.storage],
        "write": [mount.path for mount in inventory.storage if "ro" not in mount.options],
        "paths": [*(required.path for required in inventory.paths), *sorted(topologies), *LOCAL_DISKS],
        "port": inventory.network.master_port,
    }


def own_arguments(host: Host) -> dict[str, str]:
    """What the probe has to look at on this host alone."""
    extensions = host.env.get("TORCH_EXTENSIONS_DIR")
    return {"workdir": host.workdir, **({"extensions": extensions} if extensions else {})}


def _facts(outcome: Outcome[dict[str, Any]]) -> HostFacts:
    """Raises HostError."""
    if isinstance(outcome.error, NoPython):
        said = outcome.error.facts
        return HostFacts(
            hostname=said.get("hostname", outcome.host),
            kernel=said.get("kernel"),
            tried=", ".join(outcome.error.tried),
        )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return HostFacts.parse(outcome.host, outcome.value)


def _mesh(
    fleet: Fleet, facts: Mapping[str, HostFacts], hosts: Sequence[Host]
) -> dict[str, str | None] | None:
    """What came of the master's logins to the workers that answered; None where it cannot be asked."""
    master, *others = hosts
    workers = [worker for worker in others if worker.name in facts]
    if master.name not in facts or facts[master.name].python is None:
        return None
    outcome = fleet.run_each(mesh, {master.name: (workers,)})[master.name]
    if outcome.value is None:
        # The master has just answered the probe: what it cannot do now is log in.
        return {worker.name: str(outcome.error) for worker in workers}
    return {
        name: None if login["ok"] else login["error"] or "no reason given"
        for name, login in outcome.value.items()
    }
