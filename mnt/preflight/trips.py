"""Who takes part in the trips that follow the probe: decided from what it found. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from mnt.facts.fleet import FleetFacts
from mnt.facts.gather import Trips
from mnt.facts.gather_nonces import Exchange
from mnt.facts.reach import Endpoint
from mnt.inventory.model import Host, Mount
from mnt.network.decision import NetworkDecision
from mnt.network.nic import NicChoice
from mnt.preflight import mounts
from mnt.preflight.registry import Needs


def plan_trips(facts: FleetFacts, network: NetworkDecision, needs: Collection[Needs]) -> Trips:
    """What is asked of whom, for the checks that have these needs."""
    return Trips(
        logins=Needs.MESH in needs,
        exchanges=tuple(_exchanges(facts)) if Needs.NONCES in needs else None,
        endpoints=endpoints_of(facts, network) if Needs.REACH in needs else None,
    )


def endpoints_of(facts: FleetFacts, network: NetworkDecision) -> dict[str, Endpoint]:
    """The hosts that can meet: their training NIC works, and they have a Python."""
    return {
        host: Endpoint(choice.interface.name, choice.address, _network(choice), choice.interface.mtu)
        for host, choice in network.working().items()
        if facts.facts[host].python is not None
    }


def _network(choice: NicChoice) -> str:
    written = next(each for each in choice.interface.ipv4 if each.split("/")[0] == choice.address)
    return str(ipaddress.ip_network(written, strict=False))


def _exchanges(facts: FleetFacts) -> Iterator[Exchange]:
    for mount in facts.inventory.storage:
        hosts = takes_part(mount, facts)
        if len(hosts) > 1:
            writer, *readers = hosts
            yield Exchange(mount.path, writer, readers, _directories(mount, facts.inventory.host(writer)))


def takes_part(mount: Mount, facts: FleetFacts) -> list[str]:
    """The hosts on which the mount works, the one that writes first; none where nothing is to be written."""
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


def _directories(mount: Mount, writer: Host) -> list[str]:
    """Where the user may be allowed to write: the mount itself, else the working directory on it."""
    below = PurePosixPath(writer.workdir).is_relative_to(mount.path)
    return [mount.path, *([writer.workdir] if below else [])]
