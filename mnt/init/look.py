"""The edge of `mnt init`: asks hosts for what an inventory could say about them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace

from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts, Visibility
from mnt.facts.gather import Progress, gather_facts
from mnt.facts.gather_further import Exchange, gather_visibility
from mnt.facts.survey import Survey
from mnt.fleet import Fleet, HostConnection
from mnt.init.draft import Draft, Found, candidates, propose, with_rdma, writable
from mnt.init.environments import TRAINS_WITH
from mnt.inventory.model import Host, Inventory
from mnt.network.decision import decide
from mnt.paths import is_below
from mnt.tasks.survey import survey

_MOST_PEERS = 32  # whose routes a host looks up


def draft(fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], progress: Progress) -> Draft:
    """The proposal for these hosts. A host that cannot be asked is an entry with the reason.

    Args:
        inventory: what is known before: names, and how to log in.
        hosts: of the inventory, in rank order.
    """
    found = _ask(fleet, inventory, hosts, progress)
    progress("the hosts look for each other's files")
    shared = _shared(fleet, found, candidates(found))
    proposal = propose(found, shared)
    subnet = next(
        (setting.value for setting in proposal.settings if setting.key == ("network", "subnet")), None
    )
    nics = {entry.name: entry.settings.get("nic") for entry in proposal.hosts}
    planned = replace(
        inventory,
        network=replace(inventory.network, subnet=inventory.network.subnet or subnet),
        hosts=tuple(replace(host, nic=host.nic or nics.get(host.name)) for host in hosts),
    )
    known = {name: facts for name, facts in found.known().items() if facts.python is not None}
    return writable(with_rdma(proposal, decide(FleetFacts(planned, planned.hosts, known))))


def _ask(fleet: Fleet, inventory: Inventory, hosts: Sequence[Host], progress: Progress) -> Found:
    facts = gather_facts(fleet, inventory, hosts, packages=TRAINS_WITH, progress=progress)
    errors = dict(facts.errors)
    for name, known in facts.facts.items():
        if known.python is None:
            fix = f"install Python 3.8 or newer on {name}; looked for: {known.attempts}"
            errors[name] = HostError(name, "command", "no Python 3.8 or newer", fix=fix)
    asked = [name for name in facts.facts if name not in errors]
    numeric = {name: address for name in asked if (address := _numeric(fleet, name)) is not None}
    peers = list(numeric.values())[:_MOST_PEERS]
    outcomes = fleet.run_each(_survey, dict.fromkeys(asked, (peers,)))
    errors |= outcomes.errors()
    return Found(facts, outcomes.values_by_host(), errors, numeric)


def _survey(connection: HostConnection, peers: Sequence[str]) -> Survey:
    """Raises HostError."""
    return Survey.parse(connection.target.name, survey(connection, TRAINS_WITH, peers))


def _numeric(fleet: Fleet, name: str) -> str | None:
    """The IPv4 address of a host, by ssh_config and DNS; None: it has none."""
    hostname = fleet.connection(name).destination.hostname
    try:
        found = socket.getaddrinfo(hostname, None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # a name that no DNS can have
        return None
    return str(found[0][4][0])


def _shared(fleet: Fleet, found: Found, points: Sequence[str]) -> list[str]:
    """Those of the mount points at which all hosts see a file that one of them wrote."""
    hosts = list(found.known())
    exchanges = []
    for point in points:
        writer = _writer(found, point, hosts)
        readers = [host for host in hosts if host != writer]
        exchanges.append(Exchange(point, writer, readers, _places(found, point, writer)))
    seen = gather_visibility(fleet, exchanges)
    return [path for path, visibility in seen.items() if _is_seen(visibility)]


def _writer(found: Found, point: str, hosts: Sequence[str]) -> str:
    """The first host that can write to the mount point; else the first."""
    able = [host for host in hosts if found.surveys[host].paths[point].write == "ok"]
    return (able or hosts)[0]


def _places(found: Found, point: str, host: str) -> list[str]:
    """Where the writer tries: its user may be able to write to the home directory only.

    The other hosts open the file that it names there, so a home that leads elsewhere does not count.
    """
    home = found.facts.facts[host].home
    inside = is_below(home, point) and ".." not in home.split("/")
    return [point, *([home] if inside else [])]


def _is_seen(visibility: Visibility) -> bool:
    return visibility.error is None and all(
        seen["delay"] is not None for seen in visibility.sightings.values()
    )
