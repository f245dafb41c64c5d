"""The edge of preflight: gathers the facts, decides on the network, and runs the checks."""

from __future__ import annotations

from collections.abc import Sequence

from mnt.facts.fleet import FleetFacts
from mnt.facts.gather import Progress, gather_facts
from mnt.facts.gather_further import gather_further
from mnt.fleet import Fleet
from mnt.inventory.model import Host, Inventory
from mnt.network.decision import NetworkDecision, decide
from mnt.preflight.checks.storage import LOCAL_DISKS
from mnt.preflight.checks.versions import packages_to_look_up
from mnt.preflight.registry import FURTHER_TRIPS, Check, Needs
from mnt.preflight.report import Report, run_checks
from mnt.preflight.trips import exchanges, training_nics


def look(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    checks: Sequence[Check],
    progress: Progress = lambda text: None,
) -> Report:
    """Gather what `checks` need from `hosts`, and run the checks. This includes no trial run (see mnt.trial).

    Args:
        fleet: holds a connection to each of `hosts`.
        hosts: in rank order; the first is the master.
        progress: is called with a few words about the current step.
    """
    needs = {check.needs for check in checks} & FURTHER_TRIPS - {Needs.TRIAL}
    facts, network = first_look(fleet, inventory, hosts, progress)
    if needs:
        facts = gather_further(
            fleet,
            facts,
            logins=Needs.MESH in needs,
            exchanges=list(exchanges(facts)) if Needs.VISIBILITY in needs else [],
            nics=training_nics(facts, network) if Needs.REACH in needs else {},
            progress=progress,
        )
    return run_checks(facts, network, checks)


def first_look(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    progress: Progress = lambda text: None,
) -> tuple[FleetFacts, NetworkDecision]:
    """The facts of the probe on `hosts`, and the network decision for a job on them."""
    topologies = {host.tuning.topo_file for host in inventory.hosts if host.tuning.topo_file}
    facts = gather_facts(
        fleet,
        inventory,
        hosts,
        packages=packages_to_look_up(inventory.require),
        paths=[*sorted(topologies), *LOCAL_DISKS],
        progress=progress,
    )
    return facts, decide(facts)
