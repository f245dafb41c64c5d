"""The answers of all selected hosts, together with the inventory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mnt.errors import HostError
from mnt.facts.host import HostFacts, Interface
from mnt.facts.reach import Reach
from mnt.facts.trial import Trial
from mnt.tasks.visible import Seen

if TYPE_CHECKING:
    from mnt.inventory.model import Host, Inventory

T = TypeVar("T")


@dataclass(frozen=True)
class Visibility:
    """Whether the hosts see a file that one of them wrote to a storage path."""

    writer: str  # the host that wrote the file
    error: str | None = None  # why it could not write the file
    sightings: Mapping[str, Seen] = field(default_factory=dict)  # by reading host


@dataclass(frozen=True)
class FleetFacts:
    """The input of every check.

    Every selected host has an entry in either `facts` or `errors`. `mesh` maps each worker to the reason why
    the master could not log in to it, or to None if it could; it is empty if this was not tried, or if the
    master did not answer. `visibility` has an entry for each storage path that at least two hosts could test;
    it is empty if this was not tried.
    """

    inventory: Inventory
    hosts: Sequence[Host]  # in rank order; the first is the master
    facts: Mapping[str, HostFacts]
    errors: Mapping[str, HostError] = field(default_factory=dict)
    mesh: Mapping[str, str | None] = field(default_factory=dict)
    visibility: Mapping[str, Visibility] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)  # empty: not tried, or fewer than two hosts could take part
    trial: Trial | None = None  # of `--deep`

    @property
    def master(self) -> Host:
        return self.hosts[0]

    @property
    def master_port(self) -> int:
        """The port on which the master's rendezvous listens."""
        return self.inventory.network.master_port

    def answers(self) -> Iterator[tuple[Host, HostFacts]]:
        """The hosts that answered, in rank order."""
        for host in self.hosts:
            if host.name in self.facts:
                yield host, self.facts[host.name]

    def reported(self, read: Callable[[HostFacts], T | None]) -> dict[str, T]:
        """What `read` finds in the facts of each host, in rank order, without hosts where it finds None."""
        found = ((host.name, read(facts)) for host, facts in self.answers())
        return {name: value for name, value in found if value is not None}

    def twins(self) -> dict[str, str]:
        """The hosts that are the same machine as an earlier host, in rank order, with the first such host.

        These agree in the boot id, the network namespace and the host name. So namespaces of one kernel are
        different hosts, and so are two machines that were restored from one snapshot of a running machine.
        """
        first: dict[tuple[object, str], str] = {}
        found = {}
        for host, facts in self.answers():
            if facts.machine is not None:
                known = first.setdefault((facts.machine, facts.hostname), host.name)
                if known != host.name:
                    found[host.name] = known
        return found

    def interfaces(self) -> dict[str, tuple[Interface, ...]]:
        """The interfaces by host, for `mnt.network.nic.choose`; hosts that reported none are left out."""
        return self.reported(lambda facts: facts.interfaces or None)
