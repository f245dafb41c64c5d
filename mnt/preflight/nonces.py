"""The edge of `storage-visible`: has one host write to the shared storage, and the others look."""

from __future__ import annotations

import secrets
from functools import partial
from pathlib import PurePosixPath

from mnt.errors import HostError
from mnt.fleet import Fleet
from mnt.inventory.model import Host, Mount
from mnt.preflight import mounts
from mnt.preflight.facts import FleetFacts, Nonce, Sighting
from mnt.tasks.visible import Written, read_nonce, write_nonce

_DEADLINE = 5.0  # seconds; attribute caches may be that old


def gather_nonces(fleet: Fleet, facts: FleetFacts) -> dict[str, Nonce]:
    """What the hosts see of each other's files, by path of the storage."""
    plans: dict[str, dict[Mount, list[str]]] = {}
    for mount in facts.inventory.storage:
        hosts = takes_part(mount, facts)
        if len(hosts) > 1:
            plans.setdefault(hosts[0], {})[mount] = hosts[1:]
    found: dict[str, Nonce] = {}
    for writer, readers in plans.items():
        found.update(_exchange(fleet, facts.inventory.host(writer), readers))
    return found


def takes_part(mount: Mount, facts: FleetFacts) -> list[str]:
    """The hosts whose mount is well, the one that writes first; none where nothing is to be written."""
    if "ro" in mount.options:
        return []
    wrong = mounts.problems(mount, facts)
    hosts = [
        host.name
        for host, seen in facts.answers()
        if mount.path in seen.mounts and not mounts.fails(wrong.get(host.name))
    ]
    able = [host for host in hosts if facts.facts[host].paths[mount.path].write == "ok"]
    return [*able[:1], *(host for host in hosts if host not in able[:1])]


def _exchange(fleet: Fleet, writer: Host, readers: dict[Mount, list[str]]) -> dict[str, Nonce]:
    nonce = secrets.token_hex(16)
    places = {mount.path: _directories(mount, writer) for mount in readers}
    try:
        with write_nonce(fleet.connection(writer.name), nonce, places, deadline=_DEADLINE) as written:
            seen = _look(fleet, nonce, written, readers)
    except HostError as error:
        return {mount.path: Nonce(writer.name, error=str(error)) for mount in readers}
    return {
        mount.path: Nonce(writer.name, written[mount.path]["error"], seen.get(mount.path, {}))
        for mount in readers
    }


def _directories(mount: Mount, writer: Host) -> list[str]:
    """Where the user may be allowed to write: the mount itself, else the working directory on it."""
    below = PurePosixPath(writer.workdir).is_relative_to(mount.path)
    return [mount.path, *([writer.workdir] if below else [])]


def _look(
    fleet: Fleet, nonce: str, written: dict[str, Written], readers: dict[Mount, list[str]]
) -> dict[str, dict[str, Sighting]]:
    """By path and host."""
    tasks: dict[str, dict[str, str]] = {}
    for mount, hosts in readers.items():
        if (file := written[mount.path]["file"]) is not None:
            for host in hosts:
                tasks.setdefault(host, {})[mount.path] = file
    look = partial(read_nonce, deadline=_DEADLINE)
    outcomes = fleet.run_each(look, {host: (nonce, files) for host, files in tasks.items()})
    found: dict[str, dict[str, Sighting]] = {}
    for host, outcome in outcomes.items():
        for path in tasks[host]:
            seen = Sighting(**outcome.value[path]) if outcome.value else Sighting(error=str(outcome.error))
            found.setdefault(path, {})[host] = seen
    return found
