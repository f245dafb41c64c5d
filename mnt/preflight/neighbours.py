"""Does the kernel's table of neighbours hold the hosts of a subnet? Pure.

If it does not, packets to some of them are lost, and it is no fault of theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import NamedTuple

from mnt.facts.fleet import FleetFacts
from mnt.facts.reach import Reach, Reached
from mnt.facts.system import Neighbours

NO_BUFFERS = "No buffer space available"  # what connect(2) says of it; mostly the packets just vanish
_LOST = frozenset({"timeout", "unreachable", NO_BUFFERS})


class Need(NamedTuple):
    """The entries that a job needs in the table of a kernel."""

    table: Neighbours
    entries: int
    hosts: int  # that share the kernel


def crowded(fleet: FleetFacts, networks: Mapping[str, str]) -> dict[str, Need]:
    """The hosts whose table is too small, or full.

    A host needs an entry for each other host of its subnet, and one for the head or the way to it. Hosts that
    are namespaces of one kernel share its table.

    Args:
        networks: the training network of each host.
    """
    sizes = Counter(networks.values())
    kernels: dict[str, list[str]] = {}
    for host, facts in fleet.answers():
        if host.name in networks:
            boot = facts.machine.boot_id if facts.machine else f"of {host.name}"
            kernels.setdefault(boot, []).append(host.name)
    found = {}
    for names in kernels.values():
        entries = sum(sizes[networks[name]] for name in names)
        for name in names:
            table = fleet.facts[name].neighbours
            if table is not None and table.limit <= max(entries, table.entries):
                found[name] = Need(table, entries, len(names))
    return found


def lost(reach: Reach, hosts: Collection[str]) -> set[tuple[str, str]]:
    """The failed pairs that such a table explains: one of the two has it, and packets have vanished.

    Where the kernel itself says so, no table needs to be known.
    """
    return {
        (source, target)
        for source, targets in reach.pairs.items()
        for target, reached in targets.items()
        if _vanished(reached) and (source in hosts or target in hosts or NO_BUFFERS in reached.outcomes)
    }


def _vanished(reached: Reached) -> bool:
    failed = {outcome for outcome in reached.outcomes if outcome != "ok"}
    return bool(failed) and failed <= _LOST
