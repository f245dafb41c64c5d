"""Ask hosts for their host keys, on the same route as a login, but without logging in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from mnt.errors import HostError
from mnt.fleet import Fleet, HostConnection, Results, Timeouts
from mnt.fleet.connection import Shared
from mnt.fleet.endpoint import Endpoint
from mnt.fleet.hostkeys import HostKey
from mnt.inventory.model import Host, Ssh

# One connection for each kind, because a server presents one key per connection. In ssh's order.
_KINDS = (
    ("ssh-ed25519",),
    ("ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521"),
    ("rsa-sha2-512", "rsa-sha2-256"),
)

Endpoints = Mapping[str, Endpoint]  # by the host's name, or by the gateway's name in known_hosts


def waves(hosts: Iterable[Host]) -> list[Endpoints]:
    """`hosts` and their gateways, in waves: each host is in a later wave than its gateways.

    Raises UsageError if the ssh_config is not valid.
    """
    shared = Shared(Timeouts())
    found: list[dict[str, Endpoint]] = []
    seen: set[str] = set()

    def add(name: str, endpoint: Endpoint) -> None:
        if endpoint.key_name in seen:
            return
        seen.add(endpoint.key_name)
        while len(found) <= len(endpoint.jumps):
            found.append({})
        found[len(endpoint.jumps)][name] = endpoint

    targets = [(host.name, shared.endpoint(host)) for host in hosts]
    for name, endpoint in targets:
        add(name, endpoint)
    for _, endpoint in targets:
        for index, hop in enumerate(endpoint.jumps):
            add(hop.key_name, replace(hop, jumps=endpoint.jumps[:index]))
    return [wave for wave in found if wave]


class _Scanner(HostConnection):
    """A connection that is never opened; only its gateways are logged in to."""

    def __init__(self, target: Host, shared: Shared, endpoint: Endpoint) -> None:
        super().__init__(target, shared)
        self.endpoint = endpoint

    def open(self) -> None:
        """Do nothing: there is no login."""

    @property
    def logins(self) -> tuple[Endpoint, ...]:
        return self.endpoint.jumps

    def keys(self) -> list[HostKey]:
        """One key of each kind that the host has. Raises HostError."""
        keys = [key for kind in _KINDS if (key := self.shown_key(kind)) is not None]
        if keys:
            return keys
        fix = "set HostKey in its sshd_config to an ed25519, ECDSA or RSA key"
        raise HostError(self.target.name, "key exchange", "no host key of a supported kind", fix=fix)


def scan(endpoints: Endpoints) -> Results[list[HostKey]]:
    """The keys that servers present. This proves only that the servers have these keys.

    Gateways are logged in to, if their host keys are known.
    """

    def connect(host: Host, shared: Shared) -> HostConnection:
        endpoint = endpoints[host.name]
        careful = tuple(replace(hop, strict=True) for hop in endpoint.jumps)
        return _Scanner(host, shared, replace(endpoint, jumps=careful))

    hosts = [Host(name, endpoint.hostname, Ssh(config=None)) for name, endpoint in endpoints.items()]
    with Fleet(hosts, connect=connect) as fleet:
        return fleet.run(_Scanner.keys)
