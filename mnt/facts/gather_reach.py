"""The edge of `nic-reach`: has all hosts listen on the training network and connect to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from mnt import typed
from mnt.facts.reach import Reach, Reached, TrainingNic
from mnt.fleet import Fleet
from mnt.tasks.reach import Listening, Meeting, Target, reach

ALL_PAIRS = 64  # hosts; with more, each host tries only some of the others
_SAMPLES = 3  # ports of the local range
_TIMEOUT = 2.0  # seconds for a connection: the kernel sends a second SYN after one second
_AT_ONCE = 64  # connections that a host opens at the same time
_PATIENCE = 10.0  # seconds that a host may take in addition to the timeouts of all its connections


def gather_reach(fleet: Fleet, nics: Mapping[str, TrainingNic], master: str, port: int) -> Reach | None:
    """Which hosts reach each other; None with fewer than two hosts.

    Args:
        nics: the training NIC of each host that takes part, in rank order.
        master: the first host of the job, whether it takes part or not.
        port: the master port.
    """
    if len(nics) < 2:
        return None
    hosts = list(nics)
    connections = max(map(len, peers(hosts, master).values())) * (_SAMPLES + 1)
    patience = _PATIENCE + _TIMEOUT * (2 + 2 * connections / _AT_ONCE)
    meeting = Meeting(hosts, partial(_targets, nics, port, master), patience=patience)
    arguments = {"master": port, "samples": _SAMPLES, "timeout": _TIMEOUT, "at_once": _AT_ONCE}
    outcomes = fleet.run_each(
        reach,
        {
            host: (meeting, {**arguments, "address": nic.address}, 60.0 + patience)
            for host, nic in nics.items()
        },
        fanout=len(nics),
    )
    errors = {host: error.reason for host, error in outcomes.errors().items()}
    pairs = {}
    for host, answer in meeting.reached.items():
        try:
            pairs[host] = typed.convert(answer, dict[str, Reached])
        except typed.Misfit as misfit:
            errors[host] = f"its answer is not valid: {typed.dotted(misfit.location)}: {misfit.problem}"
    late = {host: "it did not listen in time" for host in hosts if host not in pairs}
    return Reach(nics, pairs, {**late, **errors})


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
    nics: Mapping[str, TrainingNic], port: int, master: str, listening: Mapping[str, Listening]
) -> dict[str, list[Target]]:
    hosts = [host for host in nics if host in listening]
    return {
        host: [
            {
                "name": other,
                "address": nics[other].address,
                "master": port if listening[other]["master"] else None,
                "ports": listening[other]["ports"],
            }
            for other in others
        ]
        for host, others in peers(hosts, master).items()
    }
