"""The edge of preflight: asks the hosts, and puts what they answer into typed facts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from mnt.preflight.registry import Needs
from mnt.tasks.mesh import mesh
from mnt.tasks.probe import probe
from mnt.tasks.program import NoPython


def gather_facts(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    *,
    trips: Collection[Needs] = (),
    progress: Callable[[str], None] = lambda text: None,
) -> FleetFacts:
    """Probe all of `hosts` at once, one round trip each; a host that cannot be probed becomes an error.

    Args:
        fleet: holds a connection to each of `hosts`.
        hosts: in rank order; the first is the master.
        trips: what else is needed of mnt.preflight.registry.FURTHER_TRIPS: to log in from the master to every
            worker that answered, to have one host write to shared storage and the others look, to have all
            connect to each other over the training network.
        progress: takes what is going on, a few words at a time.
    """
    needs = [need for need in _TRIPS if need in trips]
    facts: dict[str, HostFacts] = {}
    errors: dict[str, HostError] = {}
    common = probe_arguments(inventory)
    tasks = {host.name: ({**common, **own_arguments(host)},) for host in hosts}

    def take(outcome: Outcome[dict[str, Any]]) -> None:
        try:
            facts[outcome.host] = _facts(outcome)  # while others are still at work
        except HostError as error:
            errors[outcome.host] = error
        progress(f"{len(facts) + len(errors)} of {len(tasks)} hosts have answered")

    fleet.run_each(probe, tasks, on_result=take)
    gathered = FleetFacts(
        inventory=inventory,
        hosts=tuple(hosts),
        facts={name: facts[name] for name in tasks if name in facts},
        errors={name: errors[name] for name in tasks if name in errors},
    )
    if len(facts) > 1:
        progress("the hosts look at each other")
        gathered = replace(gathered, **_further(fleet, gathered, needs))
    return gathered


def _further(fleet: Fleet, facts: FleetFacts, needs: Sequence[Needs]) -> dict[str, Any]:
    """What the trips tell.

    The master's logins take their time, and only the master's; what all hosts are asked follows one another.
    """
    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            logins = pool.submit(_TRIPS[Needs.MESH], fleet, facts) if Needs.MESH in needs else None
            rest = pool.submit(_in_turn, fleet, facts, [need for need in needs if need is not Needs.MESH])
            return {**({} if logins is None else {"mesh": logins.result()}), **rest.result()}
        except BaseException:
            fleet.close()  # and so end the trips that are still under way
            raise


def _in_turn(fleet: Fleet, facts: FleetFacts, needs: Sequence[Needs]) -> dict[str, Any]:
    return {need.name.lower(): _TRIPS[need](fleet, facts) for need in needs}


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


def _gather_mesh(fleet: Fleet, facts: FleetFacts) -> dict[str, str | None] | None:
    """What came of the master's logins to the workers that answered; None where it cannot be asked."""
    master = facts.master
    workers = [worker for worker, _ in facts.answers() if worker != master]
    if master.name not in facts.facts or facts.facts[master.name].python is None:
        return None
    outcome = fleet.run_each(mesh, {master.name: (workers,)})[master.name]
    if outcome.value is None:
        # The master has just answered the probe: what it cannot do now is log in.
        return {worker.name: str(outcome.error) for worker in workers}
    return {
        name: None if login["ok"] else login["error"] or "no reason given"
        for name, login in outcome.value.items()
    }


# What gathers the facts that cost a further trip; the field of FleetFacts is called as the need is.
_TRIPS: dict[Needs, Callable[[Fleet, FleetFacts], Any]] = {
    Needs.MESH: _gather_mesh,
    Needs.NONCES: gather_nonces,
    Needs.REACH: gather_reach,
}
