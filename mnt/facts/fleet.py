"""All that the selected hosts answered, and the inventory beside it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mnt.errors import HostError
from mnt.facts.host import HostFacts, Interface
from mnt.facts.nonces import Nonce
from mnt.facts.reach import Reach
from mnt.facts.trial import Trial

if TYPE_CHECKING:
    from mnt.inventory.model import Host, Inventory


@dataclass(frozen=True)
class FleetFacts:
    """All that the checks judge.

    Every selected host has either `facts` or an `errors` entry. `mesh` says by worker why the master could
    not log in to it, None for success; it is None itself where nobody tried, or the master did not answer.
    `nonces` has an entry for each path of the storage that two hosts could look at; None: nobody tried.
    """

    inventory: Inventory
    hosts: Sequence[Host]  # in rank order; the first is the master
    facts: Mapping[str, HostFacts]
    errors: Mapping[str, HostError] = field(default_factory=dict)
    mesh: Mapping[str, str | None] | None = None
    nonces: Mapping[str, Nonce] | None = None
    reach: Reach | None = None  # None: nobody tried, or there are no two hosts that could
    trial: Trial | None = None  # of `--deep`

    @property
    def master(self) -> Host:
        return self.hosts[0]

    @property
    def master_port(self) -> int:
        """Where the master's rendezvous listens."""
        return self.inventory.network.master_port

    def answers(self) -> Iterator[tuple[Host, HostFacts]]:
        """The hosts that answered, in rank order."""
        for host in self.hosts:
            if host.name in self.facts:
                yield host, self.facts[host.name]

    def interfaces(self) -> dict[str, tuple[Interface, ...]]:
        """By host, as `mnt.network.nic.choose` takes them; hosts that did not say are left out."""
        return {host.name: facts.interfaces for host, facts in self.answers() if facts.interfaces}
