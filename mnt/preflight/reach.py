"""The edge of `nic-reach`: has all hosts listen on the training network and connect to each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from functools import partial

from mnt import typed
from mnt.fleet import Fleet
from mnt.network.nic import NicChoice
from mnt.preflight.facts import FleetFacts
from mnt.preflight.nics import working_nics
from mnt.preflight.pairs import Endpoint, Reach, Reached
from mnt.tasks.reach import Listening, Meeting, Target, reach

ALL_PAIRS = 64  # hosts; among more, each tries a part of the others
_SAMPLES = 3  # ports of the local range
_TIMEOUT = 2.0  # seconds for a connection: the kernel sends a second SYN after one
_AT_ONCE = 64  # connections that a host makes at the same time
_PATIENCE = 10.0  # seconds that a host may take beyond the timeouts of all its connections


def gather_reach(fleet: Fleet, facts: FleetFacts) -> Reach | None:
    """What the hosts see of each other; None where there are no two whose training NIC works."""
    endpoints = endpoints_of(facts)
    if len(endpoints) < 2:
        return None
    port = facts.inventory.network.master_port
    hosts = list(endpoints)
    connections = max(map(len, peers(hosts, facts.master.name).values())) * (_SAMPLES + 1)
    patience = _PATIENCE + _TIMEOUT * (2 + 2 * connections / _AT_ONCE)
    meeting = Meeting(hosts, partial(_targets, endpoints, port, facts.master.name), patience=patience)
    arguments = {"master": port, "samples": _SAMPLES, "timeout": _TIMEOUT, "at_once": _AT_ONCE}
    outcomes = fleet.run_each(
        reach,
        {
            host: (meeting, {**arguments, "address": endpoint.address}, 60.0 + patience)
            for host, endpoint in endpoints.items()
        },
        fanout=len(endpoints),
    )
    errors = {host: error.reason for host, error in outcomes.errors().items()}
    pairs = {}
    for host, seen in meeting.reached.items():
        try:
            pairs[host] = typed.convert(seen, dict[str, Reached])
        except typed.Misfit as misfit:
            errors[host] = f"its answer makes no sense: {typed.dotted(misfit.location)}: {misfit.problem}"
    late = {host: "it did not listen in time" for host in hosts if host not in pairs}
    return Reach(endpoints, pairs, {**late, **errors})


def endpoints_of(facts: FleetFacts) -> dict[str, Endpoint]:
    """The hosts that can take part: their training NIC works, and they have a Python."""
    return {
        host: Endpoint(choice.interface.name, choice.address, _network(choice), choice.interface.mtu)
        for host, choice in working_nics(facts).items()
        if facts.facts[host].python is not None
    }


def _network(choice: NicChoice) -> str:
    written = next(each for each in choice.interface.ipv4 if each.split("/")[0] == choice.address)
    return str(ipaddress.ip_network(written, strict=False))


def peers(hosts: Sequence[str], master: str) -> dict[str, list[str]]:
    """Whom each host tries, in which order: its neighbour first, so that no host is everybody's first.

    Up to ALL_PAIRS hosts all of them. Of more, those at a distance of 1, 2, 4, .. in rank order, on both
    sides, which are also those that rings and trees talk to; and the master tries all, and all try it.
    """
    count = len(hosts)
    distances = list(range(1, count))
    if count > ALL_PAIRS:
        powers = [1 << bit for bit in range(count.bit_length()) if 1 << bit < count]
        distances = sorted({*powers, *(count - power for power in powers)})
    tried = {host: [hosts[(rank + far) % count] for far in distances] for rank, host in enumerate(hosts)}
    if master in tried:
        for host in hosts:
            if host != master and master not in tried[host]:
                tried[host].append(master)
        rank = hosts.index(master)
        tried[master] = [hosts[(rank + far) % count] for far in range(1, count)]
    return tried


def _targets(
    endpoints: Mapping[str, Endpoint], port: int, master: str, listening: Mapping[str, Listening]
) -> dict[str, list[Target]]:
    hosts = [host for host in endpoints if host in listening]
    return {
        host: [
            {
                "name": other,
                "address": endpoints[other].address,
                "master": port if listening[other]["master"] else None,
                "ports": listening[other]["ports"],
            }
            for other in others
        ]
        for host, others in peers(hosts, master).items()
    }
