"""The edge: asks the hosts, and puts what they answer into typed facts.

It decides nothing and judges nothing: which packages and paths matter, and who takes part in which trip, are
arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts
from mnt.facts.gather_nonces import Exchange, gather_nonces
from mnt.facts.gather_reach import gather_reach
from mnt.facts.host import HostFacts
from mnt.facts.reach import Endpoint
from mnt.fleet import Fleet, Outcome
from mnt.inventory.model import Host, Inventory
from mnt.tasks.mesh import mesh
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
    """Probe all of `hosts` at once, one round trip each; a host that cannot be probed becomes an error.

    Args:
        fleet: holds a connection to each of `hosts`.
        hosts: in rank order; the first is the master.
        packages: the Python distributions to look up, by canonical name (PEP 503).
        paths: what to look at on each host besides the paths and mounts of the inventory.
        progress: takes what is going on, a few words at a time.
    """
    facts: dict[str, HostFacts] = {}
    errors: dict[str, HostError] = {}
    tasks = {host.name: (_probe_arguments(inventory, host, packages, paths),) for host in hosts}

    def take(outcome: Outcome[dict[str, Any]]) -> None:
        try:
            facts[outcome.host] = _facts(outcome)  # while others are still at work
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


@dataclass(frozen=True)
class Trips:
    """What the hosts are asked once it is known what the probe found. None: not asked."""

    logins: bool = False  # from the master to every worker that answered
    exchanges: Sequence[Exchange] | None = None  # of files, over shared storage
    endpoints: Mapping[str, Endpoint] | None = None  # of the hosts that connect to each other


def gather_further(
    fleet: Fleet, facts: FleetFacts, trips: Trips, progress: Progress = lambda text: None
) -> FleetFacts:
    """The facts, with what the trips tell."""
    if len(facts.facts) > 1:
        progress("the hosts look at each other")
        facts = replace(facts, **_further(fleet, facts, trips))
    return facts


def _further(fleet: Fleet, facts: FleetFacts, trips: Trips) -> dict[str, Any]:
    """What the trips tell, by field of FleetFacts.

    The master's logins take their time, and only the master's; what all hosts are asked follows one another.
    """

    def in_turn() -> Iterator[tuple[str, Any]]:
        if trips.exchanges is not None:
            yield "nonces", gather_nonces(fleet, trips.exchanges)
        if trips.endpoints is not None:
            yield "reach", gather_reach(fleet, trips.endpoints, facts.master.name, facts.master_port)

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            logins = pool.submit(_gather_mesh, fleet, facts) if trips.logins else None
            rest = pool.submit(lambda: dict(in_turn()))
            return {**({} if logins is None else {"mesh": logins.result()}), **rest.result()}
        except BaseException:
            fleet.close()  # and so end the trips that are still under way
            raise


def _probe_arguments(
    inventory: Inventory, host: Host, packages: Sequence[str], paths: Collection[str]
) -> dict[str, Any]:
    """What the probe has to look at on a host; mnt/remote/probe/probe.py lists it."""
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
