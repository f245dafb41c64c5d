"""Ask hosts for their keys, by the way that a login would take, without logging in to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection, Results, Timeouts
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import HostKey
from mnt.fleet.login.shared import Shared
from mnt.inventory.model import Host, Ssh

# One connection each, for a server shows one key at a time. In the order in which ssh would ask.
_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)

# By the name that people know: a host's, or a gateway's as in known_hosts.
Destinations = Mapping[str, Destination]


def waves(hosts: Iterable[Host]) -> list[Destinations]:
    """The servers on the way to `hosts`, and these: each in a wave after those of its gateways.

    Raises UsageError for an ssh_config that cannot be used.
    """
    shared = Shared(Timeouts())
    found: list[dict[str, Destination]] = []
    seen: set[str] = set()

    def add(name: str, destination: Destination) -> None:
        if destination.key_name in seen:
            return
        seen.add(destination.key_name)
        while len(found) <= len(destination.jumps):
            found.append({})
        found[len(destination.jumps)][name] = destination

    targets = [(host.name, shared.destination(host)) for host in hosts]
    for name, destination in targets:
        add(name, destination)
    for _, destination in targets:
        for index, hop in enumerate(destination.jumps):
            add(hop.key_name, replace(hop, jumps=destination.jumps[:index]))
    return [wave for wave in found if wave]


class _Scanner(HostConnection):
    """A connection that is never opened; only the gateways on the way are logged in to."""

    def __init__(self, target: Host, shared: Shared, destination: Destination) -> None:
        super().__init__(target, shared)
        self.destination = destination

    def open(self) -> None:
        """Nothing: there is no login."""

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        return self.destination.jumps

    def keys(self) -> list[HostKey]:
        """One key of each kind that the host has. Raises HostError."""
        keys = [key for kind in _KINDS if (key := self.shown_key(kind)) is not None]
        if keys:
            return keys
        fix = "HostKey in its sshd_config: ed25519, ECDSA or RSA"
        raise HostError(self.target.name, "key exchange", "no host key of a kind that can be used", fix=fix)


def scan(destinations: Destinations) -> Results[list[HostKey]]:
    """The keys that servers show, which proves that they have them, and nothing else.

    Gateways on the way are logged in to, if their keys are known.
    """

    def connect(host: Host, shared: Shared) -> HostConnection:
        destination = destinations[host.name]
        careful = tuple(replace(hop, strict=True) for hop in destination.jumps)
        return _Scanner(host, shared, replace(destination, jumps=careful))

    hosts = [Host(name, destination.hostname, Ssh(config=None)) for name, destination in destinations.items()]
    with Fleet(hosts, connect=connect) as fleet:
        return fleet.run(_Scanner.keys)
