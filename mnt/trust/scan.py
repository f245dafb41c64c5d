"""Ask hosts for their host keys, on the same route as a login, but without logging in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection, Results, Timeouts
from mnt.fleet.login.destination import Destination
from mnt.fleet.login.hostkeys import HostKey
from mnt.fleet.login.shared import Shared
from mnt.inventory.model import Host, Ssh

# One connection for each kind, because a server presents one key per connection. In ssh's order.
_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)

Destinations = Mapping[str, Destination]  # by the host's name, or by the gateway's name in known_hosts


def waves(hosts: Iterable[Host]) -> list[Destinations]:
    """`hosts` and their gateways, in waves: each host is in a later wave than its gateways.

    Raises UsageError if the ssh_config is not valid.
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
    """A connection that is never opened; only its gateways are logged in to."""

    def __init__(self, target: Host, shared: Shared, destination: Destination) -> None:
        super().__init__(target, shared)
        self.destination = destination

    def open(self) -> None:
        """Do nothing: there is no login."""

    @property
    def key_logins(self) -> tuple[Destination, ...]:
        return self.destination.jumps

    def keys(self) -> list[HostKey]:
        """One key of each kind that the host has. Raises HostError."""
        keys = [key for kind in _KINDS if (key := self.shown_key(kind)) is not None]
        if keys:
            return keys
        fix = "set HostKey in its sshd_config to an ed25519, ECDSA or RSA key"
        raise HostError(self.target.name, "key exchange", "no host key of a supported kind", fix=fix)


def scan(destinations: Destinations) -> Results[list[HostKey]]:
    """The keys that servers present. This proves only that the servers have these keys.

    Gateways are logged in to, if their host keys are known.
    """

    def connect(host: Host, shared: Shared) -> HostConnection:
        destination = destinations[host.name]
        careful = tuple(replace(hop, strict=True) for hop in destination.jumps)
        return _Scanner(host, shared, replace(destination, jumps=careful))

    hosts = [Host(name, destination.hostname, Ssh(config=None)) for name, destination in destinations.items()]
    with Fleet(hosts, connect=connect) as fleet:
        return fleet.run(_Scanner.keys)
