"""The edge of the trips after the probe: the hosts test their logins, the shared storage and the network.

For `storage-visible`, one host writes files to the shared storage, and the others read them. For `nic-reach`,
all hosts listen on the training network and connect to each other.
"""

from __future__ import annotations

import secrets
from collections.abc import Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from mnt import typed
from mnt.errors import HostError
from mnt.facts.fleet import FleetFacts, Visibility
from mnt.facts.gather import Progress
from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.fleet import Fleet
from mnt.remote.net.reach import proof
from mnt.tasks.logins import mesh
from mnt.tasks.reach import Listening, Meeting, Target, reach
from mnt.tasks.shape import converted, described
from mnt.tasks.visible import Seen, Written, await_files, write_files

_SEEN_WITHIN = 5.0  # seconds; the attribute cache of an NFS client can be that old

ALL_PAIRS = 64  # hosts; with more, each host tries only some of the others
_SAMPLES = 3  # ports of the local range
_TIMEOUT = 2.0  # seconds for a connection: the kernel sends a second SYN after one second
_AT_ONCE = 64  # connections that a host opens at the same time
_PATIENCE = 10.0  # seconds that a host may take in addition to the timeouts of all its connections


@dataclass(frozen=True)
class Exchange:
    """The host that writes a file to a storage path, and the hosts that look for it there."""

    path: str
    writer: str
    readers: Sequence[str]
    directories: Sequence[str]  # the writer takes the first of these that it can write to


def gather_further(
    fleet: Fleet,
    facts: FleetFacts,
    *,
    logins: bool,
    exchanges: Sequence[Exchange],
    nics: Mapping[str, TrainingNic],
    progress: Progress,
) -> FleetFacts:
    """Ask the questions that depend on the probe's result, and return the facts with the answers added.

    The logins run in parallel with the other trips, because they keep only the master busy. The other trips
    run one after the other, because each keeps all hosts busy.

    Args:
        logins: log in from the master to every worker that answered.
        exchanges: write and read these files on shared storage.
        nics: connect these hosts to each other, if there are at least two.
        progress: is called with a few words about the current step.
    """
    if len(facts.facts) < 2:
        return facts
    progress("the hosts test each other")

    def others_in_turn() -> FleetFacts:
        seen = gather_visibility(fleet, exchanges)
        reached = gather_reach(fleet, nics, facts.master.name, facts.master_port)
        return replace(facts, visibility=seen, reach=reached)

    with ThreadPoolExecutor(max_workers=2) as pool:
        try:
            tried = pool.submit(_gather_mesh, fleet, facts) if logins else None
            others = pool.submit(others_in_turn)
            return replace(others.result(), mesh=tried.result() if tried else {})
        except BaseException:
            fleet.close()  # this also ends the trips that still run
            raise


def _gather_mesh(fleet: Fleet, facts: FleetFacts) -> dict[str, str | None]:
    """The results of the master's logins to the workers that answered; empty if it cannot be asked."""
    master, twins = facts.master, facts.twins()
    workers = [worker for worker, _ in facts.answers() if worker != master and worker.name not in twins]
    if master.name not in facts.facts or facts.facts[master.name].python is None:
        return {}
    outcome = fleet.run_each(mesh, {master.name: (workers,)})[master.name]
    if outcome.value is None:
        # The master answered the probe a moment ago, so its logins are what fails.
        return {worker.name: str(outcome.error) for worker in workers}
    return {
        name: None if login["ok"] else login["error"] or "no reason given"
        for name, login in outcome.value.items()
    }


def gather_visibility(fleet: Fleet, exchanges: Sequence[Exchange]) -> dict[str, Visibility]:
    """Which hosts see the writer's file, by storage path."""
    found: dict[str, Visibility] = {}
    for writer in dict.fromkeys(exchange.writer for exchange in exchanges):
        found.update(_exchange(fleet, writer, [each for each in exchanges if each.writer == writer]))
    return found


def _exchange(fleet: Fleet, writer: str, exchanges: Sequence[Exchange]) -> dict[str, Visibility]:
    content = secrets.token_hex(16)
    places = {exchange.path: list(exchange.directories) for exchange in exchanges}
    try:
        with write_files(fleet.connection(writer), content, places, deadline=_SEEN_WITHIN) as written:
            sightings = _read(fleet, content, written, exchanges)
    except HostError as error:
        return {path: Visibility(writer, error=str(error)) for path in places}
    return {path: Visibility(writer, written[path]["error"], sightings.get(path, {})) for path in places}


def _read(
    fleet: Fleet, content: str, written: Mapping[str, Written], exchanges: Sequence[Exchange]
) -> dict[str, dict[str, Seen]]:
    """The sightings, by path and host."""
    tasks: dict[str, dict[str, str]] = {}
    for exchange in exchanges:
        if (file := written[exchange.path]["file"]) is not None:
            for host in exchange.readers:
                tasks.setdefault(host, {})[exchange.path] = file
    read = partial(await_files, deadline=_SEEN_WITHIN)
    outcomes = fleet.run_each(read, {host: (content, files) for host, files in tasks.items()})
    found: dict[str, dict[str, Seen]] = {}
    for host, outcome in outcomes.items():
        for path in tasks[host]:
            seen = outcome.value[path] if outcome.value else Seen(delay=None, error=str(outcome.error))
            found.setdefault(path, {})[host] = seen
    return found


def gather_reach(fleet: Fleet, nics: Mapping[str, TrainingNic], master: str, port: int) -> Reach:
    """Which hosts reach each other; empty with fewer than two hosts.

    Args:
        nics: the training NIC of each host that takes part, in rank order.
        master: the first host of the job, whether it takes part or not.
        port: the master port.
    """
    if len(nics) < 2:
        return Reach()
    hosts = list(nics)
    tried = {host: len(others) for host, others in peers(hosts, master).items()}
    connections = max(tried.values()) * (_SAMPLES + 1)
    patience = _PATIENCE + _TIMEOUT * (2 + 3 * connections / _AT_ONCE)
    tokens = {host: secrets.token_bytes(16) for host in hosts}
    meeting = Meeting(hosts, partial(_targets, nics, tokens, port, master), patience=patience)
    arguments = {"master": port, "samples": _SAMPLES, "timeout": _TIMEOUT, "at_once": _AT_ONCE}
    outcomes = fleet.run_each(
        reach,
        {
            host: (
                meeting,
                {**arguments, "address": nic.address, "token": tokens[host].hex()},
                60.0 + patience,
                tried[host],
            )
            for host, nic in nics.items()
        },
        fanout=len(nics),
    )
    errors = {host: error.reason for host, error in outcomes.errors().items()}
    pairs = {}
    for host in list(meeting.reached):
        answer = meeting.reached.pop(host)  # no host's answer is kept twice
        try:
            pairs[host] = read_reached(answer, set(hosts) - {host})
        except typed.Misfit as misfit:
            errors[host] = "its answer is not valid: " + described(misfit.location, misfit)
    late = {host: "it did not listen in time" for host in hosts if host not in pairs}
    return Reach(nics, pairs, {**late, **errors})


def read_reached(answer: Any, others: Container[str]) -> dict[str, Reached]:
    """How a host reaches the others, from its answer. Raises Misfit."""
    found: dict[str, Reached] = converted(answer, dict[str, Reached])
    if any(other not in others for other in found):
        raise typed.Misfit((), "it names another host than it was told", of_key=True, of_hook=False)
    return found


def peers(hosts: Sequence[str], master: str) -> dict[str, list[str]]:
    """The hosts that each host connects to, in this order. Its neighbour comes first, to spread the load.

    With up to ALL_PAIRS hosts, every host tries all others. With more, a host tries those at a distance of
    1, 2, 4, .. in rank order on both sides, which are also the peers in NCCL's rings and trees. The master
    tries all hosts, and all hosts try the master.
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
    nics: Mapping[str, TrainingNic],
    tokens: Mapping[str, bytes],
    port: int,
    master: str,
    listening: Mapping[str, Listening],
) -> dict[str, list[Target]]:
    """Each pair has a nonce of its own: no host can answer for another one."""

    def target(name: str) -> Target:
        nonce, ports = secrets.token_bytes(16), listening[name]["ports"]
        held = not listening[name]["master"]
        return {
            "name": name,
            "address": nics[name].address,
            "master": None if held else port,
            "ports": ports,
            "nonce": nonce.hex(),
            "answers": {each: proof(tokens[name], nonce, each).hex() for each in (*ports, port)},
        }

    hosts = [host for host in nics if host in listening]
    return {host: [target(other) for other in others] for host, others in peers(hosts, master).items()}
