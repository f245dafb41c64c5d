"""The edge: asks the hosts, and turns their answers into typed facts.

It decides nothing and judges nothing. Its arguments are the packages and paths to look up, and the hosts that
take part in each trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.gather_reach import gather_reach
from mnt.facts.gather_visibility import Exchange, gather_visibility
from mnt.facts.host import HostFacts
from mnt.facts.reach import TrainingNic
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host, Inventory
from mnt.tasks.logins import mesh
from mnt.tasks.probe import probe
from mnt.tasks.program import NoPython

Progress = Callable[[str], None]


def gather_facts(
    fleet: Fleet,
    inventory: Inventory,
    hosts: Sequence[Host],
    *,
    packages: Sequence[str] = (),
    paths: Collection[str] = (),
    progress: Progress = lambda text: None,
) -> FleetFacts:
    """Probe all `hosts` in parallel, with one round trip each. A host that cannot be probed becomes an error.

    Args:
        fleet: holds a connection to each of `hosts`.
        hosts: in rank order; the first is the master.
        packages: the Python distributions to look up, by canonical name (PEP 503).
        paths: paths to examine on each host, besides the paths and mounts of the inventory.
        progress: is called with a few words about the current step.
    """
    facts: dict[str, HostFacts] = {}
    errors: dict[str, HostError] = {}
    tasks = {host.name: (_probe_arguments(inventory, host, packages, paths),) for host in hosts}

    def take(outcome: Outcome[dict[str, Any]]) -> None:
        try:
            facts[outcome.host] = _facts(outcome)  # parsed while other hosts still work
        except HostError as error:
            errors[outcome.host] = error
        progress(f"{len(facts) + len(errors)} of {len(tasks)} hosts have answered")

    fleet.run_each(probe, tasks, on_result=take)
    return FleetFacts(
        inventory=inventory,
        hosts=tuple(hosts),
        facts={name: facts[name] for name in tasks if name in facts},
        errors={name: errors[name] for name in tasks if name in errors},
    )


def gather_further(
    fleet: Fleet,
    facts: FleetFacts,
    *,
    logins: bool,
    exchanges: Sequence[Exchange] | None,
    nics: Mapping[str, TrainingNic] | None,
    progress: Progress,
) -> FleetFacts:
    """Ask the questions that depend on the probe's result, and return the facts with the answers added.

    The logins run in parallel with the other trips, because they keep only the master busy. The other trips
    run one after the other, because each keeps all hosts busy.

    Args:
        logins: log in from the master to every worker that answered.
        exchanges: write and read these files on shared storage; None: do not.
        nics: connect these hosts to each other; None: do not.
        progress: is called with a few words about the current step.
    """
    if len(facts.facts) < 2:
        return facts
    progress("the hosts test each other")

    def others_in_turn() -> FleetFacts:
        found = facts
        if exchanges is not None:
            found = replace(found, visibility=gather_visibility(fleet, exchanges))
        if nics is not None:
            found = replace(found, reach=gather_reach(fleet, nics, facts.master.name, facts.master_port))
        return found

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            tried = pool.submit(_gather_mesh, fleet, facts) if logins else None
            others = pool.submit(others_in_turn)
            return replace(others.result(), mesh=tried.result() if tried else None)
        except BaseException:
            fleet.close()  # this also ends the trips that still run
            raise


def _probe_arguments(
    inventory: Inventory, host: Host, packages: Sequence[str], paths: Collection[str]
) -> dict[str, Any]:
    """The arguments of the probe for one host; mnt/remote/probe/probe.py lists them."""
    extensions = host.env.get("TORCH_EXTENSIONS_DIR")
    return {
        "packages": list(packages),
        "mounts": [mount.path for mount in inventory.storage],
        "write": [mount.path for mount in inventory.storage if "ro" not in mount.options],
        "paths": [*(required.path for required in inventory.paths), *paths],
        "port": inventory.network.master_port,
        "workdir": host.workdir,
        **({"extensions": extensions} if extensions else {}),
    }


def _facts(outcome: Outcome[dict[str, Any]]) -> HostFacts:
    """Raises HostError."""
    if isinstance(outcome.error, NoPython):
        answer = outcome.error.facts
        return HostFacts(
            hostname=answer.get("hostname", outcome.host),
            kernel=answer.get("kernel"),
            attempts=", ".join(outcome.error.tried),
        )
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None
    return HostFacts.parse(outcome.host, outcome.value)


def _gather_mesh(fleet: Fleet, facts: FleetFacts) -> dict[str, str | None] | None:
    """The results of the master's logins to the workers that answered; None if the master cannot be asked."""
    master = facts.master
    workers = [worker for worker, _ in facts.answers() if worker != master]
    if master.name not in facts.facts or facts.facts[master.name].python is None:
        return None
    outcome = fleet.run_each(mesh, {master.name: (workers,)})[master.name]
    if outcome.value is None:
        # The master answered the probe a moment ago, so its logins are what fails.
        return {worker.name: str(outcome.error) for worker in workers}
    return {
        name: None if login["ok"] else login["error"] or "no reason given"
        for name, login in outcome.value.items()
    }
