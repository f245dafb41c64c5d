"""The edge: asks the hosts, and turns their answers into typed facts.

It decides nothing and judges nothing. Its arguments are the packages and paths to look up, and the hosts that
take part in each trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from mnt.errors import HostError, counted
from mnt.facts.fleet import FleetFacts
from mnt.facts.host import HostFacts
from mnt.fleet import Fleet, HostConnection, Outcome
from mnt.inventory.model import Host, Inventory
from mnt.tasks.bundle import script_source
from mnt.tasks.probe import probe
from mnt.tasks.program import NoPython
from mnt.tasks.shape import wrong_answer

Progress = Callable[[str], None]

_TO_TRAIN = (
    45.0  # seconds for `activate`, and for an interpreter in a container, both with limits of their own
)


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

    def take(outcome: Outcome[HostFacts]) -> None:
        try:
            facts[outcome.host] = _facts(outcome)
        except HostError as error:
            errors[outcome.host] = error
        progress(f"{len(facts) + len(errors)} of {counted(len(tasks), 'host')} answered")

    fleet.run_each(_probe, tasks, on_result=take)
    return FleetFacts(
        inventory=inventory,
        hosts=tuple(hosts),
        facts={name: facts[name] for name in tasks if name in facts},
        errors={name: errors[name] for name in tasks if name in errors},
    )


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
        "keep": host.keep,
        "workdir_group": host.workdir_group,
        "jobs_dir": host.jobs_dir,
        **({"extensions": extensions} if extensions else {}),
        "ulimit": host.ulimit.numbers,
        **_training(host),
    }


def _training(host: Host) -> dict[str, Any]:
    """How the interpreter is found that trains, if it is not the one that runs the probe."""
    if not (host.activate or host.trains_elsewhere):
        return {}
    request = {
        "elsewhere": host.trains_elsewhere,
        "python": list(host.python),
        "activate": list(host.activate),
        "env": dict(host.env),
        "program": script_source("probe.interpreter"),
        "group": host.workdir_group,
    }
    return {"training": request}


def _probe(connection: HostConnection, arguments: dict[str, Any]) -> HostFacts:
    """The typed facts; the answer itself is not kept. Raises HostError, also if no interpreter is in it."""
    timeout = 45.0 + (_TO_TRAIN if "training" in arguments else 0)
    facts = HostFacts.parse(connection.target.name, probe(connection, arguments, timeout=timeout))
    if facts.python is None:
        raise wrong_answer(connection.target.name, "the probe does not say which Python runs it")
    return facts


def _facts(outcome: Outcome[HostFacts]) -> HostFacts:
    """Raises HostError."""
    if isinstance(outcome.error, NoPython):
        answer, tried = outcome.error.facts, ", ".join(outcome.error.tried)
        known = {"hostname": answer.get("hostname", outcome.host), "kernel": answer.get("kernel")}
        return HostFacts.parse(outcome.host, {**known, "attempts": tried})
    if outcome.error is not None:
        raise outcome.error
    assert outcome.value is not None  # noqa: S101 - narrows the type
    return outcome.value
