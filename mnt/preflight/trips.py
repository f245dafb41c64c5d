"""Which hosts take part in the trips after the probe, decided from the probe's facts. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from mnt.facts.fleet import FleetFacts
from mnt.facts.gather_further import Exchange
from mnt.facts.reach import TrainingNic
from mnt.inventory.model import Mount
from mnt.network.decision import NetworkDecision
from mnt.paths import is_below
from mnt.preflight import mounts


def training_nics(facts: FleetFacts, network: NetworkDecision) -> dict[str, TrainingNic]:
    """The training NICs of the hosts that can take part: the NIC works, and the host has Python."""
    return {
        host: TrainingNic(choice.interface.name, choice.address, str(choice.network), choice.interface.mtu)
        for host, choice in network.working().items()
        if facts.facts[host].python is not None
    }


def exchanges(facts: FleetFacts) -> Iterator[Exchange]:
    """The files to write and read on the inventory's `storage`."""
    for mount in facts.inventory.storage:
        hosts = hosts_to_test(mount, facts)
        if len(hosts) > 1:
            writer, *readers = hosts
            workdir = facts.inventory.host(writer).workdir
            below = is_below(workdir, mount.path)
            # The user may be able to write to the workdir only.
            yield Exchange(mount.path, writer, readers, [mount.path, *([workdir] if below else [])])


def hosts_to_test(mount: Mount, facts: FleetFacts) -> list[str]:
    """The hosts on which the mount works, the writer first; none if the storage is read-only."""
    if "ro" in mount.options:
        return []
    failing = mounts.failing(mount, facts)
    hosts = [
        host.name
        for host, answer in facts.answers()
        if mount.path in answer.mounts and host.name not in failing
    ]
    able = [
        host
        for host in hosts
        if (state := facts.facts[host].paths.get(mount.path)) is not None and state.write == "ok"
    ]
    return [*able[:1], *(host for host in hosts if host not in able[:1])]
